# The instruction sets, one row each. Everything that exists once per ISA is made from this table: the kernels, the
# list that dispatch.cpp reads, the benchmark's probes, the flags recorded in result files.
#
# A row is a set of OBJECT libraries, compiled with the row's flags and -DKVROOF_ISA=<name>. Optimisation is forced in
# every build type, Debug included: at -O0 the compiler leaves inline functions of the standard library as weak symbols
# full of AVX code, and the linker may hand one of those to code that must run on any CPU. tools/check_isa_objects proves
# that none is left.

set(KVROOF_ISA_OPTIMISE -O3)
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
  set(KVROOF_ISA_OPTIMISE -O1)  # instrumented kernels take minutes to compile above that; the check above still holds
endif()

set(KVROOF_ISA_ROWS "")
set(KVROOF_NATIVE_ROWS "")
macro(kvroof_isa_row name)
  list(APPEND KVROOF_ISA_ROWS ${name})
  set(KVROOF_ISA_FLAGS_${name} ${ARGN})
endmacro()
# Instructions of native mode on top of a row: only what multiplies with them is compiled for it.
macro(kvroof_native_row name base)
  list(APPEND KVROOF_NATIVE_ROWS ${name})
  set(KVROOF_ISA_FLAGS_${name} ${KVROOF_ISA_FLAGS_${base}} ${ARGN})
endmacro()

kvroof_isa_row(portable)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  kvroof_isa_row(avx2 -mavx2 -mfma -mf16c)
  kvroof_isa_row(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512cd -mavx512vl -mavx2 -mfma -mf16c)
  set(KVROOF_ISA_FLAGS_avx512_l2 ${KVROOF_ISA_FLAGS_avx512})
  kvroof_native_row(avx512_bf16 avx512 -mavx512bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  kvroof_isa_row(neon)
endif()

# kvroof_isa_object(<target> <row> <source>...): an OBJECT library for one row, and a test that nothing leaks out of it.
function(kvroof_isa_object target row)
  add_library(${target} OBJECT ${ARGN})
  target_compile_definitions(${target} PRIVATE KVROOF_ISA=${row})
  target_compile_options(${target} PRIVATE ${KVROOF_ISA_OPTIMISE} ${KVROOF_ISA_FLAGS_${row}})
  if(row MATCHES "^avx512" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # False alarms from that compiler's own avx512fintrin.h.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  if(NOT row STREQUAL "portable")
    target_link_libraries(${target} PRIVATE kvroof_xsimd)
  endif()
  if(KVROOF_BUILD_TESTS)
    add_test(NAME isa_objects.${target} COMMAND_EXPAND_LISTS
             COMMAND "${PROJECT_SOURCE_DIR}/tools/check_isa_objects" "${CMAKE_NM}" ${row} $<TARGET_OBJECTS:${target}>)
    set_tests_properties(isa_objects.${target} PROPERTIES LABELS quick)
  endif()
endfunction()

# kvroof_isa_objects(<out-list> <prefix> <source>...): OBJECT libraries <prefix>_<row> over the sources, one per row.
function(kvroof_isa_objects out prefix)
  set(targets "")
  foreach(row IN LISTS KVROOF_ISA_ROWS)
    kvroof_isa_object(${prefix}_${row} ${row} ${ARGN})
    list(APPEND targets ${prefix}_${row})
  endforeach()
  set(${out} ${targets} PARENT_SCOPE)
endfunction()
