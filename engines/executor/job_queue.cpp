// SPDX-License-Identifier: Apache-2.0
#include "engines/executor/job_queue.hpp"

#include <algorithm>
#include <chrono>

#include "base/check.hpp"

namespace tidemill::engines {

void JobQueue::add(TrainingJob& job, double weight) {
  TIDEMILL_CHECK(weight > 0.0) << weight;
  entries_.push_back({&job, weight, now_, false});
}

void JobQueue::remove(const TrainingJob& job) {
  std::erase_if(entries_, [&job](const Entry& entry) { return entry.job == &job; });
  last_ = last_ == &job ? nullptr : last_;
}

bool JobQueue::has_work() const {
  return std::ranges::any_of(entries_, [](const Entry& entry) { return entry.job->has_work(); });
}

TrainingJob* JobQueue::next(std::span<TrainingJob* const> excluded) {
  const Entry* first = nullptr;
  const Entry* last = nullptr;
  for (Entry& entry : entries_) {
    const bool has_work = entry.job->has_work();
    if (has_work && !entry.had_work) {
      entry.virtual_time = std::max(entry.virtual_time, now_);
    }
    entry.had_work = has_work;
    if (!has_work || std::ranges::find(excluded, entry.job) != excluded.end()) {
      continue;
    }
    if (first == nullptr || entry.virtual_time < first->virtual_time) {
      first = &entry;
    }
    last = entry.job == last_ ? &entry : last;
  }
  constexpr double kQuantumSeconds = std::chrono::duration<double>(kQuantum).count();
  if (last != nullptr && last->virtual_time < first->virtual_time + kQuantumSeconds) {
    first = last;
  }
  if (first == nullptr) {
    return nullptr;
  }
  last_ = first->job;
  now_ = std::max(now_, first->virtual_time);
  return first->job;
}

void JobQueue::charge(const TrainingJob& job, Duration spent) {
  const auto entry = std::ranges::find(entries_, &job, &Entry::job);
  TIDEMILL_CHECK(entry != entries_.end());
  entry->virtual_time += std::chrono::duration<double>(spent).count() / entry->weight;
}

}  // namespace tidemill::engines
