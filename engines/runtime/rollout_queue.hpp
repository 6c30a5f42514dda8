// SPDX-License-Identifier: Apache-2.0
// Owns requests from submission to their last token, and schedules them with the planner.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "engines/constraint/constraint.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/adapter_table.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/sampling/stop_matcher.hpp"
#include "engines/scheduler/iteration_planner.hpp"

namespace tidemill::engines {

/// A request and its progress.
struct RolloutSequence : PlannedSequence {
  RolloutRequest request;
  RolloutSink* sink = nullptr;
  std::shared_ptr<const AdapterSlot> slot;       // null: the policy generates
  std::shared_ptr<const ServedAdapter> adapter;  // the version taken from the slot at its start
  std::optional<StopMatcher> stops;              // absent if there are no stop strings
  std::optional<ConstraintState> constraint;     // after the response so far; absent without one
  std::optional<TimePoint> deadline;             // absent before its start or without time limit
  TokenChain chain;                              // up to the last row that was kept
  std::int64_t num_scored = 0;                   // prompt tokens whose scores are in `result`
  RolloutResult result;                          // incomplete until the sequence ends

  [[nodiscard]] std::span<const std::int32_t> response() const {
    return std::span(tokens).subspan(request.prompt_ids.size());
  }
};

/// Returns a new sequence for `request`.
[[nodiscard]] std::unique_ptr<RolloutSequence> make_sequence(RolloutRequest request,
                                                             RolloutSink& sink);

/// Returns the adapter that computes a sequence that has started, or null. Sequences without a
/// named adapter use the adapter of `policy`.
[[nodiscard]] const Adapter* adapter_of(const RolloutSequence& sequence,
                                        const LaidOutWeights& policy) noexcept;

/// Returns the maximum number of tokens of `request` in the cache. The last one is never fed back.
[[nodiscard]] std::int64_t max_cached_tokens(const RolloutRequest& request) noexcept;

/// A sequence's next tokens to compute. If there are none, its next token is sampled from
/// `sequence->row`.
struct RolloutChunk {
  RolloutSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};

/// The plan of one iteration; see `IterationPlan`.
struct RolloutPlan {
  std::vector<PageCopy> copies;
  std::vector<RolloutChunk> chunks;
  std::vector<RolloutSequence*> started;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
};

/// Owns the requests that a planner schedules, by id.
class RolloutQueue {
public:
  /// `pool` must outlive the queue.
  RolloutQueue(PagePool& pool, const PlannerOptions& options) : planner_(pool, options) {}

  void push(std::unique_ptr<RolloutSequence> sequence);
  [[nodiscard]] bool contains(SampleId id) const { return sequences_.contains(id); }
  /// Removes a request in any state, releases its pages and returns it. Null if there is none.
  [[nodiscard]] std::unique_ptr<RolloutSequence> take(SampleId id);
  /// Does the same for a request that ended on its own or at its limit, which must exist. The
  /// planner learns from its length.
  [[nodiscard]] std::unique_ptr<RolloutSequence> take_finished(SampleId id);
  /// Sets the deadline of `sequence`, a request of this queue without a deadline.
  void set_deadline(RolloutSequence& sequence, TimePoint deadline);
  /// Removes and returns the requests whose deadline has passed at `now`, oldest first.
  [[nodiscard]] std::vector<std::unique_ptr<RolloutSequence>> take_overdue(TimePoint now);
  /// Returns whether any request has a deadline.
  [[nodiscard]] bool any_deadline() const noexcept { return !deadlines_.empty(); }

  [[nodiscard]] RolloutPlan plan(const IterationBudget& budget, const AdmissionRule& rule);

  /// Reports that a chunk has been computed; see `IterationPlanner::advance`.
  void advance(const RolloutChunk& chunk, HiddenRow row);

  [[nodiscard]] IterationPlanner& planner() noexcept { return planner_; }
  [[nodiscard]] const IterationPlanner& planner() const noexcept { return planner_; }

private:
  using Sequences = std::map<SampleId, std::unique_ptr<RolloutSequence>>;

  std::unique_ptr<RolloutSequence> extract(Sequences::iterator sequence);

  IterationPlanner planner_;
  Sequences sequences_;
  std::set<std::pair<TimePoint, SampleId>> deadlines_;
};

}  // namespace tidemill::engines
