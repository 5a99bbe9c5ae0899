# `cmake --install`: headers, the core library, the program and a package file for find_package(plait).

include(CMakePackageConfigHelpers)

install(TARGETS plait EXPORT plaitTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Settings of runs (plait/config.h) belong to the program, which is not a library to link.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/plait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN config.h EXCLUDE)
if(TARGET plait_program)
  install(TARGETS plait_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # What `plait run` measures when nothing is asked for.
  install(FILES ${PROJECT_SOURCE_DIR}/configs/default.yaml DESTINATION ${CMAKE_INSTALL_DATADIR}/plait/configs)
  install(FILES ${PROJECT_SOURCE_DIR}/data/jargon.txt DESTINATION ${CMAKE_INSTALL_DATADIR}/plait/data)
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/plait)
install(EXPORT plaitTargets NAMESPACE plait:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/plaitConfig.cmake.in ${CMAKE_BINARY_DIR}/plaitConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/plaitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/plaitConfig.cmake ${CMAKE_BINARY_DIR}/plaitConfigVersion.cmake DESTINATION ${package_folder})
