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
#include "engines/train_engine.hpp"

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
  [[nodiscard]] PolicyVersion serving() const override { return inner_.serving(); }
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
class WatchedTrain final : public engines::TrainEngine {
public:
  WatchedTrain(engines::TrainEngine& inner, OnEngineCall on_call)
      : inner_(inner), on_call_(std::move(on_call)) {}
  Status begin_batch(engines::TokenLoss* loss, float temperature) override {
    on_call_("begin_batch");
    return inner_.begin_batch(loss, temperature);
  }
  Status add(engines::TrainSequence sequence) override {
    on_call_("add");
    return inner_.add(std::move(sequence));
  }
  [[nodiscard]] bool has_work() const override { return inner_.has_work(); }
  Result<engines::StepReport> step(const engines::StepBudget& budget) override {
    on_call_("train step");
    return inner_.step(budget);
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
  Result<engines::UpdateReport> update() override {
    on_call_("update");
    return inner_.update();
  }
  void abandon_batch() override {
    on_call_("abandon_batch");
    inner_.abandon_batch();
  }
  Result<engines::Snapshot> commit(PolicyVersion version) override {
    on_call_("commit");
    return inner_.commit(version);
  }
  [[nodiscard]] Result<TensorMap> optimizer_state() const override {
    on_call_("optimizer_state");
    return inner_.optimizer_state();
  }
  Status restore(const engines::Snapshot& snapshot, const TensorMap& state) override {
    on_call_("restore");
    return inner_.restore(snapshot, state);
  }

private:
  engines::TrainEngine& inner_;
  OnEngineCall on_call_;
};

}  // namespace tidemill::test
