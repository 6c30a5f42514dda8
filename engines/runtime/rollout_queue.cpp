// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/rollout_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {

std::unique_ptr<RolloutSequence> make_sequence(RolloutRequest request, RolloutSink& sink) {
  auto sequence = std::make_unique<RolloutSequence>();
  sequence->tokens = request.prompt_ids;
  sequence->prompt_length = static_cast<std::int64_t>(request.prompt_ids.size());
  sequence->max_new_tokens = request.max_new_tokens;
  sequence->min_step = request.min_step;
  // Scores of prompt tokens require that every prompt token is computed.
  sequence->prefix_use =
      request.prompt_logprobs || request.prompt_logits ? PrefixUse::kNone : PrefixUse::kShared;
  sequence->priority = request.priority;
  sequence->tenant = request.tenant;
  sequence->cache_salt = request.cache_salt;
  if (request.constraint.constraint != nullptr) {
    sequence->constraint.emplace(request.constraint.constraint);
  }
  sequence->sink = &sink;
  sequence->request = std::move(request);
  return sequence;
}

const Adapter* adapter_of(const RolloutSequence& sequence, const LaidOutWeights& policy) noexcept {
  return sequence.adapter != nullptr ? sequence.adapter->adapter.get() : policy.adapter.get();
}

std::int64_t max_cached_tokens(const RolloutRequest& request) noexcept {
  return static_cast<std::int64_t>(request.prompt_ids.size()) +
         std::max(request.max_new_tokens - 1, 0);
}

void RolloutQueue::push(std::unique_ptr<RolloutSequence> sequence) {
  planner_.submit(*sequence);
  const SampleId id = sequence->request.id;
  TIDEMILL_CHECK(sequences_.emplace(id, std::move(sequence)).second) << "queued twice " << id.value;
}

std::unique_ptr<RolloutSequence> RolloutQueue::extract(Sequences::iterator sequence) {
  auto taken = std::move(sequence->second);
  sequences_.erase(sequence);
  if (taken->deadline.has_value()) {
    deadlines_.erase({*taken->deadline, taken->request.id});
  }
  return taken;
}

std::unique_ptr<RolloutSequence> RolloutQueue::take(SampleId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) {
    return nullptr;
  }
  planner_.remove(*found->second);
  return extract(found);
}

std::unique_ptr<RolloutSequence> RolloutQueue::take_finished(SampleId id) {
  const auto found = sequences_.find(id);
  TIDEMILL_CHECK(found != sequences_.end()) << "no request " << id.value;
  planner_.finish(*found->second);
  return extract(found);
}

void RolloutQueue::set_deadline(RolloutSequence& sequence, TimePoint deadline) {
  TIDEMILL_CHECK(deadlines_.emplace(deadline, sequence.request.id).second);
  sequence.deadline = deadline;
}

std::vector<std::unique_ptr<RolloutSequence>> RolloutQueue::take_overdue(TimePoint now) {
  std::vector<std::unique_ptr<RolloutSequence>> overdue;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    overdue.push_back(take(deadlines_.begin()->second));
  }
  std::ranges::sort(overdue, {}, [](const auto& sequence) { return sequence->serial; });
  return overdue;
}

RolloutPlan RolloutQueue::plan(const IterationBudget& budget, const AdmissionRule& rule) {
  IterationPlan planned = planner_.plan(budget, rule);
  RolloutPlan plan;
  plan.copies = std::move(planned.copies);
  plan.cached_tokens = planned.cached_tokens;
  plan.preemptions = planned.preemptions;
  for (const PlannedChunk& chunk : planned.chunks) {
    plan.chunks.push_back({static_cast<RolloutSequence*>(chunk.sequence), chunk.num_tokens});
  }
  for (PlannedSequence* sequence : planned.started) {
    plan.started.push_back(static_cast<RolloutSequence*>(sequence));
  }
  return plan;
}

void RolloutQueue::advance(const RolloutChunk& chunk, HiddenRow row) {
  planner_.advance({chunk.sequence, chunk.num_tokens}, std::move(row));
}

}  // namespace tidemill::engines
