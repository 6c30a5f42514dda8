// SPDX-License-Identifier: Apache-2.0
// Compares gradients with numerical derivatives on random models with all features, and their bits
// for different divisions of a batch.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "engines/transformer/gradients.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr HeadOptions kHead{0.8F, 5};

// Returns `tensors` with the tensor `name` moved by `step` along `direction`.
TensorMap moved(const TensorMap& tensors, const std::string& name, std::span<const float> direction,
                double step) {
  TensorMap result = tensors;
  Tensor& tensor = result.at(name);
  std::vector<float> values(direction.size());
  widen_floats(tensor, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] += static_cast<float>(step * double{direction[i]});
  }
  tensor = make_float_tensor(values, tensor.shape, DType::kF32);
  return result;
}

// Compares |gradient|, the slope in the direction of the gradient, with a central difference for
// every tensor. `objective_at` evaluates the objective at the given tensors.
template <class Objective>
void expect_slopes(const TensorMap& tensors, const ParameterSet& gradients,
                   const Objective& objective_at) {
  const std::vector<float> all = gradients.to_floats();
  for (const ParameterSet::Entry& entry : gradients.entries()) {
    const auto gradient = std::span(all).subspan(static_cast<std::size_t>(entry.offset),
                                                 static_cast<std::size_t>(entry.size));
    double square = 0.0;
    for (const float g : gradient) {
      square += double{g} * double{g};
    }
    const double norm = std::sqrt(square);
    ASSERT_GT(norm, 1e-3) << entry.name << " has no gradient";
    // Small compared with the weights, and large compared with the rounding of an objective of
    // about 50.
    const double step = 2e-3 / norm;
    const double up = objective_at(moved(tensors, entry.name, gradient, step));
    const double down = objective_at(moved(tensors, entry.name, gradient, -step));
    EXPECT_NEAR((up - down) / (2.0 * step * norm), norm, 0.01 * norm) << entry.name;
  }
}

class GradientTest : public ::testing::TestWithParam<FeatureCase> {};

TEST_P(GradientTest, OfAllParametersMatchesNumericalSlopes) {
  const ModelConfig config = small_config(GetParam().features);
  const TensorMap tensors = random_weights(config, 11);
  ModelHarness harness(backends()[0], config, tensors);
  const auto sequences = random_sequences(config, {9, 1, 14}, 12);
  Gradients gradients = Gradients::for_model(config, *harness.ops).value();
  harness.train(sequences, nullptr, kHead, &gradients);
  expect_slopes(tensors, gradients.collect(), [&](const TensorMap& at) {
    harness.load(at);
    return objective(sequences, harness.train(sequences, nullptr, kHead, nullptr));
  });
}

TEST_P(GradientTest, OfAnAdapterMatchesNumericalSlopes) {
  const ModelConfig config = small_config(GetParam().features);
  ModelHarness harness(backends()[0], config, random_weights(config, 21));
  const auto sequences = random_sequences(config, {9, 1, 14}, 22);
  for (const std::int64_t first_layer : {0, 2}) {
    const AdapterSpec spec = lora_on_all(config, first_layer);
    const TensorMap tensors = random_lora(spec, 23);
    Gradients gradients = Gradients::for_adapter(config, spec, *harness.ops).value();
    EXPECT_EQ(gradients.first_layer(), first_layer);
    const auto adapter = harness.adapter(spec, tensors);
    harness.train(sequences, adapter.get(), kHead, &gradients);
    expect_slopes(tensors, gradients.collect(), [&](const TensorMap& at) {
      const auto moved_adapter = harness.adapter(spec, at);
      return objective(sequences, harness.train(sequences, moved_adapter.get(), kHead, nullptr));
    });
  }
}

// DoRA's gradients treat its norms as constants, so slopes are computed with fixed norms: if A or B
// changes, m changes in proportion to the norm.
TensorMap with_held_norms(const AdapterSpec& spec, const TensorMap& at, const TensorMap& origin,
                          const ModelConfig& config, const TensorMap& base) {
  TensorMap held = at;
  for (const AdaptedModule& module : spec) {
    if (module.magnitude.empty()) {
      continue;
    }
    const BaseWeight weight{&base.at(weight_name(config, module.path))};
    const auto now = adapted_row_norms(module, weight, at.at(module.a), at.at(module.b));
    const auto then = adapted_row_norms(module, weight, origin.at(module.a), origin.at(module.b));
    Tensor& magnitude = held.at(module.magnitude);
    std::vector<float> values(now.size());
    widen_floats(magnitude, values);
    for (std::size_t o = 0; o < values.size(); ++o) {
      values[o] *= now[o] / then[o];
    }
    magnitude = make_float_tensor(values, magnitude.shape, DType::kF32);
  }
  return held;
}

