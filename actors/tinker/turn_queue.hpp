// SPDX-License-Identifier: Apache-2.0
// Puts requests that arrive in any order into the order of their numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace tidemill::actors::tinker {

/// Holds numbered pieces of work, and gives them out one at a time in ascending order without gaps.
///
/// Threads: one call at a time.
template <class Work>
class TurnQueue {
public:
  /// Returns whether a piece of work with this number was added before, or its turn is over.
  [[nodiscard]] bool knows(std::int64_t number) const {
    return number < next_ || waiting_.contains(number);
  }

  /// Adds work. Its number must not be known.
  void add(std::int64_t number, Work work, TimePoint now) {
    waiting_.emplace(number, std::move(work));
    if (!gap_since_) {
      gap_since_ = now;
    }
  }

  /// Removes and returns the next work; nullopt if it has not arrived or other work is running.
  std::optional<Work> take(TimePoint now) {
    const auto first = waiting_.begin();
    if (running_ || first == waiting_.end() || first->first != next_) {
      return std::nullopt;
    }
    std::optional<Work> work(std::move(first->second));
    waiting_.erase(first);
    ++next_;
    running_ = true;
    gap_since_ = waiting_.empty() ? std::nullopt : std::optional(now);
    return work;
  }

  /// Reports that the work taken last has ended.
  void end() { running_ = false; }

  /// If the next number has been missing for longer than `limit`, skips it and all waiting work,
  /// and returns that work with its numbers. Otherwise returns nothing.
  std::vector<std::pair<std::int64_t, Work>> give_up(TimePoint now, Duration limit) {
    std::vector<std::pair<std::int64_t, Work>> lost;
    const bool waits = !running_ && !waiting_.empty() && waiting_.begin()->first != next_;
    if (running_ || waiting_.empty()) {
      gap_since_ = waiting_.empty() ? std::nullopt : std::optional(now);
    } else if (waits && gap_since_ && now - *gap_since_ > limit) {
      next_ = waiting_.rbegin()->first + 1;
      for (auto& [number, work] : waiting_) {
        lost.emplace_back(number, std::move(work));
      }
      waiting_.clear();
      gap_since_.reset();
    }
    return lost;
  }

  /// Drops the work that waits, and returns it with its numbers.
  std::vector<std::pair<std::int64_t, Work>> clear() {
    std::vector<std::pair<std::int64_t, Work>> dropped;
    for (auto& [number, work] : waiting_) {
      dropped.emplace_back(number, std::move(work));
    }
    waiting_.clear();
    gap_since_.reset();
    return dropped;
  }

  /// Returns the number whose turn is next.
  [[nodiscard]] std::int64_t next() const noexcept { return next_; }
  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size(); }
  [[nodiscard]] bool running() const noexcept { return running_; }

private:
  std::int64_t next_ = 1;
  std::map<std::int64_t, Work> waiting_;
  std::optional<TimePoint> gap_since_;  // since when the work that waits has seen no progress
  bool running_ = false;
};

}  // namespace tidemill::actors::tinker
