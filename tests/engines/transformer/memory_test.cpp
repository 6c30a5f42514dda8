// SPDX-License-Identifier: Apache-2.0
// Tests that the sizes that memory estimates use are the sizes actually allocated.
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kTokens = 30;

TestSequence sequence_of(const ModelConfig& config) {
  RandomStream random(2);
  TestSequence sequence;
  sequence.ids = random_ids(config, kTokens, random);
  sequence.mask.assign(kTokens, 1);
  sequence.dlogprobs.assign(kTokens, 1.0F);
  sequence.dentropies.assign(kTokens, 0.0F);
  return sequence;
}

TEST(MemoryTest, ActivationsHaveTheEstimatedSize) {
  for (const bool qk_norm : {false, true}) {
    const ModelConfig config = small_config({false, false, qk_norm, false, false});
    const AdapterSpec spec = lora_on_all(config, 0);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kCheap, Recompute::kLayer}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const KeepOptions keep{recompute, dtype};
        for (const bool adapted : {false, true}) {
          ModelHarness harness(backends()[0], config, random_weights(config, 1));
          const auto adapter = adapted ? harness.adapter(spec, random_lora(spec, 3)) : nullptr;
          const auto pages = harness.pages_for(kTokens);
          Gradients gradients = adapted ? Gradients::for_adapter(config, spec, *harness.ops).value()
                                        : Gradients::for_model(config, *harness.ops).value();
          Activations activations(config, 0, harness.ops->memory(), keep);
          const Batch batch{sequence_of(config).ids,
                            {{kTokens, 0, pages, adapter.get(), SegmentMode::kTraining}}};
          const ConstMatrix hidden =
              harness.model.forward(*harness.weights, batch, *harness.cache, {&activations, {}});
          const std::int64_t after_forward = activations.size_bytes();
          DeviceMatrix dhidden(harness.ops->memory());
          harness.ops->fill(1.0F, dhidden.reshape(hidden.rows, hidden.cols));
          const auto units = harness.model.start_backward(
              *harness.weights, batch, *harness.cache, activations, dhidden.view(), gradients, {});
          run_all(*units);
          ASSERT_TRUE(harness.ops->synchronize().ok());
          const std::int64_t stated =
              kTokens * Activations::bytes_per_row(config, 0, keep, adapted ? spec : AdapterSpec());
          EXPECT_EQ(activations.size_bytes(), stated)
              << recompute_name(recompute) << " " << dtype_name(dtype) << " " << adapted;
          EXPECT_EQ(after_forward == stated, recompute == Recompute::kNone);
        }
      }
    }
  }
}

TEST(MemoryTest, ActivationsOfUpperLayersTakeLess) {
  const ModelConfig config = small_config({});
  ModelHarness harness(backends()[0], config, random_weights(config, 1));
  const auto pages = harness.pages_for(kTokens);
  Activations activations(config, 2, harness.ops->memory());
  const Batch batch{sequence_of(config).ids,
                    {{kTokens, 0, pages, nullptr, SegmentMode::kTraining}}};
  static_cast<void>(
      harness.model.forward(*harness.weights, batch, *harness.cache, {&activations, {}}));
  EXPECT_EQ(activations.size_bytes(), kTokens * Activations::bytes_per_row(config, 2));
  EXPECT_LT(Activations::bytes_per_row(config, 2), Activations::bytes_per_row(config, 0));
}

TEST(MemoryTest, WorkspaceOfTrainingHasTheEstimatedSize) {
  for (const bool qk_norm : {false, true}) {
    const ModelConfig config = small_config({false, false, qk_norm, false, false});
    for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer}) {
      ModelHarness harness(backends()[0], config, random_weights(config, 1));
      harness.keep = {recompute, DType::kBF16};
      Gradients gradients = Gradients::for_model(config, *harness.ops).value();
      harness.train({sequence_of(config)}, nullptr, {1.0F, 8}, &gradients);
      EXPECT_EQ(Transformer::head_bytes(config, kTokens, kTokens, 8), 0);
      const WorkspaceRowBytes per_row =
          Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward);
      EXPECT_EQ(harness.model.workspace_bytes(),
                kTokens * (per_row.batch + per_row.group + per_row.sequence));
    }
  }
}

TEST(MemoryTest, LogitsThatDoNotFitTheWorkspaceHaveTheEstimatedSize) {
  ModelConfig config = small_config({});
  config.vocab_size = 4 * config.intermediate_size;
  const WorkspaceRowBytes per_row =
      Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward);
  for (const auto& [chunk_rows, own_rows] :
       {std::pair<std::int64_t, std::int64_t>{22, 0}, {kTokens - 1, kTokens - 1}}) {
    ModelHarness harness(backends()[0], config, random_weights(config, 1));
    Gradients gradients = Gradients::for_model(config, *harness.ops).value();
    harness.train({sequence_of(config)}, nullptr, {1.0F, chunk_rows}, &gradients);
    // All rows but the first have a target.
    const std::int64_t head = 4 * own_rows * config.vocab_size;
    EXPECT_EQ(Transformer::head_bytes(config, kTokens, kTokens, chunk_rows), head);
    EXPECT_EQ(harness.model.workspace_bytes(),
              head + kTokens * (per_row.batch + per_row.group + per_row.sequence));
  }
}

TEST(MemoryTest, WorkspaceOfTrainingInWindowsHasTheEstimatedSize) {
  const ModelFeatures with_norms{.qk_norm = true};
  for (const ModelFeatures& features : {ModelFeatures{}, with_norms}) {
    const ModelConfig config = small_config(features);
    const WorkspaceRowBytes per_row =
        Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward);
    for (const Recompute recompute : kRecomputes) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const auto workspace = [&](std::int64_t window_tokens) {
          ModelHarness harness(backends()[0], config, random_weights(config, 1));
          harness.keep = {recompute, dtype};
          harness.backward.window_tokens = window_tokens;
          Gradients gradients = Gradients::for_model(config, *harness.ops).value();
          harness.train(random_sequences(config, {9, 30, 2, 3}, 2), nullptr, {1.0F, 8}, &gradients);
          return harness.model.workspace_bytes();
        };
        const std::int64_t batch = 44 * per_row.batch;
        EXPECT_EQ(workspace(0), batch + 44 * (per_row.group + per_row.sequence));
        EXPECT_EQ(workspace(39), batch + 39 * (per_row.group + per_row.sequence));
        EXPECT_EQ(workspace(12), batch + 12 * per_row.group + 30 * per_row.sequence);
        // A chunk of the head no longer fits in the buffers of a layer.
        EXPECT_EQ(workspace(1), batch + per_row.group + 30 * per_row.sequence +
                                    Transformer::head_bytes(config, 44, 1, 8));
        EXPECT_GT(Transformer::head_bytes(config, 44, 1, 8), 0);
      }
    }
  }
}

TEST(MemoryTest, InferenceTakesLessWorkspaceThanTraining) {
  const ModelConfig config = small_config({});
  ModelHarness harness(backends()[0], config, random_weights(config, 1));
  RandomStream random(3);
  static_cast<void>(harness.hidden(random_ids(config, kTokens, random)));
  EXPECT_EQ(harness.model.workspace_bytes(),
            kTokens * Transformer::workspace_bytes_per_row(config, WeightUse::kForward).batch);
}

}  // namespace
}  // namespace tidemill::engines
