# tidemill_add_library(name [DEPS ...] [PRIVATE_DEPS ...] [HEADERS ...] [SOURCES ...])
#
# Adds one module library `tidemill::name`. DEPS are what its headers need, PRIVATE_DEPS what only its
# sources need. Every header belongs to exactly one library. Without SOURCES it is header-only.
function(tidemill_add_library name)
  cmake_parse_arguments(A "" "" "DEPS;PRIVATE_DEPS;HEADERS;SOURCES" ${ARGN})
  if(A_SOURCES)
    add_library(tidemill_${name} STATIC)
    set(scope PUBLIC)
    target_sources(tidemill_${name} PRIVATE ${A_SOURCES})
  else()
    add_library(tidemill_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(tidemill::${name} ALIAS tidemill_${name})
  # Private: a public file set would export include/tidemill itself and shadow users' files.
  target_sources(tidemill_${name} PRIVATE
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${A_HEADERS})
  target_include_directories(tidemill_${name} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(tidemill_${name} ${scope} cxx_std_20)
  target_link_libraries(tidemill_${name} ${scope} ${A_DEPS})
  if(A_SOURCES)
    target_link_libraries(tidemill_${name} PRIVATE tidemill_warnings ${A_PRIVATE_DEPS})
  endif()
endfunction()
