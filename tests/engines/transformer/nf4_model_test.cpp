// SPDX-License-Identifier: Apache-2.0
// Tests that a model with NF4 layers equals the bf16 model of the weights that they represent.
#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// The embedding table and the head are int8. The table widens exactly, and the head comes after the
// states that are compared.
TEST(Nf4ModelTest, HasTheHiddenStatesOfTheEquivalentBf16Model) {
  for (const std::string name : {"llama-bf16-sharded", "qwen3-tiny"}) {
    const ModelFiles files = golden_model(name);
    TensorMap dequantized;
    for (const auto& [tensor_name, tensor] : files.tensors) {
      const bool table = tensor_name == "model.embed_tokens.weight";
      const bool layer = tensor.shape.size() == 2 && tensor_name.starts_with("model.layers.");
      dequantized[tensor_name] =
          table   ? to_float_type(quantize_blocks(tensor, tensor_name).value(), DType::kF32)
          : layer ? to_float_type(quantize_nf4(tensor, tensor_name).value(), DType::kBF16)
                  : tensor;
    }
    for (const Backend& backend : backends()) {
      HarnessOptions nf4;
      nf4.kv = DType::kBF16;
      nf4.weights.compute = DType::kNf4;
      HarnessOptions bf16 = nf4;
      bf16.weights.compute = DType::kBF16;
      ModelHarness quantized(backend, files.config, files.tensors, nf4);
      ModelHarness plain(backend, files.config, dequantized, bf16);
      const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
      EXPECT_EQ(quantized.hidden(ids), plain.hidden(ids)) << name;
      EXPECT_EQ(quantized.weights->embedding().dtype(), DType::kBlockI8);
    }
  }
}

// The table of a tied model is its head. New weights replace both.
TEST(Nf4ModelTest, ATiedTableIsReadFromTheHead) {
  ModelConfig config = small_config({.tied = true});
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 32;
  const std::string name = "model.embed_tokens.weight";
  HarnessOptions nf4;
  nf4.weights.compute = DType::kNf4;
  ModelConfig untied_config = config;
  untied_config.tie_word_embeddings = false;
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  for (const Backend& backend : backends()) {
    const TensorMap first = random_weights(config, 3);
    const TensorMap second = random_weights(config, 4);
    ModelHarness tied(backend, config, first, nf4);
    for (const TensorMap& tensors : {second, first}) {
      tied.load(tensors);
      TensorMap untied_tensors = tensors;
      untied_tensors["lm_head.weight"] = tensors.at(name);
      ModelHarness untied(backend, untied_config, untied_tensors, nf4);
      EXPECT_EQ(tied.logits_of(ids), untied.logits_of(ids)) << backend;
      const std::int64_t table = config.vocab_size * config.hidden_size / 32 * 34;
      EXPECT_EQ(untied.weights->size_bytes() - tied.weights->size_bytes(), table) << backend;
    }
  }
}

// Compares a model that transformers saved with bitsandbytes with the logits of the weights that it
// represents.
TEST(Nf4ModelTest, ASavedModelGivesTheLogitsOfItsDequantizedWeights) {
  const std::string folder = std::string(TIDEMILL_TEST_DIR) + "/golden/nf4/";
  const auto files = open_model(folder + "llama-nf4", TensorPlacement::kMapped);
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  const TensorMap golden =
      read_tensor_file(folder + "logits.safetensors", TensorPlacement::kCopied).value().tensors;
  const auto ids = golden.at("ids").data.as<std::int32_t>();
  const auto expected = values_of(golden, "logits");
  for (const Backend& backend : backends()) {
    ModelHarness wide(backend, files.value().config, files.value().tensors);
    const Rows logits = wide.logits_of({ids.begin(), ids.end()});
    EXPECT_LT(difference(logits.values, expected).max, 1e-4) << backend;
    // Weights are rounded to bfloat16, and to int8 in the table and the head. Logits reach 3.
    HarnessOptions nf4;
    nf4.weights.compute = DType::kNf4;
    ModelHarness rounded(backend, files.value().config, files.value().tensors, nf4);
    const Rows near = rounded.logits_of({ids.begin(), ids.end()});
    EXPECT_GT(difference(near.values, expected).rms, 0.0) << backend;
    EXPECT_LT(difference(near.values, expected).rms, 0.03) << backend;
  }
}

TEST(Nf4ModelTest, TakesAThirdOfTheMemoryOfBf16) {
  // The sizes that the ratio depends on are those of the benchmarks' 197m model. It has fewer
  // layers.
  ModelConfig config;
  config.vocab_size = 1536;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.num_layers = 12;
  config.num_heads = 4;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.max_positions = 64;
  config.rms_norm_eps = 1e-5;
  config.sliding_windows.assign(12, 0);
  TensorMap tensors;
  for (const auto& [name, shape] : expected_tensors(config)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
      count *= extent;
    }
    const std::vector<float> values(static_cast<std::size_t>(count), 0.01F);
    tensors[name] = make_float_tensor(values, shape, DType::kBF16);
  }
  const auto size_of = [&](DType compute) {
    HarnessOptions options;
    options.weights.compute = compute;
    return static_cast<double>(
        ModelHarness(backends().back(), config, tensors, options).weights->size_bytes());
  };
  EXPECT_LE(size_of(DType::kNf4), 0.30 * size_of(DType::kBF16));
}

}  // namespace
}  // namespace tidemill::engines
