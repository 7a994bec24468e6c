# kvroof_suite_tests(<target>): one ctest entry per GoogleTest suite, listed after the program is built. One entry per
# test would start the program thousands of times; one for all would hide which part failed. A suite whose name begins
# with "Long" gets the label "long" (tools/kvroof test --long), every other one "quick".
function(kvroof_suite_tests target)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake")
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND "${CMAKE_COMMAND}" "-DPROGRAM=$<TARGET_FILE:${target}>" "-DEMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}"
            "-DTARGET=${target}" "-DOUT=${file}" -P "${PROJECT_SOURCE_DIR}/cmake/list_suites.cmake"
    BYPRODUCTS "${file}" VERBATIM)
  # Until the program is built there is nothing to list, and ctest must not call that a success.
  if(NOT EXISTS "${file}")
    file(WRITE "${file}" "add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\n")
  endif()
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${file}")
endfunction()
