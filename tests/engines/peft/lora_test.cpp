// SPDX-License-Identifier: Apache-2.0
// LoRA: initialization, the bypass and its gradients compared with hand-computed values, and
// merging.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "engines/ops/reference/factory.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/peft/linear_bypass.hpp"
#include "tests/engines/ops/device_values.hpp"

namespace tidemill::engines {
namespace {

const std::string kPath = "model.layers.0.mlp.up_proj";

Tensor matrix(const std::vector<float>& values, std::int64_t rows, std::int64_t cols,
              DType dtype = DType::kF32) {
  return make_float_tensor(values, {rows, cols}, dtype);
}

// A (1, 2) = [1 2], B (3, 1) = [3 0 -1], scale 0.5.
const AdapterSpec kSmall = {lora_module(kPath, 2, 3, 1, 0.5F)};
TensorMap small_lora() {
  return {{lora_a_name(kPath), matrix({1, 2}, 1, 2)},
          {lora_b_name(kPath), matrix({3, 0, -1}, 3, 1)}};
}

TEST(LoraInitTest, AIsKaimingUniformAndBIsZero) {
  const AdapterSpec spec = {lora_module(kPath, 400, 30, 16, 1.0F)};
  const TensorMap tensors = init_adapter(spec, {}, {}, 7).value();
  EXPECT_TRUE(check_tensors(adapter_shapes(spec), tensors, "adapter").ok());
  const std::vector<float> a = float_values(tensors.at(lora_a_name(kPath)));
  double sum = 0.0;
  double square = 0.0;
  for (const float value : a) {
    ASSERT_LE(std::abs(value), 1.0F / 20.0F);
    sum += double{value};
    square += double{value} * double{value};
  }
  const auto count = static_cast<double>(a.size());
  // A uniform variable on +-b has variance b^2 / 3. The variance of 6400 values is within 5 % of
  // that.
  EXPECT_NEAR(square / count, 1.0 / 400.0 / 3.0, 0.05 / 1200.0);
  EXPECT_NEAR(sum / count, 0.0, 0.002);
  EXPECT_TRUE(std::ranges::all_of(float_values(tensors.at(lora_b_name(kPath))),
                                  [](float value) { return value == 0.0F; }));
}

TEST(LoraInitTest, DependsOnlyOnSeedAndModule) {
  const AdaptedModule other = lora_module("model.layers.0.mlp.gate_proj", 2, 3, 1, 0.5F);
  const auto alone = float_values(init_adapter(kSmall, {}, {}, 7).value().at(lora_a_name(kPath)));
  const TensorMap both = init_adapter({other, kSmall[0]}, {}, {}, 7).value();
  EXPECT_EQ(float_values(both.at(lora_a_name(kPath))), alone);
  EXPECT_NE(float_values(both.at(lora_a_name(other.path))), alone);
  EXPECT_NE(float_values(init_adapter(kSmall, {}, {}, 8).value().at(lora_a_name(kPath))), alone);
}

TEST(LoraBypassTest, ForwardAddsToItsRows) {
  const auto ops = make_reference_ops();
  const auto bypass =
      LinearBypass::create(kSmall[0], small_lora(), {}, WeightUse::kForward, *ops).value();
  const DeviceValues x(*ops, 2, 2, std::vector<float>{1, 1, 2, -1});  // A x = 3, 0
  const DeviceValues y(*ops, 2, 3, std::vector<float>{10, 20, 30, 40, 50, 60});
  const DeviceValues scaled_u(*ops, 2, 1);
  ASSERT_TRUE(bypass.only_adds());
  bypass.add(x.matrix(), scaled_u.matrix(), y.matrix(), *ops);
  EXPECT_EQ(scaled_u.read(), (std::vector<float>{1.5F, 0}));
  EXPECT_EQ(y.read(), (std::vector<float>{14.5F, 20, 28.5F, 40, 50, 60}));
}

TEST(LoraBypassTest, BackwardAccumulates) {
  const auto ops = make_reference_ops();
  const auto bypass =
      LinearBypass::create(kSmall[0], small_lora(), {}, WeightUse::kForwardAndBackward, *ops)
          .value();
  const std::vector<float> zeros(6);
  const auto weight = ops->prepare_weight({zeros.data(), DType::kF32, 3, 2}, DType::kF32,
                                          WeightUse::kForwardAndBackward)
                          .value();
  const BaseLinear base{weight.get(), {}};
  const DeviceValues x(*ops, std::vector<float>{1, 1});      // u = 3
  const DeviceValues dy(*ops, std::vector<float>{2, 5, 4});  // dy B = 2
  const DeviceValues da(*ops, std::vector<float>{100, 100});
  const DeviceValues db(*ops, 3, 1, std::vector<float>{100, 100, 100});
  const DeviceValues dx(*ops, std::vector<float>{1, 1});
  LinearGradient gradient;
  gradient.a = da.matrix();
  gradient.b = db.matrix();
  const Matrix dx_view = dx.matrix();
  bypass.backward(base, dy.matrix(), x.matrix(), {}, Store::kAdd, &dx_view, gradient, *ops);
  EXPECT_EQ(db.read(), (std::vector<float>{103, 107.5F, 106}));  // scale * dy u
  EXPECT_EQ(da.read(), (std::vector<float>{101, 101}));          // scale * (dy B) x
  EXPECT_EQ(dx.read(), (std::vector<float>{2, 3}));              // scale * (dy B) A
  const DeviceValues kept_u(*ops, std::vector<float>{1.5F});
  bypass.backward(base, dy.matrix(), x.matrix(), kept_u.matrix(), Store::kOverwrite, nullptr,
                  gradient, *ops);
  EXPECT_EQ(da.read(), (std::vector<float>{102, 102}));
  EXPECT_EQ(db.read(), (std::vector<float>{106, 115, 112}));
}

TEST(LoraMergeTest, AddsTheScaledProduct) {
  const TensorMap base = {{kPath + ".weight", matrix({1, 2, 3, 4, 5, 6}, 3, 2)},
                          {"model.norm.weight", matrix({1, 1}, 1, 2)}};
  const TensorMap merged = merge_adapter(kSmall, small_lora(), {}, base).value().tensors;
  EXPECT_EQ(float_values(merged.at(kPath + ".weight")),
            (std::vector<float>{2.5F, 5, 3, 4, 4.5F, 5}));
  EXPECT_EQ(merged.at("model.norm.weight").data.identity(),
            base.at("model.norm.weight").data.identity());
  EXPECT_EQ(float_values(base.at(kPath + ".weight")), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

// The weight that both ends of a tied model share is copied before one of them is changed.
TEST(LoraMergeTest, AnAdapterOfOneEndLeavesTheOtherEnd) {
  const std::vector<float> shared = {1, 2, 3, 4, 5, 6};  // 3 tokens of width 2
  const std::vector<float> by_token = {1, 2, 3};
  const std::vector<float> by_width = {1, -1};
  const std::vector<float> changed = {2, 1, 5, 2, 8, 3};  // plus their product
  const std::string table(kTablePath);
  const std::string head(kHeadPath);
  for (const std::string& path : {table, head}) {
    for (const bool whole : {false, true}) {
      for (const bool tied : {true, false}) {
        SCOPED_TRACE(path + (whole ? " whole" : " product") + (tied ? " tied" : ""));
        const std::int64_t in = path == table ? 3 : 2;
        AdaptedModule module = lora_module(path, in, 5 - in, 1, 1.0F);
        TensorMap adapter = {{module.a, matrix(path == table ? by_token : by_width, 1, in)},
                             {module.b, matrix(path == table ? by_width : by_token, 5 - in, 1)}};
        if (whole) {
          module = {path, in, 5 - in};
          module.weight = "w";
          adapter = {{"w", matrix(changed, 3, 2)}};
        }
        ModelConfig config;
        config.tie_word_embeddings = tied;
        TensorMap base = {{table + ".weight", matrix(shared, 3, 2)}};
        if (!tied) {
          base[head + ".weight"] = matrix(shared, 3, 2);
        }
        const MergedModel merged = merge_adapter({module}, adapter, config, base).value();
        ASSERT_FALSE(merged.config.tie_word_embeddings);
        const std::string& other = path == table ? head : table;
        EXPECT_EQ(float_values(merged.tensors.at(path + ".weight")), changed);
        EXPECT_EQ(float_values(merged.tensors.at(other + ".weight")), shared);
      }
    }
  }
}

TEST(LoraMergeTest, AnAdapterOfLayersKeepsTheEndsTied) {
  const TensorMap base = {{kPath + ".weight", matrix({1, 2, 3, 4, 5, 6}, 3, 2)},
                          {std::string(kTablePath) + ".weight", matrix({1, 2}, 1, 2)}};
  ModelConfig config;
  config.tie_word_embeddings = true;
  const MergedModel merged = merge_adapter(kSmall, small_lora(), config, base).value();
  EXPECT_TRUE(merged.config.tie_word_embeddings);
  EXPECT_EQ(merged.tensors.size(), base.size());
}

TEST(LoraMergeTest, RoundsOnceToTheBaseType) {
  // The change of 3/512 is not rounded before it is added: 1 + 3/512 rounds up to 1 + 1/128.
  const AdapterSpec spec = {lora_module(kPath, 1, 1, 1, 1.0F)};
  const TensorMap adapter = {{lora_a_name(kPath), matrix({3.0F / 512.0F}, 1, 1)},
                             {lora_b_name(kPath), matrix({1}, 1, 1)}};
  const TensorMap base = {{kPath + ".weight", matrix({1}, 1, 1, DType::kBF16)}};
  const Tensor merged =
      merge_adapter(spec, adapter, {}, base).value().tensors.at(kPath + ".weight");
  EXPECT_EQ(merged.dtype, DType::kBF16);
  EXPECT_EQ(float_values(merged), (std::vector<float>{1.0F + 1.0F / 128.0F}));
}

TEST(LoraMergeTest, NamesAMissingWeight) {
  const auto merged = merge_adapter(kSmall, small_lora(), {}, {});
  EXPECT_EQ(merged.status().message(),
            "base model: tensor model.layers.0.mlp.up_proj.weight is missing");
}

}  // namespace
}  // namespace tidemill::engines
