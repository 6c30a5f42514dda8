// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/weighted_engine.hpp"

namespace tidemill::engines {

void WeightedRewardEngine::PartSink::on_reward(RewardResult result) {
  WeightedRewardEngine& owner = owner_;
  const std::uint64_t key = key_;
  Pending& pending = owner.pending_.at(key);
  pending.rewards[part_] = result.reward;
  pending.errors[part_] = std::move(result.error);
  if (--pending.missing == 0) {
    owner.deliver(key);  // destroys this sink
  }
}

void WeightedRewardEngine::deliver(std::uint64_t key) {
  const Pending pending = std::move(pending_.extract(key).mapped());
  RewardResult result;
  result.id = pending.id;
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    result.reward += parts_[part].weight * pending.rewards[part];
    if (result.error.empty() && !pending.errors[part].empty()) {
      result.error = parts_[part].name + ": " + pending.errors[part];
    }
  }
  if (result.error.empty()) {
    result.parts = pending.rewards;
  } else {
    result.reward = 0.0;
  }
  pending.sink->on_reward(std::move(result));
}

Status WeightedRewardEngine::submit(RewardRequest request, RewardSink& sink) {
  TIDEMILL_RETURN_IF_ERROR(given_up_);
  const std::uint64_t key = next_key_++;
  Pending& pending = pending_[key];
  pending.id = request.id;
  pending.sink = &sink;
  pending.missing = parts_.size();
  pending.rewards.resize(parts_.size());
  pending.errors.resize(parts_.size());
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    pending.sinks.push_back(std::make_unique<PartSink>(*this, key, part));
    const Status accepted = parts_[part].engine->submit(request, *pending.sinks.back());
    if (!accepted.ok()) {
      if (part == 0) {
        pending_.erase(key);
        return accepted.with_context(parts_.front().name);
      }
      // Earlier parts already hold the request, so the error becomes part of its result.
      pending.errors[part] = accepted.message();
      --pending.missing;
    }
  }
  return {};
}

Status WeightedRewardEngine::step(Duration patience) {
  const Duration share = patience / static_cast<Duration::rep>(parts_.size());
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    if (!parts_[part].engine->has_work()) {
      continue;
    }
    const Status stepped = parts_[part].engine->step(share);
    // The other parts are still stepped, because they hold requests for which the part that gave up
    // has already delivered errors.
    if (!stepped.ok() && given_up_.ok()) {
      given_up_ = stepped.with_context(parts_[part].name);
    }
  }
  return given_up_;
}

RewardStats WeightedRewardEngine::stats() const {
  RewardStats sum;
  for (const RewardPart& part : parts_) {
    const RewardStats stats = part.engine->stats();
    sum.starts += stats.starts;
    sum.ends += stats.ends;
    sum.hangs += stats.hangs;
    sum.bad_replies += stats.bad_replies;
    sum.unknown_ids += stats.unknown_ids;
    sum.garbage_lines += stats.garbage_lines;
  }
  return sum;
}

}  // namespace tidemill::engines
