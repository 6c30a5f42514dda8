// SPDX-License-Identifier: Apache-2.0
// libFuzzer's way into the target TIDEMILL_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "tests/fuzz/target.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it so.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tidemill::fuzz::TIDEMILL_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    std::cerr << "broken: " << error.what() << std::endl;
    std::abort();
  }
  return 0;
}
