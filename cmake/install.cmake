# find_package(kvroof) gives kvroof::kernels; its link line has OpenMP and nothing else.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/kvroof")
install(TARGETS kvroof_kernels EXPORT kvroofTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/kernels" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvroof"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h" PATTERN "simd" EXCLUDE PATTERN "ops" EXCLUDE PATTERN "native" EXCLUDE)
install(EXPORT kvroofTargets NAMESPACE kvroof:: DESTINATION "${package}")
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/kvroofConfig.cmake" @ONLY CONTENT
"include(CMakeFindDependencyMacro)
find_dependency(OpenMP COMPONENTS CXX)
include(\"\${CMAKE_CURRENT_LIST_DIR}/kvroofTargets.cmake\")
")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvroofConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvroofConfig.cmake" "${PROJECT_BINARY_DIR}/kvroofConfigVersion.cmake"
        DESTINATION "${package}")
