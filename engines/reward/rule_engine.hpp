// SPDX-License-Identifier: Apache-2.0
// A reward engine that scores with a rule.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>

#include "engines/reward/rules.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Scores requests in the order of their submission, at most 64 in each step.
class RuleRewardEngine final : public RewardEngine {
public:
  explicit RuleRewardEngine(std::unique_ptr<RewardRule> rule) : rule_(std::move(rule)) {}

  [[nodiscard]] Status submit(RewardRequest request, RewardSink& sink) override;
  [[nodiscard]] bool has_work() const override { return !queue_.empty(); }
  [[nodiscard]] Status step(Duration patience) override;

private:
  struct Pending {
    RewardRequest request;
    RewardSink* sink;
  };

  std::unique_ptr<RewardRule> rule_;
  std::deque<Pending> queue_;
};

}  // namespace tidemill::engines
