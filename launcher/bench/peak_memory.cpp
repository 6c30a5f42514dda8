// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/peak_memory.hpp"

#include <fstream>
#include <malloc.h>
#include <sstream>
#include <string>

namespace tidemill::launcher {
namespace {

double read_peak(const std::string& path) {
  std::ifstream status(path);
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      double kib = 0.0;
      std::istringstream(line.substr(6)) >> kib;
      return kib * 1024.0;
    }
  }
  return 0.0;
}

}  // namespace

void reset_peak_memory() {
  malloc_trim(0);  // what an earlier figure gave back to the allocator
  std::ofstream("/proc/self/clear_refs") << "5";
}

double peak_memory_bytes() {
  return read_peak("/proc/self/status");
}

double peak_memory_bytes(pid_t pid) {
  return read_peak("/proc/" + std::to_string(pid) + "/status");
}

}  // namespace tidemill::launcher
