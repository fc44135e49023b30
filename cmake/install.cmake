# The install tree: headers, the archive, the command, and what find_package(dormouse) reads.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS dormouse ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/dormouse DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET dormouse_cli)
  install(TARGETS dormouse_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

set(DM_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/dormouse)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/dormouseConfig.cmake.in ${PROJECT_BINARY_DIR}/dormouseConfig.cmake
  INSTALL_DESTINATION ${DM_PACKAGE_DIR}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dormouseConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dormouseConfig.cmake
              ${PROJECT_BINARY_DIR}/dormouseConfigVersion.cmake
        DESTINATION ${DM_PACKAGE_DIR})
