# What `cmake --install` installs in addition to the module libraries: the program, and a package for
# `find_package(tidemill)`. Included last, because it rewrites the headers that were installed before.
include(CMakePackageConfigHelpers)

# `#include "base/status.hpp"` becomes `#include <tidemill/base/status.hpp>`. Includes in angle brackets
# belong to other libraries and stay unchanged.
install(CODE [[
  file(GLOB_RECURSE headers "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/include/tidemill/*.hpp")
  foreach(header IN LISTS headers)
    file(READ "${header}" text)
    string(REGEX REPLACE "#include \"([^\"]+)\"" "#include <tidemill/\\1>" text "${text}")
    file(WRITE "${header}" "${text}")
  endforeach()
]])
install(TARGETS tidemill RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/tidemill)
install(EXPORT tidemillTargets NAMESPACE tidemill:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tidemillConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tidemillConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tidemillConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tidemillConfig.cmake ${PROJECT_BINARY_DIR}/tidemillConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindCAF.cmake DESTINATION ${package})
