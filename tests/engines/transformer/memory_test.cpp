// SPDX-License-Identifier: Apache-2.0
// What memory plans rest on: the stated sizes are the sizes taken.
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/transformer/model_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

TEST(MemoryTest, ActivationsAndWorkspaceTakeWhatTheyState) {
  for (const bool qk_norm : {false, true}) {
    const ModelConfig config = small_config({false, false, qk_norm, false, false});
    ModelBench bench(backends()[0], config, random_weights(config, 1));
    RandomStream random(2);
    TestSequence sequence;
    sequence.ids = random_ids(config, 30, random);
    sequence.mask.assign(30, 1);
    sequence.dlogprobs.assign(30, 1.0F);
    sequence.dentropies.assign(30, 0.0F);

    for (const std::int64_t first_layer : {0, 2}) {
      const auto pages = bench.pages_for(30);
      Activations activations(config, first_layer);
      Batch batch{sequence.ids, {{30, 0, pages, nullptr, SegmentMode::kTraining}}};
      static_cast<void>(
          bench.model.forward(*bench.weights, batch, *bench.cache, {&activations, {}}));
      EXPECT_EQ(activations.size_bytes(), 30 * Activations::bytes_per_row(config, first_layer));
      bench.cache->release(pages);
    }

    Gradients gradients = Gradients::for_model(config);
    bench.train({sequence}, nullptr, {1.0F, 8}, &gradients);
    const std::int64_t head = 4 * 8 * (config.vocab_size + 2 * config.hidden_size);
    EXPECT_EQ(bench.model.workspace_bytes() - head,
              30 * Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward));
  }
}

TEST(MemoryTest, InferenceTakesLessWorkspaceThanTraining) {
  const ModelConfig config = small_config({});
  ModelBench bench(backends()[0], config, random_weights(config, 1));
  RandomStream random(3);
  static_cast<void>(bench.hidden(random_ids(config, 30, random)));
  EXPECT_EQ(bench.model.workspace_bytes(),
            30 * Transformer::workspace_bytes_per_row(config, WeightUse::kForward));
}

}  // namespace
}  // namespace tidemill::engines
