# What every library is compiled with when fuzz targets are built: it tells libFuzzer what an input
# reached, and stops at the first wrong access.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "TIDEMILL_BUILD_FUZZERS needs clang: use the preset fuzz")
endif()
set(TIDEMILL_FUZZ_CHECKS address,undefined,float-cast-overflow)
add_compile_options(-fsanitize=fuzzer-no-link,${TIDEMILL_FUZZ_CHECKS} -fno-sanitize-recover=all
  -fno-omit-frame-pointer)
add_compile_definitions(_GLIBCXX_ASSERTIONS)
add_link_options(-fsanitize=${TIDEMILL_FUZZ_CHECKS})
