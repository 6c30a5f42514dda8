// SPDX-License-Identifier: Apache-2.0
// Private to actors/tuning. What runs have reported and the tuner has not taken.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/tuning/tuning_run.hpp"

namespace tidemill::actors {

/// The reports of runs, each with the id of its job, in order. Threads: any.
class RunReports {
public:
  void push(const std::string& job, RunReport report) {
    const std::lock_guard lock(mutex_);
    reports_.emplace_back(job, std::move(report));
  }
  [[nodiscard]] std::vector<std::pair<std::string, RunReport>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reports_, {});
  }

private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, RunReport>> reports_;
};

}  // namespace tidemill::actors
