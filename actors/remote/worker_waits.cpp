// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "actors/remote/spawn.hpp"

namespace tidemill::actors {

void WorkerWaits::begin(const std::string& worker, TimePoint now) {
  const std::lock_guard lock(mutex_);
  waits_.try_emplace(worker, Wait{now, ""});
}

void WorkerWaits::set_reason(const std::string& worker, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (const auto wait = waits_.find(worker); wait != waits_.end()) {
    wait->second.reason = reason;
  }
}

void WorkerWaits::end(const std::string& worker) {
  const std::lock_guard lock(mutex_);
  waits_.erase(worker);
}

std::optional<WorkerWaits::Wait> WorkerWaits::longest() const {
  const std::lock_guard lock(mutex_);
  const auto first =
      std::ranges::min_element(waits_, {}, [](const auto& wait) { return wait.second.since; });
  if (first == waits_.end()) {
    return std::nullopt;
  }
  Wait wait = first->second;
  wait.workers = static_cast<std::uint32_t>(waits_.size());
  return wait;
}

}  // namespace tidemill::actors
