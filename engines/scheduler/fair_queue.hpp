// SPDX-License-Identifier: Apache-2.0
// The sequences of one priority that wait for their first start, in an order that is fair among
// tenants.
//
// Each tenant has a counter of the tokens that the engine has computed for it. The next sequence to
// start is the oldest one of the tenant with the smallest counter. Prompts count when they start,
// without the part that is found in the cache, and tokens of responses when they are computed. A
// token counts once, however often preemption has it computed again.
//
// A tenant without waiting sequences takes no share, and must not save it up either: when its next
// sequence arrives, its counter is raised to the smallest one among the tenants that wait, or, if
// none waits, to that of the tenant whose sequence started last. While two tenants have waiting
// sequences, the difference of what they have got is therefore bounded by a constant: by what can
// run of one tenant at a time. So the first request of a tenant starts next, however many requests
// of others wait.
//
// Source: Sheng et al. 2024, "Fairness in Serving Large Language Models", algorithm 2 (the virtual
// token counter), with weights of 1 for tokens of prompts and of responses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engines/scheduler/planned_sequence.hpp"

namespace tidemill::engines {

/// What a queue knows about a tenant.
struct TenantShare {
  using Waiting = std::map<std::uint64_t, PlannedSequence*>;  // by serial

  std::int64_t counter = 0;  // tokens; see the top of this file
  Waiting waiting;
  std::int64_t num_sequences = 0;  // waiting or in flight
};

/// The waiting sequences of one priority; see the top of this file. With one tenant, they start in
/// the order of submission.
///
/// Threads: one call at a time.
class FairQueue {
public:
  /// Visits waiting sequences in the order in which they start. Nothing else may change the queue
  /// meanwhile, except `charge`. The cost of a visit is proportional to the number of tenants that
  /// wait.
  class Visit {
  public:
    explicit Visit(FairQueue& queue);
    /// Returns the next sequence, or null after the last one.
    [[nodiscard]] PlannedSequence* next();
    /// Leaves the sequence that `next` returned in the queue, and goes on behind it.
    void skip();
    /// Removes the sequence that `next` returned, because it has started. Charges its tenant for
    /// the tokens of the prompt that must be computed, at least for one.
    void take();

  private:
    struct Cursor {
      TenantShare* share = nullptr;
      TenantShare::Waiting::iterator next;
    };

    FairQueue& queue_;
    std::vector<Cursor> cursors_;  // none is at its end
    std::size_t best_ = 0;         // the cursor of the sequence that `next` returned
  };

  FairQueue() = default;
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  /// Adds a sequence, whose `serial` is larger than those before it.
  void push(PlannedSequence& sequence);
  /// Removes a sequence that waits or is in flight. Returns whether it was waiting.
  bool remove(PlannedSequence& sequence);
  /// Charges the tenant of a sequence in flight for those computed tokens of the response that it
  /// has not been charged for.
  static void charge(PlannedSequence& sequence) noexcept {
    if (sequence.num_cached > sequence.num_charged) {
      sequence.share->counter += sequence.num_cached - sequence.num_charged;
      sequence.num_charged = sequence.num_cached;
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns whether `predicate` holds for any waiting sequence.
  template <class Predicate>
  [[nodiscard]] bool any_of(const Predicate& predicate) const {
    for (const auto& [tenant, share] : shares_) {
      for (const auto& [serial, sequence] : share.waiting) {
        if (predicate(*sequence)) {
          return true;
        }
      }
    }
    return false;
  }
  /// Calls `function` for each waiting sequence.
  template <class Function>
  void for_each(const Function& function) const {
    for (const auto& [tenant, share] : shares_) {
      for (const auto& [serial, sequence] : share.waiting) {
        function(sequence);
      }
    }
  }
  /// Returns the number of tenants that the queue remembers.
  [[nodiscard]] std::size_t num_tenants() const noexcept { return shares_.size(); }

private:
  [[nodiscard]] std::int64_t floor() const noexcept;
  TenantShare& share_of(const std::string& tenant);

  std::map<std::string, TenantShare> shares_;
  TenantShare* last_started_ = nullptr;  // whose sequence started last
  std::size_t size_ = 0;
};

}  // namespace tidemill::engines
