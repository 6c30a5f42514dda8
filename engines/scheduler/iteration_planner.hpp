// SPDX-License-Identifier: Apache-2.0
// Plans generation: which sequences run, which tokens each iteration computes, and which pages each
// sequence holds. The planner knows only tokens and page numbers, and nothing about the model.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "engines/priority.hpp"
#include "engines/scheduler/fair_queue.hpp"
#include "engines/scheduler/length_forecast.hpp"
#include "engines/scheduler/page_forecast.hpp"
#include "engines/scheduler/page_pool.hpp"
#include "engines/scheduler/planned_sequence.hpp"
#include "engines/scheduler/prefix_tree.hpp"

namespace tidemill::engines {

/// Which sequences may start, and with which weights.
struct AdmissionRule {
  bool admit_new = true;     // false: only preempted sequences may start
  std::uint64_t step = 0;    // of the served weights; a sequence waits for its `min_step`
  std::string_view weights;  // identifies the content of the served weights
};

/// The limits of a planner.
struct PlannerOptions {
  std::int64_t page_tokens = 16;
  std::int64_t max_running = 256;
  /// The target share of sequences that are preempted. The forecast's margin adapts to reach it.
  double preempted_share = 0.006;
};

/// The maximum number of tokens of one iteration.
struct IterationBudget {
  std::int64_t tokens = 1;          // at least one is computed
  std::int64_t prefill_tokens = 1;  // maximum for sequences with more than one to compute
  /// Once so many are planned for such sequences, no further one gets any.
  std::int64_t prefill_target = std::numeric_limits<std::int64_t>::max();
};

/// A sequence's next tokens to compute. If there are none, its next token is sampled from `row`.
struct PlannedChunk {
  PlannedSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};

/// A copy of page `from` to page `to`, to be made before anything is computed.
struct PageCopy {
  std::int32_t from = 0;
  std::int32_t to = 0;
};

/// The plan of one iteration.
struct IterationPlan {
  std::vector<PageCopy> copies;  // in this order: the source of one may be the target of another
  std::vector<PlannedChunk> chunks;
  std::vector<PlannedSequence*> started;  // for the first time; they may have no chunk
  std::int64_t cached_tokens = 0;         // of the sequences that start; need not be computed
  std::int64_t preemptions = 0;
};

/// Decides which sequences run and what each iteration computes.
///
/// A sequence is waiting until it starts, and in flight from then on. In flight, it is either
/// running and holds pages, or preempted: then it has released its pages and keeps its tokens.
///
/// Sequences in flight are in order of precedence: those of a higher priority come first, and among
/// those of one priority the one that started first. An iteration computes one token of each
/// running sequence that has only one to compute, in this order. The rest of the budget goes to
/// chunks of sequences with more tokens to compute, in the same order.
///
/// Sequences start if the forecast of pages in use leaves room for them, or if no sequence of their
/// or a higher priority is running. Those of a higher priority start first. Within a priority,
/// preempted ones start first, and then new ones in the order of `FairQueue`, which with one tenant
/// is that of submission. A sequence that shares a prefix with a running one waits until that one
/// has computed the prefix. A sequence starts before one that should start earlier only while that
/// one waits for such a prefix or for its `min_step`. The planner also learns how large a margin
/// the forecast needs.
///
/// When pages run out, the planner first evicts cached pages that no sequence uses, then preempts
/// the running sequence that comes last. A sequence that starts preempts those of lower priorities
/// until it has room; the forecast for it does not count them. No sequence causes the preemption of
/// one that precedes it, and a sequence that does not fit the pool alone is never submitted. The
/// first sequence therefore always makes progress. Within a priority, nothing starves or deadlocks.
/// A lower priority waits for as long as higher ones leave no room.
/// Threads: one call at a time.
class IterationPlanner {
public:
  /// `pool` must outlive the planner.
  IterationPlanner(PagePool& pool, const PlannerOptions& options);

  /// Queues a sequence, which must live until `remove` or `finish`. Requires that `max_cached`
  /// tokens fit the pool.
  void submit(PlannedSequence& sequence);
  /// Removes a sequence in any state and releases its pages.
  void remove(PlannedSequence& sequence);
  /// Removes a sequence that ended on its own or reached its limit. The forecast learns from it.
  void finish(PlannedSequence& sequence);

  /// Plans one iteration. The sequence of every chunk has the pages for it.
  [[nodiscard]] IterationPlan plan(const IterationBudget& budget, const AdmissionRule& rule);

