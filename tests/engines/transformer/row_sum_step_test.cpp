// SPDX-License-Identifier: Apache-2.0
// Tests model code on a backend whose sums over rows can only be cut at multiples of a step: the
// gradients of a batch do not depend on its division into micro-batches.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engines/ops/stepped_ops.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kSumStep = 4;

template <std::int64_t kDeclared>
std::shared_ptr<Ops> make_stepped() {
  return host::make_backend(
      std::make_unique<SteppedOps>(make_reference_host_ops(), kSumStep, BackendTraits{kDeclared}));
}

const Backend kStepped{"stepped", make_stepped<kSumStep>};
const Backend kUndeclared{"undeclared", make_stepped<1>};

// Lengths that are multiples of the step, one more, one less, and shorter.
const std::vector<std::int64_t> kSteppedLengths{9, 1, 30, 3, 17, 16};
const std::vector<std::vector<std::size_t>> kMicroBatches{{1, 2, 3, 4, 5, 6}, {2, 6}, {3, 5, 6}};

// Counts the kinds of parameters whose gradients differ from those of one micro-batch if the batch
// is cut.
int count_changes(const Backend& backend, const FeatureCase& c, std::int64_t window_tokens) {
  const ModelConfig config = small_config(c.features);
  const TensorMap base = random_weights(config, 91);
  ModelHarness harness(backend, config, base);
  harness.backward.window_tokens = window_tokens;
  const auto sequences = random_sequences(config, kSteppedLengths, 92);
  std::vector<std::shared_ptr<const Adapter>> trained{nullptr};
  for (const AdapterSample& sample : adapter_samples()) {
    const AdapterSpec spec = spec_of(sample.config, config);
    trained.push_back(harness.adapter(spec, random_adapter(spec, config, base, 93)));
  }
  int changes = 0;
  for (const auto& adapter : trained) {
    // Chunks of the head of any size that is a multiple of the step, too.
    const auto whole = gradient_values(harness, sequences, {6}, adapter.get(), 64);
    bool same = true;
    for (const auto& cuts : kMicroBatches) {
      for (const std::int64_t chunk_rows : {kSumStep, 3 * kSumStep, std::int64_t{64}}) {
        same &= gradient_values(harness, sequences, cuts, adapter.get(), chunk_rows) == whole;
      }
    }
    changes += same ? 0 : 1;
  }
  return changes;
}

TEST(RowSumStepTest, GradientsDoNotDependOnMicroBatchesAndChunks) {
  for (const FeatureCase& c : feature_cases()) {
    for (const std::int64_t window : {std::int64_t{0}, 2 * kSumStep}) {
      EXPECT_EQ(count_changes(kStepped, c, window), 0) << c.name << " " << window;
    }
  }
}

// Without the declaration the same device gives other bits, so the test above can fail.
TEST(RowSumStepTest, GradientsWouldDependOnThemIfTheStepWereNotDeclared) {
  const auto kinds = static_cast<int>(adapter_samples().size()) + 1;
  for (const FeatureCase& c : feature_cases()) {
    EXPECT_EQ(count_changes(kUndeclared, c, 0), kinds) << c.name;
  }
}

}  // namespace
}  // namespace tidemill::engines
