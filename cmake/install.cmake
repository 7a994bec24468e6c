# find_package(kvroof) gives kvroof::kernels; its link line has OpenMP and nothing else.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/kvroof")
install(TARGETS kvroof_kernels EXPORT kvroofTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# The public headers and nothing else: what is not in this list may change without notice.
foreach(header error.hpp storage.hpp views.hpp kernels.hpp rope.hpp mla.hpp decoder.hpp kvroof.h cache/memory.hpp
        cache/rows.hpp cache/contiguous.hpp cache/ring.hpp cache/paged.hpp cache/page_table.hpp)
  get_filename_component(folder "${header}" DIRECTORY)
  install(FILES "${PROJECT_SOURCE_DIR}/kernels/${header}"
          DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvroof/kernels/${folder}")
endforeach()
install(EXPORT kvroofTargets NAMESPACE kvroof:: DESTINATION "${package}")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/kvroofConfig.cmake" @ONLY CONTENT
"include(CMakeFindDependencyMacro)
find_dependency(OpenMP COMPONENTS CXX)
include(\"\${CMAKE_CURRENT_LIST_DIR}/kvroofTargets.cmake\")
")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvroofConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvroofConfig.cmake" "${PROJECT_BINARY_DIR}/kvroofConfigVersion.cmake"
        DESTINATION "${package}")
