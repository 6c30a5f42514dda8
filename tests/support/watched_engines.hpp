// SPDX-License-Identifier: Apache-2.0
// Engines that report every call which may compute, for tests of where engines are called.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engines/rollout_engine.hpp"
#include "engines/training_job.hpp"

namespace tidemill::test {

/// Gets the name of each call, on the thread of the call.
using OnEngineCall = std::function<void(const std::string&)>;

/// Passes all calls to another engine.
class WatchedRollout final : public engines::RolloutEngine {
public:
  WatchedRollout(engines::RolloutEngine& inner, OnEngineCall on_call)
      : inner_(inner), on_call_(std::move(on_call)) {}
  Status submit(engines::RolloutRequest request, engines::RolloutSink& sink) override {
    on_call_("submit");
    return inner_.submit(std::move(request), sink);
  }
  void cancel(SampleId id) override {
    on_call_("cancel");
    inner_.cancel(id);
  }
  Status load(engines::Snapshot snapshot, engines::WeightArrival arrival) override {
    on_call_("load");
    return inner_.load(std::move(snapshot), arrival);
  }
  [[nodiscard]] PolicyVersion serving_version() const override { return inner_.serving_version(); }
  [[nodiscard]] bool has_work() const override { return inner_.has_work(); }
  Result<engines::StepReport> step(const engines::StepBudget& budget) override {
    on_call_("rollout step");
    return inner_.step(budget);
  }

private:
  engines::RolloutEngine& inner_;
  OnEngineCall on_call_;
};

/// Passes all calls to another engine.
class WatchedTrain final : public engines::TrainingJob {
public:
  WatchedTrain(engines::TrainingJob& inner, OnEngineCall on_call)
      : inner_(inner), on_call_(std::move(on_call)) {}
  Status forward(engines::TrainBatch batch) override {
    on_call_("forward");
    return inner_.forward(std::move(batch));
  }
  Status forward_backward(engines::TrainBatch batch, engines::TokenLoss& loss) override {
    on_call_("forward_backward");
    return inner_.forward_backward(std::move(batch), loss);
  }
  Status optim_step(const engines::OptimStep& step) override {
    on_call_("optim_step");
    return inner_.optim_step(step);
  }
  Status save(PolicyVersion version) override {
    on_call_("save");
    return inner_.save(version);
  }
  [[nodiscard]] bool has_work() const override { return inner_.has_work(); }
  Result<engines::StepReport> advance(const engines::StepBudget& budget) override {
    on_call_("advance");
    return inner_.advance(budget);
  }
  [[nodiscard]] Result<std::vector<float>> logprobs(SampleId id) const override {
    return inner_.logprobs(id);
  }
  Result<std::vector<std::vector<float>>> score(const engines::Snapshot& weights,
                                                std::span<const engines::TrainSequence> sequences,
                                                float temperature) override {
    on_call_("score");
    return inner_.score(weights, sequences, temperature);
  }
  void cancel() override {
    on_call_("job cancel");
    inner_.cancel();
  }
  [[nodiscard]] const engines::UpdateReport& last_update() const override {
    return inner_.last_update();
  }
  engines::Snapshot take_snapshot() override { return inner_.take_snapshot(); }
  [[nodiscard]] Status capture() override {
    on_call_("capture");
    return inner_.capture();
  }
  TensorMap take_optimizer_state() override { return inner_.take_optimizer_state(); }
  Status load(const engines::Snapshot& snapshot, const TensorMap& state) override {
    on_call_("job load");
    return inner_.load(snapshot, state);
  }

private:
  engines::TrainingJob& inner_;
  OnEngineCall on_call_;
};

}  // namespace tidemill::test