  /// Reports that a chunk has been computed. `row` is the hidden state after the last token of the
  /// prompt if the chunk contains that token; it may be null.
  void advance(const PlannedChunk& chunk, HiddenRow row);

  /// Evicts cached pages that no sequence uses until `pages` pages are free or none can be evicted.
  void drop_cached(std::int64_t pages) { tree_.evict_until_free(pages); }
  /// Does the same as `drop_cached`, then preempts running sequences, the last one first, as long
  /// as pages are missing. Returns the number of preemptions.
  std::int64_t make_room(std::int64_t pages);
  /// Evicts all unused pages except those computed with one of the named weights.
  void keep_only(std::span<const std::string_view> weights) { tree_.keep_only(weights); }

  [[nodiscard]] bool any_in_flight() const noexcept {
    return !running_.empty() || num_preempted_ > 0;
  }
  /// Returns whether `rule` lets any waiting sequence start.
  [[nodiscard]] bool any_admissible(const AdmissionRule& rule) const;
  [[nodiscard]] std::int64_t num_running() const noexcept {
    return static_cast<std::int64_t>(running_.size());
  }
  /// Returns how many sequences have not started, or were preempted.
  [[nodiscard]] std::int64_t num_waiting() const noexcept;
  /// Returns the number of pages that the largest sequence in any state may need.
  [[nodiscard]] std::int64_t largest_need() const noexcept;
  /// Returns the number of pages that running sequences and training passes hold.
  [[nodiscard]] std::int64_t num_pages_in_use() const noexcept {
    return pool_.num_pages() - tree_.num_available();
  }
  [[nodiscard]] const PrefixTree& tree() const noexcept { return tree_; }

private:
  using Sequences = std::vector<PlannedSequence*>;

  // The margin adapts: every preemption by `plan` widens it, unless it made room for a higher
  // priority, and every sequence that finishes narrows it, by amounts that balance at
  // `PlannerOptions::preempted_share`.
  static constexpr double kInitialMargin = 0.85;
  static constexpr double kMinMargin = -0.5;
  static constexpr double kMaxMargin = 4.0;
  static constexpr double kMarginStep = 0.02;  // per preemption

  enum class Start : std::uint8_t { kStarted, kWaits, kNoRoom };

  // The sequences of one priority that do not run.
  struct Level {
    Sequences preempted;  // in order of precedence
    FairQueue waiting;
  };

  class AdmissionForecast;

  // Where a sequence starts.
  struct Room {
    PrefixTree::Match match;
    std::int64_t shared = 0;  // pages of `match` that it shares
    std::int64_t pages = 0;   // that its tokens need
    std::int64_t taken = 0;   // pages that it takes into use
  };

  [[nodiscard]] std::int64_t pages_for(std::int64_t tokens) const noexcept {
    return (tokens + options_.page_tokens - 1) / options_.page_tokens;
  }
  [[nodiscard]] static PrefixTree::Sequence tree_sequence(const PlannedSequence& sequence);
  [[nodiscard]] Level& level_of(const PlannedSequence& sequence) {
    return levels_[index_of(sequence.priority)];
  }
  [[nodiscard]] bool runs_below(Priority priority) const noexcept {
    return !running_.empty() && running_.back()->priority < priority;
  }
  bool grow(PlannedSequence& sequence, IterationPlan& plan);
  void preempt_last();
  void displace_last(IterationPlan& plan);
  void admit(const AdmissionRule& rule, IterationPlan& plan);
  bool admit_preempted(Level& level, const AdmissionRule& rule, AdmissionForecast& forecast,
                       IterationPlan& plan);
  bool admit_waiting(Level& level, const AdmissionRule& rule, AdmissionForecast& forecast,
                     IterationPlan& plan);
  Start start(PlannedSequence& sequence, const AdmissionRule& rule, AdmissionForecast& forecast,
              IterationPlan& plan);
  Start find_room(PlannedSequence& sequence, const AdmissionRule& rule, AdmissionForecast& forecast,
                  IterationPlan& plan, Room& room);

  PagePool& pool_;
  PlannerOptions options_;
  PrefixTree tree_;
  LengthForecast lengths_;
  double margin_ = kInitialMargin;  // in standard deviations; see `PageForecast`
  std::uint64_t next_serial_ = 0;
  std::uint64_t next_start_ = 0;
  Sequences running_;  // in order of precedence
  std::array<Level, kNumPriorities> levels_;
  std::int64_t num_preempted_ = 0;
};

}  // namespace tidemill::engines
