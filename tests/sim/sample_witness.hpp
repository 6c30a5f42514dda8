// SPDX-License-Identifier: Apache-2.0
// Checks the samples that are trained on: each must have the prompt of its group, its own reward
// and advantage, and no token that is too stale (I1, I2).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/recorder/messages.hpp"
#include "engines/reward_engine.hpp"
#include "tests/sim/simulated_parts.hpp"

namespace tidemill::test {

/// Recomputes what a trained batch records of its samples, and compares.
class SampleWitness {
public:
  using Violate = std::function<void(const std::string&)>;

  SampleWitness(const SimulationOptions& options, Violate violate);

  /// Checks the samples of one trained step.
  void check_batch(const actors::StepRecord& record);

  [[nodiscard]] std::uint64_t rewards_checked() const { return rewards_checked_; }

private:
  struct LastReward : engines::RewardSink {
    void on_reward(engines::RewardResult result) override { last = std::move(result); }
    engines::RewardResult last;
  };

  void check_versions(const actors::StepRecord& record, const actors::SampleRecord& sample) const;
  void check_prompt(const actors::SampleRecord& sample);
  void check_reward(const actors::SampleRecord& sample);
  void check_advantages(std::vector<const actors::SampleRecord*> group) const;

  SimulationOptions options_;
  Violate violate_;
  SimulatedPrompts reader_;
  std::vector<actors::Prompt> prompts_;  // by group, as far as groups have been seen
  std::unique_ptr<engines::RewardEngine> rewards_;
  std::uint64_t rewards_checked_ = 0;
};

}  // namespace tidemill::test
