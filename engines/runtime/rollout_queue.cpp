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
  num_deadlines_ += sequence->deadline.has_value() ? 1 : 0;
  const SampleId id = sequence->request.id;
  TIDEMILL_CHECK(sequences_.emplace(id, std::move(sequence)).second) << "queued twice " << id.value;
}

std::unique_ptr<RolloutSequence> RolloutQueue::extract(Sequences::iterator sequence) {
  auto taken = std::move(sequence->second);
  sequences_.erase(sequence);
  num_deadlines_ -= taken->deadline.has_value() ? 1 : 0;
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

bool RolloutQueue::any_overdue(TimePoint now) const {
  return std::ranges::any_of(sequences_, [now](const auto& entry) {
    return entry.second->deadline.has_value() && *entry.second->deadline <= now;
  });
}

std::vector<std::unique_ptr<RolloutSequence>> RolloutQueue::take_overdue(TimePoint now) {
  std::vector<std::unique_ptr<RolloutSequence>> overdue;
  for (auto it = sequences_.begin(); it != sequences_.end();) {
    const auto sequence = it++;
    if (sequence->second->deadline.has_value() && *sequence->second->deadline <= now) {
      planner_.remove(*sequence->second);
      overdue.push_back(extract(sequence));
    }
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
