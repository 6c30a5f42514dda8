// SPDX-License-Identifier: Apache-2.0
// The entry point for libFuzzer, which runs the target TIDEMILL_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "tests/fuzz/target.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer prescribes the name.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tidemill::fuzz::TIDEMILL_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    std::cerr << "violated: " << error.what() << std::endl;
    std::abort();
  }
  return 0;
}
