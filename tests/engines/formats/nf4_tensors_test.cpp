// SPDX-License-Identifier: Apache-2.0
// NF4 weights as bitsandbytes saves them: a model saved by Transformers, and inconsistent parts.
#include "engines/formats/nf4_tensors.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::engines {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::string kFolder = std::string(TIDEMILL_TEST_DIR) + "/golden/nf4/";
const std::string kQuery = "model.layers.1.self_attn.q_proj.weight";
const std::string kState = kQuery + ".quant_state.bitsandbytes__nf4";

TensorMap saved() {
  return read_tensor_file(kFolder + "llama-nf4/model.safetensors", TensorPlacement::kCopied)
      .value()
      .tensors;
}

Tensor bytes_of(const std::string& text) {
  return {DType::kU8,
          {static_cast<std::int64_t>(text.size())},
          Buffer::adopt(std::vector<std::uint8_t>(text.begin(), text.end()), DType::kU8)};
}

// Returns the tensor without its last element.
Tensor cut(const Tensor& tensor) {
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
  const std::int64_t count = tensor.num_elements() - 1;
  return {tensor.dtype,
          {count},
          tensor.data.slice(0, static_cast<std::size_t>(count * bytes), tensor.dtype)};
}

TEST(Nf4TensorsTest, OpensAModelSavedByTransformers) {
  for (const auto placement : {TensorPlacement::kCopied, TensorPlacement::kMapped}) {
    const auto model = open_model(kFolder + "llama-nf4", placement);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    EXPECT_EQ(model.value().config.dtype, DType::kBF16);
    EXPECT_EQ(model.value().tensors.at("lm_head.weight").dtype, DType::kBF16);
    const Tensor& query = model.value().tensors.at(kQuery);
    EXPECT_EQ(query.dtype, DType::kNf4);
    const auto golden =
        read_tensor_file(kFolder + "logits.safetensors", TensorPlacement::kCopied).value();
    const Tensor wide = to_float_type(query, DType::kF32);
    EXPECT_THAT(wide.data.as<float>(),
                ElementsAreArray(golden.tensors.at("q_proj").data.as<float>()));
  }
}

TEST(Nf4TensorsTest, OtherTensorsAreUnchanged) {
  const TensorMap before = saved();
  const TensorMap after = join_nf4_tensors(before, "file").value();
  EXPECT_EQ(before.size(), 7U + 14U * 6U);  // table, head and norms; 7 linear layers in 2 blocks
  EXPECT_EQ(after.size(), 7U + 14U);
  EXPECT_EQ(after.at("model.norm.weight").data.identity(),
            before.at("model.norm.weight").data.identity());
}

TEST(Nf4TensorsTest, RefusesInconsistentParts) {
  const auto refusal = [](const auto& change) {
    TensorMap tensors = saved();
    change(tensors);
    const Status status = join_nf4_tensors(std::move(tensors), "file").status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.message();
  };
  const auto with_state = [&](const std::string& from, const std::string& to) {
    return refusal([&](TensorMap& tensors) {
      const auto bytes = tensors.at(kState).data.as<std::uint8_t>();
      std::string text(bytes.begin(), bytes.end());
      const std::size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos) << text;
      tensors[kState] = bytes_of(text.replace(at, from.size(), to));
    });
  };
  const std::string location = "file: tensor \"" + kQuery;
  for (const char* part : {"", ".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map"}) {
    EXPECT_EQ(refusal([&](TensorMap& tensors) { tensors.erase(kQuery + part); }),
              location + part + "\": missing");
    EXPECT_THAT(refusal([&](TensorMap& tensors) {
                  tensors[kQuery + part] =
                      make_float_tensor(std::vector<float>(4), {4}, DType::kBF16);
                }),
                HasSubstr("\": type BF16, expected"));
  }
  // Wrong block counts.
  EXPECT_EQ(refusal([](TensorMap& t) { t[kQuery] = cut(t[kQuery]); }),
            location + "\": 2047 bytes of codes; its shape needs 2048");
  EXPECT_EQ(refusal([](TensorMap& t) { t[kQuery + ".absmax"] = cut(t[kQuery + ".absmax"]); }),
            location + "\": 63 blocks; its shape needs 64");
  EXPECT_EQ(refusal([](TensorMap& t) {
              t[kQuery + ".nested_absmax"] = cut(t[kQuery + ".nested_absmax"]);
            }),
            location + "\": 0 groups of blocks; its shape needs 1");
  EXPECT_EQ(refusal([](TensorMap& t) {
              t[kQuery + ".nested_quant_map"] = cut(t[kQuery + ".nested_quant_map"]);
            }),
            location + ".nested_quant_map\": differs from the published map");
  EXPECT_EQ(with_state("[64, 64]", "[64, 128]"),
            location + "\": 2048 bytes of codes; its shape needs 4096");
  EXPECT_EQ(with_state("[64, 64]", "[4, 1024.5]"),
            location + "\": shape: must be a list of integers");
  EXPECT_EQ(with_state("[64, 64]", "[-64, -64]"),
            location + "\": its rows cannot be cut into blocks of 64");
  EXPECT_EQ(with_state("[64, 64]", "[128, 32]"),
            location + "\": its rows cannot be cut into blocks of 64");
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": 128"),
            location + "\": blocksize: 128; only 64 is supported");
  EXPECT_EQ(with_state("\"nested_offset\": ", "\"nested_offset\": null, \"x\": "),
            location + "\": nested_offset: must be a number");
  EXPECT_EQ(with_state("\"nested_offset\": ", "\"nested_offset\": 1e39, \"x\": "),
            location + "\": element [0, 0] is infinite");
  EXPECT_THAT(with_state("{", ""), HasSubstr(kState));
  // Unquantized scales, and the other 4-bit type.
  EXPECT_EQ(refusal([](TensorMap& t) {
              t[kQuery + ".absmax"] = make_float_tensor(std::vector<float>(64), {64}, DType::kF32);
            }),
            location + ".absmax\": scales must be quantized too (double_quant)");
  EXPECT_EQ(refusal([](TensorMap& t) { t["w.quant_state.bitsandbytes__fp4"] = t[kState]; }),
            "file: tensor \"w.quant_state.bitsandbytes__fp4\": only nf4 is supported");
}

}  // namespace
}  // namespace tidemill::engines
