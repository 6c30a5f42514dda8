// SPDX-License-Identifier: Apache-2.0
// Tests the golden models as GGUF files of every type. Their logits must have the bits of the same
// tensors in safetensors. Blocks are compared with the floats that they widen to.
#include <algorithm>
#include <fstream>
#include <iostream>

#include <gtest/gtest.h>

#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_harness.hpp"
#include "tests/support/gguf_model_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

struct GgufCase {
  Backend backend;
  std::string model;
};

std::ostream& operator<<(std::ostream& out, const GgufCase& c) {
  return out << c.backend.name << " " << c.model;
}

std::vector<GgufCase> gguf_cases() {
  std::vector<GgufCase> all;
  for (const Backend& backend : backends()) {
    for (const std::string& model : kGoldenModels) {
      all.push_back({backend, model});
    }
  }
  return all;
}

// Returns `tensors` in `dtype`. For a block type, only matrices whose rows can be cut into blocks
// are converted.
TensorMap in_type(const TensorMap& tensors, DType dtype, int& num_blocked) {
  if (dtype != DType::kBlockI8) {
    return to_float_type(tensors, dtype);
  }
  TensorMap out = to_float_type(tensors, DType::kF32);
  for (auto& [name, tensor] : out) {
    auto blocks = tensor.shape.size() == 2 ? quantize_blocks(tensor, name)
                                           : Result<Tensor>(invalid_argument("a vector"));
    if (blocks.ok()) {
      tensor = std::move(blocks).value();
      ++num_blocked;
    }
  }
  return out;
}

class GgufGoldenTest : public ::testing::TestWithParam<GgufCase> {
protected:
  // Returns the logits of the second-to-last prompt for `model`.
  std::vector<float> logits_of(const ModelFiles& model, DType compute) {
    const nlohmann::json golden = golden_json("forward/" + GetParam().model + ".json");
    const auto ids = golden["prompts"][5]["ids"].get<std::vector<std::int32_t>>();
    HarnessOptions options;
    options.weights.compute = compute;
    options.kv = compute;
    ModelHarness harness(GetParam().backend, model.config, model.tensors, options);
    return harness.logits_of(ids).values;
  }

  // Returns the model from a GGUF file with a config.json next to it, since GGUF has no keys for
  // some kinds of rope scaling.
  ModelFiles from_gguf(const ModelFiles& model, const TensorMap& tensors) {
    const std::filesystem::path folder = directory_.path() / "gguf";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "x.gguf", std::ios::binary)
        << test::gguf_model_bytes(model.config, tensors);
    EXPECT_TRUE(write_model_config(files_, folder / "config.json", model.config).ok());
    auto opened = open_model(folder);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(opened).value();
  }

  // Returns the model from safetensors, which has no block types.
  ModelFiles from_safetensors(const ModelFiles& model, const TensorMap& tensors) {
    const std::filesystem::path folder = directory_.path() / "safetensors";
    EXPECT_TRUE(
        export_model(files_, folder, model.config, without_blocks(tensors), std::nullopt).ok());
    auto opened = open_model(folder);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return std::move(opened).value();
  }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_{test::memory_directory_path()};
};

TEST_P(GgufGoldenTest, LogitsAreThoseOfTheSameTensors) {
  const ModelFiles model = golden_model(GetParam().model);
  int num_blocked = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kBlockI8}) {
    const TensorMap tensors = in_type(model.tensors, dtype, num_blocked);
    const ModelFiles gguf = from_gguf(model, tensors);
    const ModelFiles plain = from_safetensors(model, tensors);
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      const std::vector<float> logits = logits_of(gguf, compute);
      EXPECT_EQ(logits, logits_of(plain, compute))
          << dtype_name(dtype) << " in " << dtype_name(compute);
      EXPECT_TRUE(std::ranges::any_of(logits, [](float x) { return x != 0.0F; }));
    }
  }
  EXPECT_GT(num_blocked, 0);
  std::cout << "[ checked  ] " << GetParam() << ": " << num_blocked << " tensors as blocks\n";
}

INSTANTIATE_TEST_SUITE_P(Models, GgufGoldenTest, ::testing::ValuesIn(gguf_cases()),
                         [](const auto& test) {
                           std::string name = test.param.backend.name + "_" + test.param.model;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tidemill::engines
