// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/peak_memory.hpp"

#include <fstream>
#include <malloc.h>
#include <sstream>
#include <string>

namespace tidemill::launcher {

void reset_peak_memory() {
  malloc_trim(0);  // what an earlier figure gave back to the allocator
  std::ofstream("/proc/self/clear_refs") << "5";
}

double peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      double kib = 0.0;
      std::istringstream(line.substr(6)) >> kib;
      return kib * 1024.0;
    }
  }
  return 0.0;
}

}  // namespace tidemill::launcher
