// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/cores.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <sched.h>
#include <sstream>
#include <string_view>
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

// Lowers `lowest` to the smallest quota of `group` and its ancestors. `group` is a path from
// /proc/self/cgroup.
void apply_group_quotas(const std::filesystem::path& root, const std::filesystem::path& group,
                        std::optional<double> (*quota)(const std::filesystem::path&),
                        const char* file, CoreLimit& lowest) {
  std::filesystem::path inner = group.relative_path().lexically_normal();
  if (!inner.empty() && *inner.begin() == "..") {
    inner.clear();  // outside the tree that the process can see
  }
  for (;; inner = inner.parent_path()) {
    const std::filesystem::path folder = inner.empty() ? root : root / inner;
    if (const auto found = quota(folder)) {
      const int cores = static_cast<int>(std::clamp(std::ceil(*found), 1.0, 1e6));
      if (lowest.cores == 0 || cores < lowest.cores) {
        lowest = {cores, (folder / file).string()};
      }
    }
    if (inner.empty()) {
      return;
    }
  }
}

bool lists_cpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") {
      return true;
    }
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
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
  std::ifstream own(files.own_groups);
  // Lines have the form "hierarchy:controllers:group". Version 2 is hierarchy 0 and names no
  // controllers.
  for (std::string line; std::getline(own, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      apply_group_quotas(files.root, group, quota_v2, "cpu.max", lowest);
    } else if (lists_cpu(controllers)) {
      for (const std::string& mount : {controllers, std::string("cpu")}) {
        apply_group_quotas(files.root / mount, group, quota_v1, "cpu.cfs_quota_us", lowest);
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
