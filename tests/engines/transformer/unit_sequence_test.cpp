// SPDX-License-Identifier: Apache-2.0
// Tests how training passes are divided into units, and that the division changes no bit.
#include "engines/transformer/unit_sequence.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engines/transformer/gradients.hpp"
#include "tests/engines/transformer/backends.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// Layers, heads and vocabulary that can be cut.
ModelConfig wide_config() {
  ModelConfig config = small_config({});
  config.vocab_size = 330;
  config.hidden_size = 192;
  return config;
}

int run_and_count(UnitSequence& units) {
  int count = 0;
  for (; !units.done(); ++count) {
    units.run();
  }
  return count;
}

class UnitsTest : public ::testing::TestWithParam<Backend> {
protected:
  // Calls check(harness, adapter, name) for each kind of adapter, and then with null for a model
  // all of whose parameters are trained.
  template <class Check>
  static void for_each_kind(Check check) {
    const ModelConfig config = wide_config();
    const TensorMap weights = random_weights(config, 3);
    ModelHarness harness(GetParam(), config, weights);
    for (const AdapterSample& sample : adapter_samples()) {
      const AdapterSpec spec = spec_of(sample.config, config);
      const auto adapter = harness.adapter(spec, random_adapter(spec, config, weights, 5));
      check(harness, adapter.get(), sample.name);
    }
    check(harness, nullptr, std::string("all"));
  }
};

TEST_P(UnitsTest, PartsOfTheHeadChangeNoBit) {
  for_each_kind([](ModelHarness& harness, const Adapter* adapter, const std::string& name) {
    const auto sequences = random_sequences(harness.config, {9, 1, 20}, 4);
    const auto whole = gradient_values(harness, sequences, {3}, adapter, 64, 0);
    for (const std::int64_t features : {1, 100}) {
      EXPECT_EQ(gradient_values(harness, sequences, {3}, adapter, 7, features), whole)
          << name << ", parts of " << features << " logits";
    }
  });
}

// The head asks a loss for the gradients of each chunk between its two passes, or gets those of all
// rows after the first pass.
TEST_P(UnitsTest, ALossOfEachChunkChangesNoBit) {
  for_each_kind([](ModelHarness& harness, const Adapter* adapter, const std::string& name) {
    const auto sequences = random_sequences(harness.config, {9, 1, 20}, 4);
    for (const auto& [rows, features] : {std::pair{64, 0}, {7, 0}, {7, 100}, {1, 1}}) {
      const HeadOptions head{0.7F, rows, features};
      Gradients two_passes = gradients_for(harness.config, adapter, *harness.ops);
      harness.fused_loss = false;
      const TokenScores expected = harness.train(sequences, adapter, head, &two_passes);
      Gradients one_pass = gradients_for(harness.config, adapter, *harness.ops);
      harness.fused_loss = true;
      const TokenScores actual = harness.train(sequences, adapter, head, &one_pass);
      EXPECT_EQ(actual.logprobs, expected.logprobs) << name << ", chunks of " << rows;
      EXPECT_EQ(actual.entropies, expected.entropies) << name << ", chunks of " << rows;
      EXPECT_EQ(one_pass.collect().to_floats(), two_passes.collect().to_floats())
          << name << ", chunks of " << rows;
    }
  });
}

// Counts the units of each pass over one sequence of 30 tokens.
struct Counts {
  int forward = 0;
  int head = 0;
  int head_backward = 0;
  int head_with_loss = 0;
  int backward = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts count_units(ModelHarness& harness, std::int64_t window_tokens, const HeadOptions& head,
                   Recompute recompute) {
  Counts counts;
  const ModelConfig& config = harness.config;
  const auto sequence = random_sequences(config, {30}, 6).front();
  const auto pages = harness.pages_for(30);
  Batch batch{sequence.ids, {{30, 0, pages, nullptr, SegmentMode::kTraining}}};
  Gradients gradients = gradients_for(config, nullptr, *harness.ops);
  Activations activations(config, 0, harness.ops->memory(), {recompute, DType::kF32});
  ForwardOptions options{.activations = &activations};
  options.window_tokens = window_tokens;
  const auto forward =
      harness.model.start_forward(*harness.weights, batch, *harness.cache, options);
  counts.forward = run_and_count(*forward);
  std::vector<std::int32_t> targets(sequence.ids.begin() + 1, sequence.ids.end());
  targets.push_back(-1);
  const HeadInput input{harness.weights.get(), nullptr, harness.model.hidden(), targets, head};
  std::vector<float> values(30, 0.5F);
  const auto logprobs = harness.model.start_token_logprobs(input, values, {});
  counts.head = run_and_count(*logprobs);
  DeviceMatrix dhidden(harness.ops->memory());
  dhidden.reshape(30, config.hidden_size);
  const auto head_backward = harness.model.start_token_logprobs_backward(input, {values, {}, true},
                                                                         dhidden.view(), gradients);
  counts.head_backward = run_and_count(*head_backward);
  std::vector<float> entropies(30);
  const auto head_with_loss = harness.model.start_token_loss(
      input, {values, entropies, values, values, [](std::int64_t, std::int64_t) {}}, dhidden.view(),
      gradients);
  counts.head_with_loss = run_and_count(*head_with_loss);
  const auto backward =
      harness.model.start_backward(*harness.weights, batch, *harness.cache, activations,
                                   dhidden.view(), gradients, {.window_tokens = window_tokens});
  counts.backward = run_and_count(*backward);
  EXPECT_TRUE(harness.ops->synchronize().ok());
  harness.cache->release(pages);
  return counts;
}

TEST_P(UnitsTest, AUnitIsAPartOfALayerOverAWindowOrOfTheHead) {
  const ModelConfig config = wide_config();
  ModelHarness harness(GetParam(), config, random_weights(config, 3));
  const auto layers = static_cast<int>(config.num_layers);
  // 30 tokens in windows of 8; 29 targets in chunks of 10, with 128, 128 and 74 logits at a time,
  // and 128 and 64 inputs.
  constexpr int kWindows = 4;
  constexpr int kChunks = 3;
  const HeadOptions head{1.0F, 10, 128};
  for (const auto& [recompute, recomputed] :
       {std::pair{Recompute::kNone, 0}, {Recompute::kCheap, 2}, {Recompute::kLayer, 4}}) {
    EXPECT_EQ(
        count_units(harness, 8, head, recompute),
        (Counts{kWindows * (1 + 5 * layers + 1), kChunks * 3, kChunks * (3 + 1 + 3 + 2),
                kChunks * (3 + 1 + 1 + 3 + 2), kWindows * (1 + (5 + recomputed) * layers + 1)}))
        << recomputed;
  }
  // Without windows and limits, the forward pass takes all rows through a whole layer, and the
  // logits are reused.
  EXPECT_EQ(count_units(harness, 0, {1.0F, 64}, Recompute::kNone),
            (Counts{1 + layers + 1, 1, 1 + 1 + 1, 1 + 1 + 1 + 1 + 1, 1 + 5 * layers + 1}));
}

INSTANTIATE_TEST_SUITE_P(Backends, UnitsTest, ::testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tidemill::engines
