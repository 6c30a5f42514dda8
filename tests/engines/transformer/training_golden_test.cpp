// SPDX-License-Identifier: Apache-2.0
// Compares losses, gradients and three optimizer steps with tests/golden/engine/training, for all
// parameters and for LoRA.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/optimizer/adamw.hpp"
#include "engines/optimizer/gradient_norm.hpp"
#include "engines/transformer/gradients.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_harness.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kCases = 13;
constexpr std::size_t kModels = 6;

struct Case {
  Backend backend;
  std::string model;
  std::string name;  // "full", "lora_r4", "lora_r8"; empty: the bare model
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.backend.name << " " << c.model << " " << c.name;
}

std::string test_name(const Case& c) {
  std::string name = c.backend.name + "_" + c.model + (c.name.empty() ? "" : "_" + c.name);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::vector<std::string> trained_models() {
  std::vector<std::string> models;
  for (const std::string& model : kGoldenModels) {
    if (std::filesystem::exists(golden_path("training/" + model + ".json"))) {
      models.push_back(model);
    }
  }
  return models;
}

std::vector<Case> base_cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    for (const std::string& model : trained_models()) {
      all.push_back({backend, model, ""});
    }
  }
  return all;
}

std::vector<Case> trained_cases() {
  std::vector<Case> all;
  for (const Case& base : base_cases()) {
    const json golden = golden_json("training/" + base.model + ".json");
    for (const auto& [name, content] : golden["cases"].items()) {
      all.push_back({base.backend, base.model, name});
    }
  }
  return all;
}

// Returns the batch of `golden` with the gradients of one of its losses, which `objective`
// computes.
std::vector<TestSequence> batch_of(const json& golden, const std::string& loss) {
  double targets = 0.0;
  for (const json& row : golden["batch"]) {
    for (const json& mask : row["loss_mask"]) {
      targets += mask.get<double>();
    }
  }
  std::vector<TestSequence> sequences;
  for (const json& row : golden["batch"]) {
    TestSequence& sequence = sequences.emplace_back();
    sequence.ids = row["ids"].get<std::vector<std::int32_t>>();
    for (std::size_t t = 0; t < sequence.ids.size(); ++t) {
      const double weight = loss == "sft" ? row["loss_mask"][t].get<double>() / targets
                                          : row["coef"][t].get<double>();
      const double entropy_weight = loss == "pg_ent" ? row["ent_coef"][t].get<double>() : 0.0;
      sequence.mask.push_back(1);
      sequence.dlogprobs.push_back(static_cast<float>(-weight));
      sequence.dentropies.push_back(static_cast<float>(-entropy_weight));
    }
  }
  return sequences;
}

void expect_scores(const TokenScores& scores, const json& logprobs, const json& entropies) {
  std::size_t row = 0;
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    for (std::size_t t = 0; t < logprobs[i].size(); ++t, ++row) {
      if (t > 0) {
        EXPECT_NEAR(double{scores.logprobs[row]}, logprobs[i][t].get<double>(), 2e-4) << i << t;
        EXPECT_NEAR(double{scores.entropies[row]}, entropies[i][t].get<double>(), 2e-4) << i << t;
      }
    }
  }
  EXPECT_EQ(row, scores.logprobs.size());
}

void expect_near_relative(double actual, const json& expected, double tolerance) {
  EXPECT_NEAR(actual, expected.get<double>(), tolerance * std::abs(expected.get<double>()));
}

// AdamW with the hyperparameters of the fixtures and weight decay on every tensor.
class Optimizer {
public:
  Optimizer(const json& hyper, std::size_t size) : hyper_(hyper), first_(size), second_(size) {}

  void step(std::span<const float> gradient, std::span<float> weights) {
    const double norm = std::sqrt(squared_norm(gradient));
    const AdamWOptions options{hyper_["betas"][0], hyper_["betas"][1], hyper_["eps"]};
    const AdamWStep step{hyper_["lr"], hyper_["weight_decay"],
                         clip_scale(norm, hyper_["clip_global_norm"]), ++steps_};
    adamw_update<float>(adamw_factors<float>(options, step), {weights, gradient, first_, second_});
  }

private:
  json hyper_;
  std::int64_t steps_ = 0;
  std::vector<float> first_;
  std::vector<float> second_;
};

