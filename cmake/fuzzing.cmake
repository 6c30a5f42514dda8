# Compiler options of every library if fuzz targets are built: instrumentation that tells libFuzzer
# which code an input reached, and sanitizers that stop at the first error.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TIDEMILL_BUILD_FUZZERS needs clang; use the preset fuzz")
endif()
set(TIDEMILL_FUZZ_CHECKS address,undefined,float-cast-overflow)
add_compile_options(-fsanitize=fuzzer-no-link,${TIDEMILL_FUZZ_CHECKS} -fno-sanitize-recover=all
  -fno-omit-frame-pointer)
add_compile_definitions(_GLIBCXX_ASSERTIONS)
add_link_options(-fsanitize=${TIDEMILL_FUZZ_CHECKS})