TEST_P(GradientTest, OfEveryTensorOfAnAdapterMatchesNumericalSlopes) {
  const ModelConfig config = small_config(GetParam().features);
  const TensorMap base = random_weights(config, 41);
  ModelHarness harness(backends()[0], config, base);
  const auto sequences = random_sequences(config, {9, 1, 14}, 42);
  std::size_t pieces = 0;
  for (const AdapterSample& sample : adapter_samples()) {
    SCOPED_TRACE(sample.name);
    const AdapterSpec spec = spec_of(sample.config, config);
    const TensorMap tensors = random_adapter(spec, config, base, 43);
    Gradients gradients = Gradients::for_adapter(config, spec, *harness.ops).value();
    const auto adapter = harness.adapter(spec, tensors);
    EXPECT_EQ(gradients.first_layer(), adapter->first_layer());
    harness.train(sequences, adapter.get(), kHead, &gradients);
    ASSERT_EQ(gradients.collect().entries().size(), tensors.size());
    pieces += tensors.size();
    expect_slopes(tensors, gradients.collect(), [&](const TensorMap& at) {
      const auto moved_adapter =
          harness.adapter(spec, with_held_norms(spec, at, tensors, config, base));
      return objective(sequences, harness.train(sequences, moved_adapter.get(), kHead, nullptr));
    });
  }
  EXPECT_GT(pieces, 150U);
  std::cout << "[ checked  ] " << GetParam() << ": " << pieces << " tensors\n";
}

