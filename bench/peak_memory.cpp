// SPDX-License-Identifier: Apache-2.0
#include "bench/peak_memory.hpp"

#include <fstream>
#include <malloc.h>
#include <unistd.h>

#include "workflows/process_memory.hpp"

namespace tidemill::bench {
void reset_peak_memory() {
  malloc_trim(0);  // releases what earlier figures freed
  std::ofstream("/proc/self/clear_refs") << "5";
}

double peak_memory_bytes() {
  return peak_memory_bytes(::getpid());
}

double peak_memory_bytes(pid_t pid) {
  return static_cast<double>(workflows::peak_bytes(pid).value_or(0));
}

}  // namespace tidemill::bench
