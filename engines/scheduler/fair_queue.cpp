// SPDX-License-Identifier: Apache-2.0
#include "engines/scheduler/fair_queue.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "base/check.hpp"

namespace tidemill::engines {

FairQueue::Visit::Visit(FairQueue& queue) : queue_(queue) {
  if (queue.size_ == 0) {
    return;
  }
  for (auto& [tenant, share] : queue.shares_) {
    if (!share.waiting.empty()) {
      cursors_.push_back({&share, share.waiting.begin()});
    }
  }
}

PlannedSequence* FairQueue::Visit::next() {
  if (cursors_.empty()) {
    return nullptr;
  }
  const auto best = std::ranges::min_element(cursors_, {}, [](const Cursor& cursor) {
    return std::tuple(cursor.share->counter, cursor.next->first);
  });
  best_ = static_cast<std::size_t>(best - cursors_.begin());
  return best->next->second;
}

void FairQueue::Visit::skip() {
  Cursor& cursor = cursors_[best_];
  if (++cursor.next == cursor.share->waiting.end()) {
    cursors_.erase(cursors_.begin() + static_cast<std::ptrdiff_t>(best_));
  }
}

void FairQueue::Visit::take() {
  TenantShare& share = *cursors_[best_].share;
  const auto taken = cursors_[best_].next;
  PlannedSequence& sequence = *taken->second;
  skip();
  share.waiting.erase(taken);
  share.counter += std::max<std::int64_t>(sequence.prompt_length - sequence.num_cached, 1);
  sequence.num_charged = sequence.prompt_length;
  queue_.last_started_ = &share;
  --queue_.size_;
}

void FairQueue::push(PlannedSequence& sequence) {
  TenantShare& share = share_of(sequence.tenant);
  if (share.waiting.empty()) {
    share.counter = std::max(share.counter, floor());
  }
  sequence.share = &share;
  share.waiting.emplace_hint(share.waiting.end(), sequence.serial, &sequence);
  ++share.num_sequences;
  ++size_;
}

bool FairQueue::remove(PlannedSequence& sequence) {
  TIDEMILL_CHECK(sequence.share != nullptr) << "unknown sequence " << sequence.serial;
  TenantShare& share = *sequence.share;
  const bool waited = share.waiting.erase(sequence.serial) > 0;
  size_ -= waited ? 1 : 0;
  --share.num_sequences;
  sequence.share = nullptr;
  return waited;
}

// Returns the smallest counter that a tenant may have when its first sequence arrives.
std::int64_t FairQueue::floor() const noexcept {
  if (size_ == 0) {
    return last_started_ != nullptr ? last_started_->counter : 0;
  }
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const auto& [tenant, share] : shares_) {
    least = share.waiting.empty() ? least : std::min(least, share.counter);
  }
  return least;
}

// Before it adds a tenant, it forgets those whose counters say nothing: they have no sequences, and
// their counters would be raised.
TenantShare& FairQueue::share_of(const std::string& tenant) {
  const auto found = shares_.find(tenant);
  if (found != shares_.end()) {
    return found->second;
  }
  const std::int64_t least = floor();
  std::erase_if(shares_, [&](const auto& entry) {
    const TenantShare& share = entry.second;
    return share.num_sequences == 0 && &share != last_started_ && share.counter <= least;
  });
  return shares_[tenant];
}

}  // namespace tidemill::engines
