// SPDX-License-Identifier: Apache-2.0
// Tests every kind of adapter on random models with all features: applied to the base, merged into
// it, and newly initialized.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// Merging rounds each weight once and adds in another order. Logits have magnitudes of 1 to 10.
constexpr float kMergeTolerance = 2e-4F;
// A new adapter adds zeros and multiplies by ones. Only the order of adding a bias differs.
constexpr float kFreshTolerance = 2e-5F;

float largest_difference(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.values.size(), b.values.size());
  float largest = 0.0F;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    largest = std::max(largest, std::abs(a.values[i] - b.values[i]));
  }
  return largest;
}

struct KindCase {
  Backend backend;
  AdapterSample sample;
  bool tied = false;
};

std::ostream& operator<<(std::ostream& out, const KindCase& c) {
  return out << c.backend.name << "_" << c.sample.name << (c.tied ? "_tied" : "");
}

std::vector<KindCase> kind_cases() {
  std::vector<KindCase> all;
  for (const Backend& backend : backends()) {
    for (const AdapterSample& sample : adapter_samples()) {
      all.push_back({backend, sample, false});
      all.push_back({backend, sample, true});
    }
  }
  return all;
}

class AdapterKindsTest : public ::testing::TestWithParam<KindCase> {
protected:
  AdapterKindsTest() : harness_(GetParam().backend, config_, base_) {
    RandomStream random(3);
    ids_ = random_ids(config_, 25, random);
  }

  ModelConfig config_ = small_config({GetParam().tied, true, true, true, false});
  TensorMap base_ = random_weights(config_, 1);
  AdapterSpec spec_ = spec_of(GetParam().sample.config, config_);
  ModelHarness harness_;
  std::vector<std::int32_t> ids_;
};

TEST_P(AdapterKindsTest, MergingGivesTheLogitsOfTheAdaptedBase) {
  const TensorMap tensors = random_adapter(spec_, config_, base_, 2);
  const auto adapter = harness_.adapter(spec_, tensors);
  const Rows adapted = harness_.logits_of(ids_, adapter.get());
  const Rows plain = harness_.logits_of(ids_);
  EXPECT_GT(largest_difference(adapted, plain), 0.1F);

  const MergedModel merged = merge_adapter(spec_, tensors, config_, base_).value();
  const std::string& sample = GetParam().sample.name;
  const bool of_one_end =
      sample == "ends" || sample == "saved" || sample == "dora" || sample == "ia3";
  EXPECT_EQ(merged.config.tie_word_embeddings, GetParam().tied && !of_one_end);
  ModelHarness alone(GetParam().backend, merged.config, merged.tensors);
  EXPECT_LT(largest_difference(alone.logits_of(ids_), adapted), kMergeTolerance);
}

TEST_P(AdapterKindsTest, ANewAdapterChangesNothing) {
  const TensorMap tensors = init_adapter(spec_, config_, base_, 7).value();
  EXPECT_TRUE(check_tensors(adapter_shapes(spec_), tensors, "adapter").ok());
  const auto adapter = harness_.adapter(spec_, tensors);
  const float difference =
      largest_difference(harness_.logits_of(ids_, adapter.get()), harness_.logits_of(ids_));
  EXPECT_LT(difference, kFreshTolerance);
  std::cout << "[ measured ] " << GetParam() << ": " << difference << "\n";
}

// The budget for named adapters counts this size, so no tensor may be left out of it. Magnitudes
// are held twice: divided by the norms, and the inverses of the norms.
TEST_P(AdapterKindsTest, TheSizeCountsEveryTensor) {
  const TensorMap tensors = random_adapter(spec_, config_, base_, 2);
  const auto adapter = harness_.adapter(spec_, tensors);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += 4 * tensor.num_elements() * (name.ends_with("lora_magnitude_vector") ? 2 : 1);
  }
  if (GetParam().backend.name == "reference") {
    EXPECT_EQ(adapter->size_bytes(), bytes);
  } else {
    EXPECT_GE(adapter->size_bytes(), bytes) << "matrices are padded";
    EXPECT_LE(adapter->size_bytes(), 4 * bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AdapterKindsTest, ::testing::ValuesIn(kind_cases()),
                         ::testing::PrintToStringParamName());

TEST(AdapterMergeTest, MergingABiasOfBRequiresABiasInTheModel) {
  const ModelConfig config = small_config({});
  const TensorMap base = random_weights(config, 1);
  const AdapterSpec spec = spec_of(adapter_samples()[1].config, config);
  const auto merged = merge_adapter(spec, random_adapter(spec, config, base, 2), config, base);
  EXPECT_EQ(merged.status().message(),
            "lora_bias: model.layers.0.mlp.up_proj has no bias to merge it into");
}

}  // namespace
}  // namespace tidemill::engines
