// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/rule_engine.hpp"

#include <string>

namespace tidemill::engines {
namespace {

// Keeps a step short even if every match of a pattern reaches its limit.
constexpr int kSamplesPerStep = 64;

}  // namespace

Status RuleRewardEngine::submit(RewardRequest request, RewardSink& sink) {
  queue_.push_back({std::move(request), &sink});
  return {};
}

Status RuleRewardEngine::step(Duration /*patience*/) {
  for (int scored = 0; scored < kSamplesPerStep && !queue_.empty(); ++scored) {
    const Pending next = std::move(queue_.front());
    queue_.pop_front();  // before the sink is called, since it may call `submit`
    RewardResult result;
    result.id = next.request.id;
    const Result<double> reward = rule_->score(next.request);
    if (reward.ok()) {
      result.reward = reward.value();
    } else {
      result.error = "sample " + std::to_string(result.id.value) + ": " + reward.status().message();
    }
    next.sink->on_reward(std::move(result));
  }
  return {};
}

}  // namespace tidemill::engines
