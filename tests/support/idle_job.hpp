// SPDX-License-Identifier: Apache-2.0
// A training job that does nothing. Tests override what they need.
#pragma once

#include <span>
#include <vector>

#include "engines/training_job.hpp"

namespace tidemill::test {

/// A training job without work. All calls succeed, except those that return results.
class IdleJob : public engines::TrainingJob {
public:
  Status forward(engines::TrainBatch /*batch*/) override { return {}; }
  Status forward_backward(engines::TrainBatch /*batch*/, engines::TokenLoss& /*loss*/) override {
    return {};
  }
  Status optim_step(const engines::OptimStep& /*step*/) override { return {}; }
  Status save(PolicyVersion /*version*/) override { return {}; }
  Status capture() override { return {}; }
  bool has_work() const override { return false; }
  Result<engines::StepReport> advance(const engines::StepBudget& /*budget*/) override {
    return engines::StepReport();
  }
  void cancel() override {}
  Result<std::vector<float>> logprobs(SampleId /*id*/) const override {
    return Status(Errc::kUnimplemented, "");
  }
  const engines::UpdateReport& last_update() const override { return last_update_; }
  engines::Snapshot take_snapshot() override { return {}; }
  TensorMap take_optimizer_state() override { return {}; }
  Result<std::vector<std::vector<float>>> score(
      const engines::Snapshot& /*weights*/, std::span<const engines::TrainSequence> /*sequences*/,
      float /*temperature*/) override {
    return Status(Errc::kUnimplemented, "");
  }
  Status load(const engines::Snapshot& /*snapshot*/, const TensorMap& /*state*/) override {
    return {};
  }

private:
  engines::UpdateReport last_update_;
};

}  // namespace tidemill::test