// Norms of heads and of the whole model are trained alone, or with LoRA above the lowest trained
// layer: what reaches them must pass layers that train nothing.
TEST(NormGradientTest, OfSavedNormsMatchesNumericalSlopes) {
  const ModelConfig config = small_config({true, true, true, true, true});
  const TensorMap base = random_weights(config, 45);
  ModelHarness harness(backends()[0], config, base);
  const auto sequences = random_sequences(config, {9, 1, 14}, 46);
  AdapterConfig heads;
  heads.rank = 2;
  heads.alpha = 3.0;
  heads.targets = {ModuleSelector::Kind::kNames, {"up_proj"}, {}};
  heads.modules_to_save = {"q_norm", "k_norm", "norm"};
  AdapterConfig all = heads;
  all.targets.names = {"k_proj"};
  all.modules_to_save = {"q_norm", "k_norm", "input_layernorm", "post_attention_layernorm", "norm"};
  for (const AdapterConfig& sample : {heads, all}) {
    const AdapterSpec spec = spec_of(sample, config);
    const TensorMap tensors = random_adapter(spec, config, base, 47);
    Gradients gradients = Gradients::for_adapter(config, spec, *harness.ops).value();
    const auto adapter = harness.adapter(spec, tensors);
    harness.train(sequences, adapter.get(), kHead, &gradients);
    expect_slopes(tensors, gradients.collect(), [&](const TensorMap& at) {
      const auto moved_adapter = harness.adapter(spec, at);
      return objective(sequences, harness.train(sequences, moved_adapter.get(), kHead, nullptr));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Features, GradientTest, ::testing::ValuesIn(feature_cases()),
                         [](const auto& test) { return test.param.name; });

class GradientBitsTest : public ::testing::TestWithParam<Backend> {};

TEST_P(GradientBitsTest, AreTheSameForEveryCutBetweenSequences) {
  RandomStream random(31);
  for (const FeatureCase& c : feature_cases()) {
    const ModelConfig config = small_config(c.features);
    ModelHarness harness(GetParam(), config, random_weights(config, 32));
    const AdapterSpec spec = lora_on_all(config, 1);
    const auto adapter = harness.adapter(spec, random_lora(spec, 33));
    const auto sequences = random_sequences(config, {9, 1, 30, 2, 17, 5}, 34);
    for (const Adapter* trained : {static_cast<const Adapter*>(nullptr), adapter.get()}) {
      const auto whole = gradient_values(harness, sequences, {6}, trained, 64);
      for (int trial = 0; trial < 6; ++trial) {
        std::vector<std::size_t> cuts;
        for (std::size_t end = 1; end < 6; ++end) {
          if (random.uniform() < 0.5) {
            cuts.push_back(end);
          }
        }
        cuts.push_back(6);
        const auto chunk_rows = static_cast<std::int64_t>(1 + random.below(40));
        const auto features = static_cast<std::int64_t>(random.below(150));
        ASSERT_EQ(gradient_values(harness, sequences, cuts, trained, chunk_rows, features), whole)
            << c.name << " in " << cuts.size() << " parts, chunks of " << chunk_rows
            << ", parts of " << features << " logits";
      }
    }
  }
}

TEST_P(GradientBitsTest, OfEveryKindOfAdapterAreTheSameForEveryCut) {
  const ModelConfig config = small_config({true, true, true, true, true});
  const TensorMap base = random_weights(config, 61);
  ModelHarness harness(GetParam(), config, base);
  const auto sequences = random_sequences(config, {9, 1, 30, 2, 17, 5}, 62);
  for (const AdapterSample& sample : adapter_samples()) {
    const AdapterSpec spec = spec_of(sample.config, config);
    const auto adapter = harness.adapter(spec, random_adapter(spec, config, base, 63));
    const auto whole = gradient_values(harness, sequences, {6}, adapter.get(), 64);
    for (const std::vector<std::size_t>& cuts :
         {std::vector<std::size_t>{1, 2, 3, 4, 5, 6}, {2, 3, 6}, {5, 6}}) {
      EXPECT_EQ(gradient_values(harness, sequences, cuts, adapter.get(), 7), whole) << sample.name;
    }
  }
}

TEST_P(GradientBitsTest, AreTheSameWithInferenceRowsInTheBatch) {
  RandomStream random(51);
  for (const FeatureCase& c : feature_cases()) {
    const ModelConfig config = small_config(c.features);
    ModelHarness harness(GetParam(), config, random_weights(config, 52));
    const AdapterSpec spec = lora_on_all(config, 0);
    const auto adapter = harness.adapter(spec, random_lora(spec, 53));
    const auto sequences = random_sequences(config, {9, 20, 5}, 54);
    for (const Adapter* trained : {static_cast<const Adapter*>(nullptr), adapter.get()}) {
      harness.inference_sequences.clear();
      const auto alone = gradient_values(harness, sequences, {3}, trained, 64);
      harness.inference_sequences = {random_ids(config, 1, random), random_ids(config, 33, random)};
      EXPECT_EQ(gradient_values(harness, sequences, {1, 3}, trained, 64), alone) << c.name;
    }
  }
}

// Compares gradients under each policy, of all parameters and of an adapter of each kind.
TEST_P(GradientBitsTest, AreTheSameForEveryRecomputePolicy) {
  for (const FeatureCase& c : feature_cases()) {
    const ModelConfig config = small_config(c.features);
    const TensorMap base = random_weights(config, 71);
    ModelHarness harness(GetParam(), config, base);
    const auto sequences = random_sequences(config, {9, 1, 30, 17}, 72);
    std::vector<std::shared_ptr<const Adapter>> trained{nullptr};
    for (const AdapterSample& sample : adapter_samples()) {
      const AdapterSpec spec = spec_of(sample.config, config);
      trained.push_back(harness.adapter(spec, random_adapter(spec, config, base, 73)));
    }
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const auto& adapter : trained) {
        harness.keep = {Recompute::kNone, dtype};
        const auto kept = gradient_values(harness, sequences, {4}, adapter.get(), 64);
        for (const Recompute recompute : {Recompute::kCheap, Recompute::kLayer}) {
          harness.keep.recompute = recompute;
          RandomStream random(74);
          harness.inference_sequences = {random_ids(config, 5, random)};
          ASSERT_EQ(gradient_values(harness, sequences, {1, 4}, adapter.get(), 64), kept)
              << c.name << " " << recompute_name(recompute) << " " << dtype_name(dtype);
          harness.inference_sequences.clear();
        }
      }
    }
  }
}

// Rounding kept activations changes gradients by about the relative size of the rounding.
TEST_P(GradientBitsTest, OfRoundedActivationsAreClose) {
  const ModelConfig config = small_config({true, true, true, true, true});
  ModelHarness harness(GetParam(), config, random_weights(config, 81));
  const auto sequences = random_sequences(config, {9, 1, 30, 17}, 82);
  const auto exact = gradient_values(harness, sequences, {4}, nullptr, 64);
  harness.keep.dtype = DType::kBF16;
  const auto rounded = gradient_values(harness, sequences, {4}, nullptr, 64);
  double difference = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(double{rounded[i]} - double{exact[i]}, 2);
    size += std::pow(double{exact[i]}, 2);
  }
  const double relative = std::sqrt(difference / size);
  EXPECT_GT(relative, 0.0);
  EXPECT_LT(relative, 1.0 / 256.0);
}

TEST(GradientsTest, OfAnAdapterHoldNoOtherTensors) {
  const ModelConfig config = small_config({});
  const AdapterSpec spec = lora_on_all(config, 1);
  std::int64_t floats = 0;
  for (const AdaptedModule& module : spec) {
    floats += module.rank * (module.in_features + module.out_features);
  }
  const auto ops = backends()[0].make();
  Gradients gradients = Gradients::for_adapter(config, spec, *ops).value();
  EXPECT_EQ(gradients.size_bytes(), 4 * floats);
  EXPECT_FALSE(gradients.trains_model());
  EXPECT_TRUE(gradients.head().weight.is_null());
  EXPECT_TRUE(gradients.layer(2).linears[LinearKind::kDown].weight.is_null());
}

INSTANTIATE_TEST_SUITE_P(Backends, GradientBitsTest, ::testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tidemill::engines
