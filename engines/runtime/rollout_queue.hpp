// SPDX-License-Identifier: Apache-2.0
// Requests from submission to their last token: the planner's sequences, and who wants them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/adapter_table.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/weight_shelf.hpp"
#include "engines/sampling/stop_matcher.hpp"
#include "engines/scheduler/iteration_planner.hpp"

namespace tidemill::engines {

/// A request and how far it is.
struct RolloutSequence : PlannedSequence {
  RolloutRequest request;
  RolloutSink* sink = nullptr;
  std::shared_ptr<const AdapterSlot> slot;       // null: the policy's weights
  std::shared_ptr<const ServedAdapter> adapter;  // of the slot, once it has started
  std::optional<StopMatcher> stops;              // absent: no stop strings
  std::optional<TimePoint> deadline;             // absent: none
  TokenChain chain;                              // as far as its rows have been kept
  std::int64_t num_scored = 0;                   // prompt tokens whose scores are below
  RolloutResult result;  // all but response_ids and finish_reason, as far as it is

  [[nodiscard]] std::span<const std::int32_t> response() const {
    return std::span(tokens).subspan(request.prompt_ids.size());
  }
};

/// Returns the sequence that generates for `request`, with nothing done yet.
[[nodiscard]] std::unique_ptr<RolloutSequence> make_sequence(RolloutRequest request,
                                                             RolloutSink& sink);

/// Returns the adapter that computes a sequence which has started, or null; `policy` are the
/// weights of those without a named one.
[[nodiscard]] const Adapter* adapter_of(const RolloutSequence& sequence,
                                        const LaidOutWeights& policy) noexcept;

/// Returns the most tokens of `request` that are ever in the cache: the last one is not fed back.
[[nodiscard]] std::int64_t most_cached_tokens(const RolloutRequest& request) noexcept;

/// A sequence's next tokens to compute. None: its next token is drawn from `sequence->row`.
struct RolloutChunk {
  RolloutSequence* sequence = nullptr;
  std::int64_t num_tokens = 0;
};

/// One iteration; see `IterationPlan`.
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
  /// `pool` must outlive it.
  RolloutQueue(PagePool& pool, const PlannerOptions& options) : planner_(pool, options) {}

  void push(std::unique_ptr<RolloutSequence> sequence);
  [[nodiscard]] bool contains(SampleId id) const { return sequences_.contains(id); }
  /// Takes a request out, wherever it is; its pages are given back. Null: there is none.
  [[nodiscard]] std::unique_ptr<RolloutSequence> take(SampleId id);
  /// The same for one that has ended by itself or at its limit. Requires that it is there.
  [[nodiscard]] std::unique_ptr<RolloutSequence> take_finished(SampleId id);
  /// Takes out those whose deadline has passed at `now`, oldest first.
  [[nodiscard]] std::vector<std::unique_ptr<RolloutSequence>> take_overdue(TimePoint now);
  [[nodiscard]] bool any_overdue(TimePoint now) const;
  /// Returns whether any request has a deadline.
  [[nodiscard]] bool any_deadline() const noexcept { return num_deadlines_ > 0; }

  [[nodiscard]] RolloutPlan plan(const IterationBudget& budget, const AdmissionRule& rule);

  /// Tells that a chunk has been computed; see `IterationPlanner::advance`.
  void advance(const RolloutChunk& chunk, HiddenRow row);

  [[nodiscard]] IterationPlanner& planner() noexcept { return planner_; }
  [[nodiscard]] const IterationPlanner& planner() const noexcept { return planner_; }

private:
  using Sequences = std::map<SampleId, std::unique_ptr<RolloutSequence>>;

  std::unique_ptr<RolloutSequence> extract(Sequences::iterator sequence);

  IterationPlanner planner_;
  Sequences sequences_;
  std::int64_t num_deadlines_ = 0;
};

}  // namespace tidemill::engines
