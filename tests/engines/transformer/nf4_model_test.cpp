// SPDX-License-Identifier: Apache-2.0
// A model whose layers are NF4 is the bf16 model of the weights that they stand for.
#include <gtest/gtest.h>

#include "base/block_int8.hpp"
#include "base/block_nf4.hpp"
#include "base/float_tensor.hpp"
#include "base/tensor_file.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_bench.hpp"

namespace tidemill::engines {
namespace {

// Table and head are in int8: the table widens exactly, the head comes after what is compared.
TEST(Nf4ModelTest, HasTheHiddenStatesOfTheBf16ModelItStandsFor) {
  for (const std::string name : {"llama-bf16-sharded", "qwen3-tiny"}) {
    const ModelFiles files = golden_model(name);
    TensorMap stands_for;
    for (const auto& [tensor_name, tensor] : files.tensors) {
      const bool table = tensor_name == "model.embed_tokens.weight";
      const bool layer = tensor.shape.size() == 2 && tensor_name.starts_with("model.layers.");
      stands_for[tensor_name] =
          table   ? to_float_type(quantize_blocks(tensor, tensor_name).value(), DType::kF32)
          : layer ? to_float_type(quantize_nf4(tensor, tensor_name).value(), DType::kBF16)
                  : tensor;
    }
    for (const Backend& backend : backends()) {
      BenchOptions nf4;
      nf4.kv = DType::kBF16;
      nf4.weights.compute = DType::kNf4;
      BenchOptions bf16 = nf4;
      bf16.weights.compute = DType::kBF16;
      ModelBench quantized(backend, files.config, files.tensors, nf4);
      ModelBench plain(backend, files.config, stands_for, bf16);
      const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
      EXPECT_EQ(quantized.hidden(ids), plain.hidden(ids)) << name;
      EXPECT_EQ(quantized.weights->embedding().dtype, DType::kBlockI8);
    }
  }
}

// What transformers saved with bitsandbytes, against the logits of the weights that it stands for.
TEST(Nf4ModelTest, ASavedModelComputesWhatItsBlocksStandFor) {
  const std::string folder = std::string(TIDEMILL_TEST_DIR) + "/golden/nf4/";
  const auto files = open_model(folder + "llama-nf4", TensorPlacement::kMapped);
  ASSERT_TRUE(files.ok()) << files.status().to_string();
  const TensorMap golden =
      read_tensor_file(folder + "logits.safetensors", TensorPlacement::kCopied).value().tensors;
  const auto ids = golden.at("ids").data.as<std::int32_t>();
  const auto expected = values_of(golden, "logits");
  for (const Backend& backend : backends()) {
    ModelBench wide(backend, files.value().config, files.value().tensors);
    const Rows logits = wide.logits_of({ids.begin(), ids.end()});
    EXPECT_LT(difference(logits.values, expected).max, 1e-4) << backend;
    // Rounded to bfloat16 and to int8 in table and head; logits reach 3.
    BenchOptions nf4;
    nf4.weights.compute = DType::kNf4;
    ModelBench rounded(backend, files.value().config, files.value().tensors, nf4);
    const Rows near = rounded.logits_of({ids.begin(), ids.end()});
    EXPECT_GT(difference(near.values, expected).rms, 0.0) << backend;
    EXPECT_LT(difference(near.values, expected).rms, 0.03) << backend;
  }
}

TEST(Nf4ModelTest, WeighsAThirdOfBf16) {
  // As the 197m model of the benchmarks in all that the share depends on, with fewer layers.
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
    BenchOptions options;
    options.weights.compute = compute;
    return static_cast<double>(
        ModelBench(backends().back(), config, tensors, options).weights->size_bytes());
  };
  EXPECT_LE(size_of(DType::kNf4), 0.30 * size_of(DType::kBF16));
}

}  // namespace
}  // namespace tidemill::engines
