// SPDX-License-Identifier: Apache-2.0
// Ordered sets of deliverable units.
#include "storage/stream/ready_set.hpp"

namespace tidemill::storage {

bool ReadySet::fresh_at(std::uint64_t oldest_step) const noexcept {
  return !max_staleness_ || oldest_step == kNoStep || oldest_step >= version_ ||
         version_ - oldest_step <= *max_staleness_;
}

void ReadySet::put(Unit unit, std::uint64_t oldest_step) {
  if (const auto known = fresh_.find(unit); known != fresh_.end()) {
    if (known->second == oldest_step) {
      return;
    }
    erase(unit);
  } else if (!stale_.empty()) {
    stale_.erase(unit);
  }
  if (!fresh_at(oldest_step)) {
    stale_.emplace(unit, oldest_step);
    return;
  }
  fresh_.emplace(unit, oldest_step);
  if (max_staleness_ && oldest_step != kNoStep) {
    by_step_.emplace(oldest_step, unit);
  }
}

void ReadySet::erase(Unit unit) {
  const auto known = fresh_.find(unit);
  if (known == fresh_.end()) {
    stale_.erase(unit);
    return;
  }
  by_step_.erase({known->second, unit});
  fresh_.erase(known);
}

void ReadySet::set_version(std::uint64_t version) {
  const bool back = version < version_;
  version_ = version;
  while (!by_step_.empty() && !fresh_at(by_step_.begin()->first)) {
    const auto [oldest_step, unit] = *by_step_.begin();
    erase(unit);
    stale_.emplace(unit, oldest_step);
  }
  if (back) {
    // Only recovery lowers the version, so checking every stale unit again is cheap enough.
    std::map<Unit, std::uint64_t> rechecked;
    rechecked.swap(stale_);
    for (const auto& [unit, oldest_step] : rechecked) {
      put(unit, oldest_step);
    }
  }
}

}  // namespace tidemill::storage
