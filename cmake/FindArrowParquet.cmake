# Finds the Parquet reader of Apache Arrow's C++ library. Looks for a CMake package, then for pkg-config's
# `parquet`, then for the Python package pyarrow, whose wheels contain the libraries and their headers.
#
# Of pyarrow it takes the first of these folders that can be used: TIDEMILL_PYARROW_ROOT (then no other),
# .cache/pyarrow, where `./mill parquet` puts it, and the one that python3 would import.
#
# Defines the target ArrowParquet::ArrowParquet, ArrowParquet_VERSION, ArrowParquet_LOCATION, and the folder of the
# libraries as ArrowParquet_LIBRARY_DIR. A library counts as found only if a program that uses it compiles and links:
# the wheels are built by another compiler, and older readers do not limit the depth of a schema.
include(FindPackageHandleStandardArgs)
set(TIDEMILL_PYARROW_ROOT "" CACHE PATH "Folder of the Python package pyarrow, to read Parquet files with")

# Sets `result` to whether a program compiles and links with the libraries `ARGN`. `location` identifies them.
function(_arrow_parquet_works result location)
  if(NOT "${location}" STREQUAL "${_ARROW_PARQUET_TRIED}")
    set(source [[
      #include <arrow/memory_pool.h>
      #include <parquet/arrow/reader.h>
      int main() {
        arrow::CappedMemoryPool pool(arrow::system_memory_pool(), 1);
        parquet::ReaderProperties properties(&pool);
        properties.set_schema_depth_limit(1);
        parquet::arrow::FileReaderBuilder builder;
        return builder.Open(nullptr, properties).message().empty() || builder.Build().ok();
      }]])
    try_compile(works SOURCE_FROM_VAR arrow_parquet.cpp source LINK_LIBRARIES ${ARGN} CXX_STANDARD 20
      NO_CACHE OUTPUT_VARIABLE output)
    set(_ARROW_PARQUET_TRIED "${location}" CACHE INTERNAL "The library that was tried last")
    set(_ARROW_PARQUET_WORKED ${works} CACHE INTERNAL "Whether it can be used")
    if(NOT works)
      string(REGEX MATCH "[^\n]*error:[^\n]*" why "${output}")
      message(STATUS "Arrow in ${location} cannot be used: ${why}")
    endif()
  endif()
  set(${result} ${_ARROW_PARQUET_WORKED} PARENT_SCOPE)
endfunction()

# Defines the target if the libraries `ARGN` at `location`, in `library_dir`, work.
macro(_arrow_parquet_take location version library_dir)
  _arrow_parquet_works(_works "${location} ${version}" ${ARGN})
  if(_works)
    add_library(ArrowParquet::ArrowParquet INTERFACE IMPORTED)
    target_link_libraries(ArrowParquet::ArrowParquet INTERFACE ${ARGN})
    set(ArrowParquet_LOCATION "${location}")
    set(ArrowParquet_VERSION "${version}")
    set(ArrowParquet_LIBRARY_DIR "${library_dir}")
  endif()
endmacro()

# Takes the pyarrow in `root`, whose libraries have names like libparquet.so.2600.
macro(_arrow_parquet_take_pyarrow root)
  file(GLOB _parquet LIST_DIRECTORIES false "${root}/libparquet.so.*")
  file(GLOB _arrow LIST_DIRECTORIES false "${root}/libarrow.so.*")
  if(_parquet AND _arrow AND EXISTS "${root}/include/parquet/arrow/reader.h")
    list(GET _parquet 0 _parquet)
    list(GET _arrow 0 _arrow)
    file(STRINGS "${root}/include/arrow/util/config.h" _line REGEX "define ARROW_VERSION_STRING")
    string(REGEX MATCH "[0-9.]+" _version "${_line}")
    if(NOT TARGET ArrowParquet::pyarrow)
      add_library(ArrowParquet::pyarrow_arrow SHARED IMPORTED)
      add_library(ArrowParquet::pyarrow SHARED IMPORTED)
    endif()
    set_target_properties(ArrowParquet::pyarrow_arrow PROPERTIES IMPORTED_LOCATION "${_arrow}")
    set_target_properties(ArrowParquet::pyarrow PROPERTIES IMPORTED_LOCATION "${_parquet}"
      INTERFACE_LINK_LIBRARIES ArrowParquet::pyarrow_arrow INTERFACE_INCLUDE_DIRECTORIES "${root}/include")
    _arrow_parquet_take("${root}" "${_version}" "${root}" ArrowParquet::pyarrow)
  endif()
endmacro()

set(_arrow_python_root)
if(NOT TIDEMILL_PYARROW_ROOT)
  find_package(Parquet CONFIG QUIET)
  if(Parquet_FOUND AND TARGET Parquet::parquet_shared)
    _arrow_parquet_take("${Parquet_DIR}" "${Parquet_VERSION}" "$<TARGET_FILE_DIR:Parquet::parquet_shared>"
      Parquet::parquet_shared)
  endif()
  if(NOT TARGET ArrowParquet::ArrowParquet)
    pkg_check_modules(ARROW_PARQUET QUIET IMPORTED_TARGET parquet)
    if(ARROW_PARQUET_FOUND)
      _arrow_parquet_take("${ARROW_PARQUET_LIBDIR}" "${ARROW_PARQUET_VERSION}" "${ARROW_PARQUET_LIBDIR}"
        PkgConfig::ARROW_PARQUET)
    endif()
  endif()
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
    OUTPUT_VARIABLE _arrow_python_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(_arrow_roots "${PROJECT_SOURCE_DIR}/.cache/pyarrow" "${_arrow_python_root}")
else()
  set(_arrow_roots "${TIDEMILL_PYARROW_ROOT}")
endif()
foreach(_root IN LISTS _arrow_roots)
  if(NOT TARGET ArrowParquet::ArrowParquet)
    _arrow_parquet_take_pyarrow("${_root}")
  endif()
endforeach()
find_package_handle_standard_args(ArrowParquet REQUIRED_VARS ArrowParquet_LOCATION VERSION_VAR ArrowParquet_VERSION)
