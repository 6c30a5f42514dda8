// SPDX-License-Identifier: Apache-2.0
// Compares three AdamW steps of a training job with tests/golden/engine/training.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/rl/sft_token_loss.hpp"
#include "engines/rl/train_targets.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/golden.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kCases = 13;

struct Case {
  Backend backend;
  std::string model;
  std::string name;  // "full", "lora_r4" or "lora_r8"
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << backend_name(c.backend) << " " << c.model << " " << c.name;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend backend : {Backend::kCpu, Backend::kReference, Backend::kGuarded}) {
    for (const std::string& model : kGoldenModels) {
      if (model == "llama-linear") {
        continue;  // has no reference data for training
      }
      const json golden = golden_json("training/" + model + ".json");
      for (const auto& [name, content] : golden["cases"].items()) {
        all.push_back({backend, model, name});
      }
    }
  }
  return all;
}

class TrainGoldenTest : public ::testing::TestWithParam<Case> {
protected:
  TrainGoldenTest()
      : golden_(golden_json("training/" + GetParam().model + ".json")),
        content_(golden_["cases"][GetParam().name]),
        tensors_(golden_tensors("training/" + GetParam().model + ".safetensors")),
        runtime_(open()) {}

  [[nodiscard]] bool lora() const { return GetParam().name.starts_with("lora"); }

  // Returns the tensors "<case>.<kind>.<name>" by name.
  [[nodiscard]] TensorMap part(const std::string& kind) const {
    const std::string prefix = GetParam().name + "." + kind + ".";
    TensorMap found;
    for (const auto& [name, tensor] : tensors_) {
      if (name.starts_with(prefix)) {
        found[name.substr(prefix.size())] = tensor;
      }
    }
    return found;
  }

  std::unique_ptr<ModelRuntime> open() {
    const ModelFiles model = golden_model(GetParam().model);
    RuntimeOptions options = small_options(model.config, GetParam().backend, 512, Training::kYes);
    const json& hyper = golden_["hyper"];
    OptimizerOptions& optimizer = *options.optimizer;
    optimizer.adamw = {hyper["betas"][0], hyper["betas"][1], hyper["eps"]};
    optimizer.schedule.learning_rate = hyper["lr"];
    optimizer.weight_decay = hyper["weight_decay"];
    optimizer.weight_decay_exclude = DecayExclude::kNone;
    optimizer.max_grad_norm = hyper["clip_global_norm"];
    if (lora()) {
      AdapterFiles adapter;
      adapter.config.rank = content_["r"];
      adapter.config.alpha = content_["lora_alpha"];
      adapter.config.targets = {ModuleSelector::Kind::kAllLinear, {}, {}};
      adapter.modules = resolve_adapter(adapter.config, model.config, "golden").value();
      adapter.tensors = part("init");
      options.adapter = adapter;
    }
    return open_runtime(model, options).value();
  }

  // Trains one step in micro-batches of `budget` tokens.
  UpdateReport train(std::int64_t budget) {
    std::vector<TrainSequence> batch;
    for (const json& row : golden_["batch"]) {
      TrainSequence& sequence = batch.emplace_back();
      sequence.id = {batch.size()};
      sequence.ids = row["ids"].get<std::vector<std::int32_t>>();
      for (const json& mask : row["loss_mask"]) {
        sequence.response_mask.push_back(mask.get<double>() != 0.0 ? 1 : 0);
      }
    }
    SftTokenLoss loss(count_targets(batch));
    TrainingJob& engine = *runtime_->policy_job();
    EXPECT_TRUE(begin(engine, batch, &loss, 1.0F).ok());
    while (engine.has_work()) {
      EXPECT_TRUE(engine.advance({budget}).ok());
    }
    return update(engine).value();
  }

  // See the README of the reference data: after one step, only stable elements are exact.
  void expect_weights(const std::string& kind) {
    const Snapshot snapshot = publish(*runtime_->policy_job(), {0, 0, 1}).value();
    const TensorMap& weights = lora() ? snapshot.adapter : snapshot.base;
    const TensorMap expected = part(kind);
    const TensorMap stable = part("stable");
    ASSERT_EQ(weights.size(), expected.size());
    DifferenceSum all;
    DifferenceSum on_stable;
    std::size_t far = 0;
    for (const auto& [name, tensor] : weights) {
      const auto actual = tensor.data.as<float>();
      const auto values = values_of(expected, name);
      const auto mask = stable.at(name).data.as<std::uint8_t>();
      ASSERT_EQ(actual.size(), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        all.add(double{actual[i]}, double{values[i]});
        far += std::abs(double{actual[i]} - double{values[i]}) > 1e-3 ? 1 : 0;
        if (mask[i] != 0) {
          on_stable.add(double{actual[i]}, double{values[i]});
        }
      }
    }
    if (kind == "adamw1") {
      EXPECT_GT(on_stable.count(), all.count() / 2);
      EXPECT_LE(on_stable.result().max, 1e-4);
    }
    EXPECT_LE(all.result().rms, 1.5e-4);
    EXPECT_LE(static_cast<double>(far), 0.001 * static_cast<double>(all.count()));
    std::cout << "[ checked  ] " << GetParam() << ": " << weights.size() << " tensors after "
              << kind << ", rms " << all.result().rms << "\n";
  }

  json golden_;
  json content_;
  TensorMap tensors_;
  std::unique_ptr<ModelRuntime> runtime_;
};

void expect_near_relative(double actual, const json& expected, double tolerance) {
  EXPECT_NEAR(actual, expected.get<double>(), tolerance * std::abs(expected.get<double>()));
}

// Runs a whole training job. The tolerance for norms after the first step is loose, because they
// depend on weights that Adam moved by rounding noise. The test
// tests/engines/transformer/training_golden_test.cpp excludes this effect and checks them to 1e-4.
TEST_P(TrainGoldenTest, ThreeSteps) {
  const json& steps = content_["steps"];
  ASSERT_EQ(steps.size(), 4U);
  for (std::size_t step = 0; step < 3; ++step) {
    const UpdateReport report = train(step == 0 ? 4096 : 20);
    expect_near_relative(report.sums.at("loss"), steps[step]["loss"], step == 0 ? 1e-5 : 1e-3);
    expect_near_relative(report.gradient_norm, steps[step]["grad_norm"], step == 0 ? 1e-4 : 1e-3);
    EXPECT_EQ(report.optimizer_step, static_cast<std::int64_t>(step) + 1);
    EXPECT_EQ(report.learning_rate, golden_["hyper"]["lr"].get<double>());
    if (step == 0 && lora()) {
      expect_weights("adamw1");
    }
  }
  expect_weights("adamw3");
  expect_near_relative(train(4096).sums.at("loss"), steps[3]["loss"], 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Cases, TrainGoldenTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) {
                           std::string name = backend_name(test.param.backend) + "_" +
                                              test.param.model + "_" + test.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(TrainGoldenFilesTest, AllCasesAreTested) {
  EXPECT_EQ(cases().size(), 3 * kCases);
}

}  // namespace
}  // namespace tidemill::engines
