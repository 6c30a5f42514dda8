// SPDX-License-Identifier: Apache-2.0
#include "bench/foreign_load.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <sched.h>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

namespace tidemill::bench {
namespace {

// Indices of the fields of a line, in the order of proc(5).
constexpr std::size_t kIdle = 3;
constexpr std::size_t kIoWait = 4;
constexpr std::size_t kGuest = 8;  // included in `user`; the field after it is included in `nice`

std::string read_proc_stat() {
  std::ifstream file("/proc/stat");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(static_cast<unsigned>(core), &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

// Returns the processor time of this process and of its children that have ended.
double own_seconds() {
  double sum = 0.0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    for (const timeval& time : {usage.ru_utime, usage.ru_stime}) {
      sum += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    }
  }
  return sum;
}

// Returns N if `name` is "cpuN", else -1.
int core_of(const std::string& name) {
  int core = -1;
  if (name.starts_with("cpu")) {
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + 3, end, core).ptr != end) {
      core = -1;
    }
  }
  return core;
}

}  // namespace

CoreTimes core_times(std::string_view proc_stat, const std::vector<int>& cores) {
  CoreTimes times;
  std::istringstream lines{std::string(proc_stat)};
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (std::ranges::find(cores, core_of(name)) == cores.end()) {
      continue;
    }
    std::size_t index = 0;
    for (double value = 0.0; index < kGuest && fields >> value; ++index) {
      times.total += value / ticks;
      times.busy += index == kIdle || index == kIoWait ? 0.0 : value / ticks;
    }
  }
  return times;
}

ForeignLoad::ForeignLoad()
    : cores_(allowed_cores()),
      start_(core_times(read_proc_stat(), cores_)),
      own_start_(own_seconds()) {}

double ForeignLoad::share() const {
  const CoreTimes now = core_times(read_proc_stat(), cores_);
  const double elapsed = now.total - start_.total;
  const double foreign = (now.busy - start_.busy) - (own_seconds() - own_start_);
  return elapsed > 0.0 ? std::clamp(foreign / elapsed, 0.0, 1.0) : 0.0;
}

}  // namespace tidemill::bench
