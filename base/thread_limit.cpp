// SPDX-License-Identifier: Apache-2.0
#include "base/thread_limit.hpp"

#include <cstdint>
#include <exception>
#include <fstream>
#include <latch>
#include <limits>
#include <sys/resource.h>
#include <thread>
#include <vector>

namespace tidemill {

std::string thread_limit_text(const ControlGroupFiles& files) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::string text;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    least = limit.rlim_cur;
    text = "ulimit -u " + std::to_string(least);
  }
  for (const ControlGroup& group : control_groups(files, "pids")) {
    std::ifstream file(group.folder / "pids.max");
    std::uint64_t most = 0;
    if (file >> most && most < least) {  // without a limit, the file holds "max"
      least = most;
      text = "pids.max " + std::to_string(most) + " in " + group.folder.string();
    }
  }
  return text;
}

Status try_threads(int threads) {
  std::latch all_tried(1);
  std::vector<std::thread> started;
  Status status;
  try {
    started.reserve(static_cast<std::size_t>(threads));
    for (int i = 0; i < threads; ++i) {
      started.emplace_back([&all_tried] { all_tried.wait(); });
    }
  } catch (const std::exception& error) {
    status = {Errc::kResourceExhausted, "threads: only " + std::to_string(started.size()) + " of " +
                                            std::to_string(threads) +
                                            " can be started: " + error.what()};
  }
  all_tried.count_down();
  for (std::thread& thread : started) {
    thread.join();
  }
  return status;
}

}  // namespace tidemill
