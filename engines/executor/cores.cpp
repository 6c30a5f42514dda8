// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/cores.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sched.h>
#include <sstream>
#include <thread>
#include <vector>

namespace tidemill::engines {
namespace {

// Returns the words of a file's first line.
std::vector<std::string> words_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

std::optional<double> parse_positive(const std::string& word) {
  std::istringstream stream(word);
  double value = 0.0;
  return stream >> value && stream.eof() && value > 0.0 ? std::optional(value) : std::nullopt;
}

// Returns a quota in cores: quota over period, both in microseconds. Returns nothing if there is no
// quota ("max" or -1).
std::optional<double> quota_cores(const std::string& quota, const std::string& period) {
  const auto quota_us = parse_positive(quota);
  const auto period_us = parse_positive(period);
  return quota_us && period_us ? std::optional(*quota_us / *period_us) : std::nullopt;
}

std::optional<double> quota_v2(const std::filesystem::path& group) {
  const auto words = words_of(group / "cpu.max");
  return words.size() == 2 ? quota_cores(words[0], words[1]) : std::nullopt;
}

std::optional<double> quota_v1(const std::filesystem::path& group) {
  const auto quota = words_of(group / "cpu.cfs_quota_us");
  const auto period = words_of(group / "cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? quota_cores(quota[0], period[0]) : std::nullopt;
}

CoreLimit affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // The call fails on machines with more than 1,024 cores. All their cores count then.
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return {std::max(cores, 1), "CPU affinity mask"};
}

}  // namespace

CoreLimit group_quota(const ControlGroupFiles& files) {
  CoreLimit lowest{0, ""};
  for (const ControlGroup& group : control_groups(files, "cpu")) {
    const bool second = group.version == 2;
    if (const auto found = second ? quota_v2(group.folder) : quota_v1(group.folder)) {
      const int cores = static_cast<int>(std::clamp(std::ceil(*found), 1.0, 1e6));
      if (lowest.cores == 0 || cores < lowest.cores) {
        lowest = {cores, (group.folder / (second ? "cpu.max" : "cpu.cfs_quota_us")).string()};
      }
    }
  }
  return lowest;
}

CoreLimit usable_cores(const ControlGroupFiles& files) {
  const CoreLimit cores = affinity_cores();
  const CoreLimit quota = group_quota(files);
  return quota.cores > 0 && quota.cores < cores.cores ? quota : cores;
}

std::string too_many_threads(int threads, const CoreLimit& usable) {
  if (threads <= usable.cores) {
    return "";
  }
  return std::to_string(threads) + " threads exceed the " + std::to_string(usable.cores) +
         (usable.cores == 1 ? " core" : " cores") + " that this process may use (" + usable.source +
         "); fewer threads would be faster";
}

}  // namespace tidemill::engines