class TrainingGoldenTest : public ::testing::TestWithParam<Case> {
protected:
  TrainingGoldenTest()
      : golden_(golden_json("training/" + GetParam().model + ".json")),
        tensors_(golden_tensors("training/" + GetParam().model + ".safetensors")),
        model_(golden_model(GetParam().model)),
        harness_(GetParam().backend, model_.config, model_.tensors) {
    if (lora()) {
      const json& content = golden_["cases"][GetParam().name];
      for (const LinearModule& module : linear_modules(model_.config)) {
        spec_.push_back(lora_module(module.path, module.in_features, module.out_features,
                                    content["r"], content["scale"]));
      }
    }
    if (!GetParam().name.empty()) {
      weights_ =
          ParameterSet::create(lora() ? adapter_shapes(spec_) : expected_tensors(model_.config),
                               *harness_.ops)
              .value();
      EXPECT_TRUE(weights_.load(lora() ? part("init") : model_.tensors).ok());
    }
  }

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

  [[nodiscard]] std::vector<float> values_in(const ParameterSet& set,
                                             const ParameterSet::Entry& entry) const {
    return read_values(*harness_.ops, set.values(entry));
  }

  [[nodiscard]] Gradients gradients() const {
    return lora() ? Gradients::for_adapter(model_.config, spec_, *harness_.ops).value()
                  : Gradients::for_model(model_.config, *harness_.ops).value();
  }

  // Scores the batch under `weights_`. Adds gradients if `gradients` is not null.
  TokenScores run(const std::vector<TestSequence>& batch, Gradients* gradients) {
    if (!lora()) {
      harness_.load(weights_.to_tensors(DType::kF32));
      return harness_.train(batch, nullptr, {}, gradients);
    }
    const auto adapter = harness_.adapter(spec_, weights_.to_tensors(DType::kF32));
    return harness_.train(batch, adapter.get(), {}, gradients);
  }

  void expect_gradients(const std::string& loss, const std::string& kind) {
    Gradients computed = gradients();
    run(batch_of(golden_, loss), &computed);
    const ParameterSet& sums = computed.collect();
    const TensorMap expected = part(kind);
    ASSERT_EQ(expected.size(), sums.entries().size());
    double worst = 0.0;
    for (const ParameterSet::Entry& entry : sums.entries()) {
      const std::span<const float> values = values_of(expected, entry.name);
      float largest = 0.0F;
      for (const float value : values) {
        largest = std::max(largest, std::abs(value));
      }
      const double relative =
          difference(values_in(sums, entry), values).max / std::max(double{largest}, 1e-30);
      EXPECT_LE(relative, 1e-4) << entry.name;
      worst = std::max(worst, relative);
    }
    std::cout << "[ checked  ] " << GetParam() << ": " << expected.size() << " gradients of "
              << loss << ", worst " << worst << "\n";
  }

  // Returns the gradients of the first step, in which golden values replace those that are almost
  // zero (`stable` is 0). Adam's first step is nearly the sign of a gradient, so rounding noise
  // would decide those weights. A single one (llama-tiny, lora_r4: o_proj.lora_A[48] of layer 0)
  // changes later norms by more than 1e-4 in any float32 implementation.
  [[nodiscard]] std::vector<float> without_noise(const ParameterSet& sums) const {
    const TensorMap golden = part(lora() ? "grad_sft" : "grad");
    const TensorMap stable = part("stable");
    std::vector<float> gradient;
    std::size_t replaced = 0;
    for (const ParameterSet::Entry& entry : sums.entries()) {
      const std::vector<float> values = values_in(sums, entry);
      const std::span<const float> given = values_of(golden, entry.name);
      const auto mask = stable.at(entry.name).data.as<std::uint8_t>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        gradient.push_back(mask[i] != 0 ? values[i] : given[i]);
        replaced += mask[i] != 0 ? 0 : 1;
      }
    }
    EXPECT_EQ(std::ssize(gradient), sums.values().size);
    std::cout << "[ checked  ] " << GetParam() << ": " << replaced << " of " << gradient.size()
              << " gradients are below the rounding noise\n";
    return gradient;
  }

  // Compares the weights after 1 or 3 steps. If a gradient is almost zero, Adam turns its rounding
  // noise into a full step. After one step, only stable elements must therefore agree to 1e-4.
  void expect_weights(const std::string& kind) {
    const TensorMap expected = part(kind);
    const TensorMap stable = part("stable");
    ASSERT_EQ(expected.size(), weights_.entries().size());
    ASSERT_EQ(stable.size(), expected.size());
    DifferenceSum all;
    DifferenceSum steady;
    std::size_t far = 0;
    for (const ParameterSet::Entry& entry : weights_.entries()) {
      const std::vector<float> actual = values_in(weights_, entry);
      const std::span<const float> values = values_of(expected, entry.name);
      const auto mask = stable.at(entry.name).data.as<std::uint8_t>();
      ASSERT_EQ(mask.size(), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        all.add(double{actual[i]}, double{values[i]});
        far += std::abs(double{actual[i]} - double{values[i]}) > 1e-3 ? 1 : 0;
        if (mask[i] != 0) {
          steady.add(double{actual[i]}, double{values[i]});
        }
      }
    }
    EXPECT_GT(steady.count(), all.count() / 2);
    if (kind == "adamw1") {
      EXPECT_LE(steady.result().max, 1e-4);
    }
    EXPECT_LE(all.result().rms, 1.5e-4);
    EXPECT_LE(static_cast<double>(far), 0.001 * static_cast<double>(all.count()));
    std::cout << "[ checked  ] " << GetParam() << ": " << expected.size() << " weights after "
              << kind << ", stable max " << steady.result().max << ", rms " << all.result().rms
              << "\n";
  }

  json golden_;
  TensorMap tensors_;
  ModelFiles model_;
  ModelHarness harness_;
  AdapterSpec spec_;
  ParameterSet weights_;
};

