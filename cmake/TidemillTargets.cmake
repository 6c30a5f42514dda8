# tidemill_compile_together(target count)
#
# With TIDEMILL_UNITY the compiler gets the target's sources `count` at a time, so that it reads the headers that
# they share once. Names in their unnamed namespaces must then be unique within the target.
function(tidemill_compile_together target count)
  if(TIDEMILL_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${count})
    # A source that is included takes its unnamed namespace for one in a header.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# tidemill_add_library(name [NOT_INSTALLED] [SEPARATE] [DEPS ...] [PRIVATE_DEPS ...] [HEADERS ...]
#                      [PRIVATE_HEADERS ...] [SOURCES ...])
#
# Adds one module library `tidemill::name`. Its headers need DEPS, and only its sources need PRIVATE_DEPS.
# Every header belongs to exactly one library. Only HEADERS are installed and may be included by other libraries
# (tests/lint/check_layers.py); PRIVATE_HEADERS are for the library itself and for tests. Without SOURCES the
# library is header-only. Unless it is NOT_INSTALLED, `cmake --install` installs it. Its sources are compiled
# together, unless it is SEPARATE: a library whose sources are changed often, or take long by themselves.
function(tidemill_add_library name)
  cmake_parse_arguments(A "NOT_INSTALLED;SEPARATE" "" "DEPS;PRIVATE_DEPS;HEADERS;PRIVATE_HEADERS;SOURCES" ${ARGN})
  if(A_SOURCES)
    add_library(tidemill_${name})
    # Without the definition that CMake adds to a shared library, libraries can share precompiled headers.
    set_target_properties(tidemill_${name} PROPERTIES DEFINE_SYMBOL "")
    set(scope PUBLIC)
    target_sources(tidemill_${name} PRIVATE ${A_SOURCES})
  else()
    add_library(tidemill_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tidemill::${name} ALIAS tidemill_${name})
  # Private: a public file set would export include/tidemill itself and shadow users' files.
  target_sources(tidemill_${name} PRIVATE
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${A_HEADERS} ${A_PRIVATE_HEADERS})
  target_include_directories(tidemill_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(tidemill_${name} ${scope} cxx_std_20)
  target_link_libraries(tidemill_${name} ${scope} ${A_DEPS})
  if(A_SOURCES)
    target_link_libraries(tidemill_${name} PRIVATE $<BUILD_INTERFACE:tidemill_warnings> ${A_PRIVATE_DEPS})
  endif()
  if(A_SOURCES AND NOT A_SEPARATE)
    tidemill_compile_together(tidemill_${name} 8)
  endif()
  if(NOT A_NOT_INSTALLED)
    tidemill_install_library(${name} "${A_HEADERS}")
  endif()
endfunction()

# Installs a module library and its headers into include/tidemill. Installed headers include each other
# as `<tidemill/base/status.hpp>`, so that programs may have folders with the same names.
function(tidemill_install_library name headers)
  set_target_properties(tidemill_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS tidemill_${name} EXPORT tidemillTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/tidemill
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tidemill)
  foreach(header IN LISTS headers)
    cmake_path(ABSOLUTE_PATH header NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE inside)
    cmake_path(GET inside PARENT_PATH folder)
    install(FILES ${path} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tidemill/${folder})
  endforeach()
endfunction()
