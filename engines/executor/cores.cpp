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

// The words of a file's first line.
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

std::optional<double> positive(const std::string& word) {
  std::istringstream stream(word);
  double value = 0.0;
  return stream >> value && stream.eof() && value > 0.0 ? std::optional(value) : std::nullopt;
}

// Quota over period, both in microseconds; none where there is no quota ("max" or -1).
std::optional<double> share(const std::string& quota, const std::string& period) {
  const auto time = positive(quota);
  const auto of = positive(period);
  return time && of ? std::optional(*time / *of) : std::nullopt;
}

std::optional<double> quota_v2(const std::filesystem::path& group) {
  const auto words = words_of(group / "cpu.max");
  return words.size() == 2 ? share(words[0], words[1]) : std::nullopt;
}

std::optional<double> quota_v1(const std::filesystem::path& group) {
  const auto quota = words_of(group / "cpu.cfs_quota_us");
  const auto period = words_of(group / "cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? share(quota[0], period[0]) : std::nullopt;
}

// Lowers `least` to the quotas of `group`, a path as /proc/self/cgroup has it, and those above.
void look_upwards(const std::filesystem::path& root, const std::filesystem::path& group,
                  std::optional<double> (*quota)(const std::filesystem::path&), const char* file,
                  CoreLimit& least) {
  std::filesystem::path inner = group.relative_path().lexically_normal();
  if (!inner.empty() && *inner.begin() == "..") {
    inner.clear();  // outside the tree that the process is shown
  }
  for (;; inner = inner.parent_path()) {
    const std::filesystem::path folder = inner.empty() ? root : root / inner;
    if (const auto found = quota(folder)) {
      const int cores = static_cast<int>(std::clamp(std::ceil(*found), 1.0, 1e6));
      if (least.cores == 0 || cores < least.cores) {
        least = {cores, (folder / file).string()};
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

CoreLimit mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // A machine of more than 1,024 cores refuses the set; then all of them count.
  const int cores = sched_getaffinity(0, sizeof(set), &set) == 0
                        ? CPU_COUNT(&set)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return {std::max(cores, 1), "its affinity mask"};
}

}  // namespace

CoreLimit group_quota(const ControlGroupFiles& files) {
  CoreLimit least{0, ""};
  std::ifstream own(files.own_groups);
  // Lines "hierarchy:controllers:group"; version 2 is hierarchy 0 and names no controller.
  for (std::string line; std::getline(own, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      look_upwards(files.root, group, quota_v2, "cpu.max", least);
    } else if (lists_cpu(controllers)) {
      for (const std::string& mount : {controllers, std::string("cpu")}) {
        look_upwards(files.root / mount, group, quota_v1, "cpu.cfs_quota_us", least);
      }
    }
  }
  return least;
}

CoreLimit usable_cores(const ControlGroupFiles& files) {
  const CoreLimit cores = mask();
  const CoreLimit quota = group_quota(files);
  return quota.cores > 0 && quota.cores < cores.cores ? quota : cores;
}

std::string too_many_threads(int threads, const CoreLimit& usable) {
  if (threads <= usable.cores) {
    return "";
  }
  return std::to_string(threads) + " are asked for, and the process may use " +
         std::to_string(usable.cores) + (usable.cores == 1 ? " core" : " cores") + " (" +
         usable.source + "): threads that wait for each other are slower than fewer";
}

}  // namespace tidemill::engines