using TrainingGoldenBaseTest = TrainingGoldenTest;

TEST_P(TrainingGoldenBaseTest, LossesLogprobsAndEntropies) {
  json logprobs;
  json entropies;
  for (const json& row : golden_["batch"]) {
    logprobs.push_back(row["logprobs"]);
    entropies.push_back(row["entropies"]);
  }
  for (const std::string loss : {"sft", "pg", "pg_ent"}) {
    const auto batch = batch_of(golden_, loss);
    const TokenScores scores = harness_.train(batch, nullptr, {}, nullptr);
    expect_scores(scores, logprobs, entropies);
    expect_near_relative(objective(batch, scores), golden_["base_losses"][loss], 1e-5);
  }
}

TEST_P(TrainingGoldenTest, LossesLogprobsAndEntropies) {
  const json& content = golden_["cases"][GetParam().name];
  const std::vector<std::string> losses =
      lora() ? std::vector<std::string>{"sft", "pg", "pg_ent"} : std::vector<std::string>{"sft"};
  for (const std::string& loss : losses) {
    const auto batch = batch_of(golden_, loss);
    const TokenScores scores = run(batch, nullptr);
    if (lora()) {
      expect_scores(scores, content["logprobs"], content["entropies"]);
    }
    expect_near_relative(objective(batch, scores), content[loss + "_loss"], 1e-5);
  }
}

TEST_P(TrainingGoldenTest, Gradients) {
  if (!lora()) {
    expect_gradients("sft", "grad");
    return;
  }
  expect_gradients("sft", "grad_sft");
  expect_gradients("pg", "grad_pg");
  expect_gradients("pg_ent", "grad_pg_ent");
}

TEST_P(TrainingGoldenTest, ThreeOptimizerSteps) {
  const json& steps = golden_["cases"][GetParam().name]["steps"];
  ASSERT_EQ(steps.size(), 4U);
  const auto batch = batch_of(golden_, "sft");
  std::vector<float> weights = weights_.to_floats();
  Optimizer optimizer(golden_["hyper"], weights.size());
  for (std::size_t step = 0; step < 3; ++step) {
    Gradients computed = gradients();
    expect_near_relative(objective(batch, run(batch, &computed)), steps[step]["loss"],
                         step == 0 ? 1e-5 : 1e-3);
    const ParameterSet& sums = computed.collect();
    const std::vector<float> gradient = sums.to_floats();
    const double squares = squared_norm(std::span<const float>(gradient));
    EXPECT_EQ(harness_.ops->squared_norm(sums.values()).value(), squares);
    expect_near_relative(std::sqrt(squares), steps[step]["grad_norm"], 1e-4);
    optimizer.step(step == 0 ? without_noise(sums) : gradient, weights);
    harness_.ops->write(weights, weights_.values());
    if (step == 0 && lora()) {
      expect_weights("adamw1");
    }
  }
  expect_near_relative(objective(batch, run(batch, nullptr)), steps[3]["loss"], 1e-3);
  expect_weights("adamw3");
}

const auto kName = [](const auto& test) { return test_name(test.param); };
INSTANTIATE_TEST_SUITE_P(Models, TrainingGoldenBaseTest, ::testing::ValuesIn(base_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Cases, TrainingGoldenTest, ::testing::ValuesIn(trained_cases()), kName);

TEST(TrainingGoldenFilesTest, EveryCaseIsTested) {
  EXPECT_EQ(trained_models().size(), kModels);
  EXPECT_EQ(trained_cases().size(), kCases * backends().size());
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("training"))) {
    files += entry.path().extension() == ".json" ? 1 : 0;
  }
  EXPECT_EQ(files, kModels + 2) << "in addition to the models: adamw_only.json and summary.json";
}

}  // namespace
}  // namespace tidemill::engines
