# find_package(vram): the static library with its public headers, and the command. A wheel (SKBUILD) takes neither.
# A program that uses the library compiles without the headers of yaml-cpp and the others; it links yaml-cpp, which
# vramConfig.cmake finds, unless the library was built with VRAMEST_BUNDLED and holds it.
if(NOT SKBUILD)
  include(CMakePackageConfigHelpers)
  set(VRAM_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/vram)
  install(TARGETS vram EXPORT vramTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/libvram/include/vram DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.hpp")
  install(EXPORT vramTargets NAMESPACE vram:: DESTINATION ${VRAM_CMAKE_DIR})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/vramConfig.cmake.in ${PROJECT_BINARY_DIR}/vramConfig.cmake
                                INSTALL_DESTINATION ${VRAM_CMAKE_DIR})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/vramConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/vramConfig.cmake ${PROJECT_BINARY_DIR}/vramConfigVersion.cmake
          DESTINATION ${VRAM_CMAKE_DIR})
endif()
