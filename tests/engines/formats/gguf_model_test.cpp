// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: they have the same config and tensors as in Hugging Face's layout, bad ones
// are refused, and weights that are not finite are refused in both formats.
#include "engines/formats/gguf_model.hpp"

#include <fstream>
#include <functional>
#include <iostream>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/random.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "tests/engines/formats/golden_models.hpp"
#include "tests/engines/formats/llama_config.hpp"
#include "tests/support/gguf_model_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using test::GgufWriter;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GgufModelTest : public ::testing::Test {
public:  // the test tables below use it to write bad files
  std::filesystem::path at(const std::string& name) { return directory_.path() / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories(at(name).parent_path());
    std::ofstream(at(name), std::ios::binary | std::ios::trunc) << bytes;
    return at(name);
  }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_{test::memory_directory_path()};
};

// Returns `tensors` as converters write them: matrices in `dtype`, vectors in float32.
TensorMap matrices_in(const TensorMap& tensors, DType dtype) {
  TensorMap out;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.shape.size() < 2) {
      out[name] = to_float_type(tensor, DType::kF32);
    } else if (dtype != DType::kBlockI8) {
      out[name] = to_float_type(tensor, dtype);
    } else {
      const auto blocks = quantize_blocks(tensor, name);  // fails for rows of 48
      out[name] = blocks.ok() ? blocks.value() : tensor;
    }
  }
  return out;
}

// Returns random weights, so that no two rows are equal. Biases are random too.
TensorMap weights_of(const ModelConfig& config) {
  TensorMap tensors = random_model_tensors(config, 1);
  std::uint64_t stream = 100;
  for (auto& [name, tensor] : tensors) {
    if (tensor.shape.size() == 1) {
      RandomStream random(1, stream++);
      std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
      for (float& value : values) {
        value = static_cast<float>(random.normal());
      }
      tensor = make_float_tensor(values, tensor.shape, DType::kF32);
    }
  }
  return tensors;
}

TEST_F(GgufModelTest, ReadsTheConfigAndTensorsOfEveryFixture) {
  int num_models = 0;
  for (const std::string& name : list_directory(kModels).value()) {
    SCOPED_TRACE(name);
    const ModelFiles model = open_model(kModels / name).value();
    const auto path = write(name + "/x.gguf", test::gguf_model_bytes(model.config, model.tensors));
    const bool slides = name == "qwen2-sliding";  // no GGUF key describes sliding windows
    if (slides) {
      std::filesystem::copy_file(kModels / name / "config.json", at(name + "/config.json"));
    }
    std::filesystem::copy_file(kModels / name / "generation_config.json",
                               at(name + "/generation_config.json"));
    for (const auto placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
      const auto opened = open_model(path, placement);
      ASSERT_TRUE(opened.ok()) << opened.status().to_string();
      EXPECT_EQ(opened.value().config, model.config);
      EXPECT_EQ(opened.value().generation, model.generation);
      EXPECT_EQ(digest_tensors(opened.value().tensors), digest_tensors(model.tensors));
    }
    EXPECT_EQ(open_model_config(at(name)).value().config, model.config);
    EXPECT_TRUE(open_model_config(at(name)).value().tensors.empty());
    ++num_models;
  }
  EXPECT_EQ(num_models, 7);
  std::cout << num_models << " models opened from GGUF files\n";
}

TEST_F(GgufModelTest, RestoresTheRowOrderOfLlamaInEveryType) {
  const ModelConfig config = llama_config();
  const TensorMap weights = weights_of(config);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kBlockI8}) {
    const TensorMap tensors = matrices_in(weights, dtype);
    const auto path = write("x.gguf", test::gguf_model_bytes(config, tensors));
    const auto opened = open_model(path);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    EXPECT_EQ(digest_tensors(opened.value().tensors), digest_tensors(tensors)) << dtype_name(dtype);
    const DType expected = dtype == DType::kBlockI8 ? DType::kF32 : dtype;
    EXPECT_EQ(opened.value().config.dtype, expected);
  }
}

// Checks the rows of one head explicitly. Rows 0 and C/2, which are rotated together, are adjacent
// in the file.
TEST_F(GgufModelTest, MovesInterleavedRowsHalfAHeadApart) {
  ModelConfig config = llama_config();
  config.head_dim = 4;
  TensorMap tensors = random_model_tensors(config, 1);
  std::vector<float> bias(16);
  for (std::size_t i = 0; i < bias.size(); ++i) {
    bias[i] = static_cast<float>(i);
  }
  GgufWriter writer;
  test::add_gguf_keys(writer, config);
  for (const auto& [name, tensor] : tensors) {
    const bool first = name == "model.layers.0.self_attn.q_proj.bias";
    writer.tensor(test::gguf_name(name),
                  first ? make_float_tensor(bias, {16}, DType::kF32) : tensor);
  }
  const auto opened = open_model(write("x.gguf", writer.bytes()));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const auto rows =
      opened.value().tensors.at("model.layers.0.self_attn.q_proj.bias").data.as<float>();
  EXPECT_THAT(rows.first(8), ::testing::ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

TEST_F(GgufModelTest, FindsTheModelFile) {
  const ModelConfig config = llama_config();
  const std::string bytes = test::gguf_model_bytes(config, random_model_tensors(config, 1));
  write("m/a.gguf", bytes);
  EXPECT_EQ(open_model(at("m")).value().config, config);
  ASSERT_TRUE(write_model_config(files_, at("m/config.json"), config).ok());
  EXPECT_EQ(open_model(at("m")).value().config, config);
  EXPECT_EQ(open_model(at("m/a.gguf")).value().config, config);
  write("m/b.gguf", bytes);
  EXPECT_EQ(
      open_model(at("m")).status().message(),
      at("m").string() + ": contains several GGUF files, including a.gguf and b.gguf; name one");
  EXPECT_EQ(open_model(at("m/b.gguf")).value().config, config);
  // Safetensors take precedence, and a GGUF file may have any name.
  ASSERT_TRUE(
      write_tensor_file(files_, at("m/model.safetensors"), random_model_tensors(config, 2)).ok());
  EXPECT_EQ(digest_tensors(open_model(at("m")).value().tensors),
            digest_tensors(random_model_tensors(config, 2)));
  write("weights", bytes);
  EXPECT_EQ(open_model(at("weights")).value().config, config);
  EXPECT_THAT(open_model(at("m/config.json")).status().message(),
              HasSubstr("config.json: not a GGUF file: begins with \"{"));
  EXPECT_EQ(open_model(at("none.gguf")).status().code(), Errc::kNotFound);
}

TEST_F(GgufModelTest, ExportsTheTokenizerUnlessOneIsCopied) {
  const ModelConfig config = llama_config();
  const TensorMap tensors = random_model_tensors(config, 1);
  const auto write_with = [&](const char* split) {
    GgufWriter writer;
    test::add_gguf_keys(writer, config);
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", split);
    writer.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<end>"});
    writer.integers("tokenizer.ggml.token_type", {1, 1, 1, 3});
    writer.texts("tokenizer.ggml.merges", {"a b"});
    writer.text("tokenizer.chat_template", "{{ x }}");
    test::add_gguf_tensors(writer, config, tensors);
    return write("m/x.gguf", writer.bytes());
  };
  const auto text_of = [this](const std::string& name) {
    return read_text_file(at(name), 1U << 20U).value();
  };
  const auto path = write_with("qwen2");
  ASSERT_TRUE(export_model(files_, at("out"), config, tensors, path).ok());
  EXPECT_THAT(text_of("out/tokenizer.json"), HasSubstr("\"<end>\""));
  EXPECT_THAT(text_of("out/tokenizer_config.json"), HasSubstr("\"{{ x }}\""));
  write("m/tokenizer.json", "copied");
  ASSERT_TRUE(export_model(files_, at("out2"), config, tensors, path).ok());
  EXPECT_EQ(text_of("out2/tokenizer.json"), "copied");
  EXPECT_FALSE(std::filesystem::exists(at("out2/tokenizer_config.json")));
  std::filesystem::remove(at("m/tokenizer.json"));
  // Weights without a supported tokenizer are useful too.
  write_with("deepseek-llm");
  ASSERT_TRUE(export_model(files_, at("out3"), config, tensors, path).ok());
  EXPECT_FALSE(std::filesystem::exists(at("out3/tokenizer.json")));
  EXPECT_TRUE(open_model(at("out3")).ok());
}

TEST_F(GgufModelTest, ExportsBlocksAsFloats) {
  const ModelConfig config = llama_config();
  const TensorMap blocks = matrices_in(weights_of(config), DType::kBlockI8);
  const auto path = write("m/x.gguf", test::gguf_model_bytes(config, blocks));
  const ModelFiles model = open_model(path).value();
  ASSERT_TRUE(export_model(files_, at("out"), model.config, model.tensors, path).ok());
  const auto again = open_model(at("out"));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again.value().config, config);
  EXPECT_EQ(digest_tensors(again.value().tensors), digest_tensors(without_blocks(blocks)));
  EXPECT_FALSE(std::filesystem::exists(at("out/tokenizer.json")));  // the source has no tokenizer
  EXPECT_THAT(export_model(files_, at("m"), model.config, model.tensors, path).message(),
              HasSubstr("cannot be exported over its own source"));
}

TEST_F(GgufModelTest, RefusesBadModels) {
  struct Case {
    const char* name;
    std::function<void(GgufWriter&)> keys;     // writes the keys
    std::function<void(TensorMap&)> tensors;   // changes the tensors of the model
    std::function<void(GgufWriter&)> further;  // writes further keys and tensors
    std::function<void(ModelConfig&)> given;   // changes the config.json next to the file
    const char* message;
  };
  const auto nothing = [](auto&) {};
  // Writes the keys of the model without `omitted`. `instead` may write others.
  const auto without = [](const char* omitted, std::function<void(GgufWriter&)> instead) {
    return [=](GgufWriter& writer) {
      const auto size = [&](const char* name, std::uint32_t value) {
        if (std::string_view(name) != omitted) {
          writer.u32("llama." + std::string(name), value);
        }
      };
      size("block_count", 2);
      size("context_length", 128);
      size("embedding_length", 64);
      size("feed_forward_length", 96);
      size("attention.head_count", 4);
      size("attention.head_count_kv", 2);
      size("attention.key_length", 32);
      if (std::string_view("general.architecture") != omitted) {
        writer.text("general.architecture", "llama");
      }
      if (std::string_view("attention.layer_norm_rms_epsilon") != omitted) {
        writer.f32("llama.attention.layer_norm_rms_epsilon", 1e-6F);
      }
      instead(writer);
    };
  };
  const auto with = [=](std::function<void(GgufWriter&)> more) { return without("", more); };
  const auto u32 = [](const char* name, std::uint32_t value) {
    return [=](GgufWriter& writer) { writer.u32(name, value); };
  };
  const auto text = [](const char* name, const char* value) {
    return [=](GgufWriter& writer) { writer.text(name, value); };
  };
  const auto vector = [](std::int64_t size) {
    return make_float_tensor(std::vector<float>(static_cast<std::size_t>(size), 1.0F), {size},
                             DType::kF32);
  };
  const std::vector<Case> cases{
      {"no architecture",
       without("general.architecture", nothing),
       nothing,
       nothing,
       {},
       "general.architecture: missing; only \"llama\", \"qwen2\" and \"qwen3\""},
      {"another architecture",
       without("general.architecture", text("general.architecture", "gemma3")),
       nothing,
       nothing,
       {},
       "general.architecture: \"gemma3\" is not supported; only \"llama\""},
      {"architecture is a number",
       without("general.architecture", u32("general.architecture", 1)),
       nothing,
       nothing,
       {},
       "general.architecture: must be a string"},
      {"an adapter",
       with(text("general.type", "adapter")),
       nothing,
       nothing,
       {},
       "general.type: only \"model\" is supported"},
      {"keys of another architecture",
       without("general.architecture", text("general.architecture", "qwen2")),
       nothing,
       nothing,
       {},
       "qwen2.embedding_length: missing; must be an integer"},
      {"no layers",
       without("block_count", nothing),
       nothing,
       nothing,
       {},
       "llama.block_count: missing; must be an integer"},
      {"too many layers",
       without("block_count", u32("llama.block_count", 1025)),
       nothing,
       nothing,
       {},
       "llama.block_count: must be an integer from 1 to 1024"},
      {"number of layers is a string",
       without("block_count", text("llama.block_count", "2")),
       nothing,
       nothing,
       {},
       "llama.block_count: must be an integer"},
      {"no context",
       without("context_length", nothing),
       nothing,
       nothing,
       {},
       "llama.context_length: missing"},
      {"no epsilon",
       without("attention.layer_norm_rms_epsilon", nothing),
       nothing,
       nothing,
       {},
       "llama.attention.layer_norm_rms_epsilon: missing"},
      {"heads per layer",
       without("attention.head_count_kv",
               [](GgufWriter& w) {
                 w.integers("llama.attention.head_count_kv", {2, 2});
               }),
       nothing,
       nothing,
       {},
       "llama.attention.head_count_kv: must be an integer"},
      {"heads that do not divide",
       without("attention.head_count_kv", u32("llama.attention.head_count_kv", 3)),
       nothing,
       nothing,
       {},
       "llama.attention.head_count_kv: 3 does not divide"},
      {"no head size, and another value size",
       without("attention.key_length",
               [](GgufWriter& w) { w.u32("llama.attention.value_length", 32); }),
       nothing,
       nothing,
       {},
       "llama.attention.value_length: only 16, the head size"},
      {"odd head size",
       without("attention.key_length", u32("llama.attention.key_length", 33)),
       nothing,
       nothing,
       {},
       "llama.attention.key_length: must be even"},
      {"values of another size",
       with(u32("llama.attention.value_length", 64)),
       nothing,
       nothing,
       {},
       "llama.attention.value_length: only 32, the head size, is supported"},
      {"rotation of half a head",
       with(u32("llama.rope.dimension_count", 16)),
       nothing,
       nothing,
       {},
       "llama.rope.dimension_count: only 32, the head size, is supported"},
      {"experts",
       with(u32("llama.expert_count", 8)),
       nothing,
       nothing,
       {},
       "llama.expert_count: only 0 is supported"},
      {"a sliding window",
       with(u32("llama.attention.sliding_window", 64)),
       nothing,
       nothing,
       {},
       "llama.attention.sliding_window: only 0 is supported"},
      {"an unknown key",
       with(u32("llama.logit_scale", 2)),
       nothing,
       nothing,
       {},
       "llama.logit_scale: this key is not supported"},
      {"another scaling",
       with(text("llama.rope.scaling.type", "longrope")),
       nothing,
       nothing,
       {},
       "llama.rope.scaling.type: \"longrope\" is not supported"},
      {"a scaling without a factor",
       with(text("llama.rope.scaling.type", "linear")),
       nothing,
       nothing,
       {},
       "llama.rope.scaling.factor: must be a number"},
      {"a factor below 1",
       with([](GgufWriter& w) { w.f32("llama.rope.scaling.factor", 0.5F); }),
       nothing,
       nothing,
       {},
       "llama.rope.scaling.factor: must be a number of at least 1"},
      {"an old factor below 1",
       with([](GgufWriter& w) { w.f32("llama.rope.scale_linear", 0.5F); }),
       nothing,
       nothing,
       {},
       "llama.rope.scale_linear: must be a number of at least 1"},
      {"frequencies that increase",
       with([](GgufWriter& w) { w.f32("llama.rope.freq_base", 0.5F); }),
       nothing,
       nothing,
       {},
       "llama.rope.freq_base: must be a number"},
      {"a base that is not a number",
       with([](GgufWriter& w) {
         w.f32("llama.rope.freq_base", std::numeric_limits<float>::quiet_NaN());
       }),
       nothing,
       nothing,
       {},
       "llama.rope.freq_base: must be a number"},
      {"an end token outside the vocabulary",
       with(u32("tokenizer.ggml.eos_token_id", 64)),
       nothing,
       nothing,
       {},
       "tokenizer.ggml.eos_token_id: must be an integer from 0 to 63"},
      {"another vocabulary size",
       with(u32("llama.vocab_size", 65)),
       nothing,
       nothing,
       {},
       "llama.vocab_size: must be 64, the number of rows of \"token_embd.weight\""},
      // -- tensors
      {"no embedding table",
       with(nothing),
       [](TensorMap& x) { x.erase("model.embed_tokens.weight"); },
       nothing,
       {},
       "tensor \"token_embd.weight\": missing"},
      {"a missing tensor",
       with(nothing),
       [](TensorMap& x) { x.erase("model.norm.weight"); },
       nothing,
       {},
       "tensor \"model.norm.weight\": missing"},
      {"a tensor of another model",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0.ssm_a", vector(4)); },
       {},
       "tensor \"blk.0.ssm_a\": unexpected: a llama model has no such tensor"},
      {"a layer number with a leading zero",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.00.attn_norm.weight", vector(64)); },
       {},
       "tensor \"blk.00.attn_norm.weight\": unexpected"},
      {"an extra layer",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.2.attn_norm.weight", vector(64)); },
       {},
       "tensor \"model.layers.2.input_layernorm.weight\": unexpected"},
      {"biases only on queries",
       with(nothing),
       [](TensorMap& x) { x.erase("model.layers.0.self_attn.o_proj.bias"); },
       nothing,
       {},
       "tensor \"blk.0.attn_q.bias\": attention biases are supported on all four"},
      {"rows for fewer heads",
       with(nothing),
       [&](TensorMap& x) { x["model.layers.0.self_attn.q_proj.bias"] = vector(64); },
       nothing,
       {},
       "tensor \"blk.0.attn_q.bias\": 64 rows, but 4 heads have 128"},
      {"a vector of blocks",
       with(nothing),
       [&](TensorMap& x) { x["model.norm.weight"] = quantize_blocks(vector(64), "").value(); },
       nothing,
       {},
       "tensor \"output_norm.weight\": type Q8_0 is supported for matrices only"},
      {"another shape",
       with(nothing),
       [&](TensorMap& x) { x["model.norm.weight"] = vector(32); },
       nothing,
       {},
       "tensor \"model.norm.weight\": shape [32], but the config asks for [64]"},
      {"factors of no scaling",
       with(nothing),
       nothing,
       [&](GgufWriter& w) {
         std::vector<float> factors(16, 1.0F);
         factors[7] = 3.0F;
         w.tensor("rope_freqs.weight", make_float_tensor(factors, {16}, DType::kF32));
       },
       {},
       "tensor \"rope_freqs.weight\": not the factors of Llama 3.1's scaling"},
      {"factors that are not numbers",
       with(nothing),
       nothing,
       [&](GgufWriter& w) {
         const std::vector<float> factors(16, std::numeric_limits<float>::quiet_NaN());
         w.tensor("rope_freqs.weight", make_float_tensor(factors, {16}, DType::kF32));
       },
       {},
       "tensor \"rope_freqs.weight\": not the factors of Llama 3.1's scaling"},
      {"too few factors",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("rope_freqs.weight", vector(8)); },
       {},
       "tensor \"rope_freqs.weight\": must be 16 of type F32"},
      {"factors with another scaling",
       with([](GgufWriter& w) {
         w.text("llama.rope.scaling.type", "linear");
         w.f32("llama.rope.scaling.factor", 4.0F);
       }),
       nothing,
       [&](GgufWriter& w) { w.tensor("rope_freqs.weight", vector(16)); },
       {},
       "tensor \"rope_freqs.weight\": does not match the model's frequency scaling"},
      {"NaN",
       with(nothing),
       [](TensorMap& x) {
         std::vector<float> values(64 * 64, 0.5F);
         values[3 * 64 + 17] = std::numeric_limits<float>::quiet_NaN();
         x["model.embed_tokens.weight"] = make_float_tensor(values, {64, 64}, DType::kBF16);
       },
       nothing,
       {},
       "tensor \"model.embed_tokens.weight\": element [3, 17] is NaN"},
      {"an infinite scale",
       with(nothing),
       [](TensorMap& x) {
         std::vector<BlockI8> blocks(64 * 2);
         blocks[5].scale = 0x7C00;
         x["model.embed_tokens.weight"] = {
             DType::kBlockI8, {64, 64}, Buffer::adopt(blocks, DType::kBlockI8)};
       },
       nothing,
       {},
       "tensor \"model.embed_tokens.weight\": element [2, 32] is infinite"},
      {"not causal",
       with([](GgufWriter& w) { w.boolean("llama.attention.causal", false); }),
       nothing,
       nothing,
       {},
       "llama.attention.causal: only true is supported"},
      {"causal is a number",
       with(u32("llama.attention.causal", 1)),
       nothing,
       nothing,
       {},
       "llama.attention.causal: must be true or false"},
      {"a tensor blk.0.attn_norm.scale",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0.attn_norm.scale", vector(64)); },
       {},
       "tensor \"blk.0.attn_norm.scale\": unexpected: a llama model has no such tensor"},
      {"a tensor blk.0.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0.weight", vector(64)); },
       {},
       "tensor \"blk.0.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor blk.0",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0", vector(64)); },
       {},
       "tensor \"blk.0\": unexpected: a llama model has no such tensor"},
      {"a tensor blk.x.attn_norm.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.x.attn_norm.weight", vector(64)); },
       {},
       "tensor \"blk.x.attn_norm.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor blk.0x.attn_norm.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0x.attn_norm.weight", vector(64)); },
       {},
       "tensor \"blk.0x.attn_norm.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor blk..attn_norm.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk..attn_norm.weight", vector(64)); },
       {},
       "tensor \"blk..attn_norm.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor blk.0.attn_norm.x.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("blk.0.attn_norm.x.weight", vector(64)); },
       {},
       "tensor \"blk.0.attn_norm.x.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor block.0.attn_norm.weight",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("block.0.attn_norm.weight", vector(64)); },
       {},
       "tensor \"block.0.attn_norm.weight\": unexpected: a llama model has no such tensor"},
      {"a tensor output_norm.bias",
       with(nothing),
       nothing,
       [&](GgufWriter& w) { w.tensor("output_norm.bias", vector(64)); },
       {},
       "tensor \"output_norm.bias\": unexpected: a llama model has no such tensor"},
      // -- a config.json next to the file
      {"other heads in config.json", with(nothing), nothing, nothing,
       [](ModelConfig& c) { c.num_heads = 2; },
       "does not match the config.json next to it: num_attention_heads differs"},
      {"another family in config.json", with(nothing), nothing, nothing,
       [](ModelConfig& c) {
         c.family = ModelFamily::kQwen3;
         c.mlp_bias = false;
         c.qk_norm = true;
       },
       "does not match the config.json next to it: model_type differs"},
  };
  const ModelConfig config = llama_config();
  for (const Case& c : cases) {
    TensorMap tensors = random_model_tensors(config, 1);
    c.tensors(tensors);
    GgufWriter writer;
    c.keys(writer);
    test::add_gguf_tensors(writer, config, tensors);
    c.further(writer);
    std::filesystem::remove_all(at("m"));
    const auto path = write("m/x.gguf", writer.bytes());
    if (c.given) {
      ModelConfig given = config;
      c.given(given);
      ASSERT_TRUE(write_model_config(files_, at("m/config.json"), given).ok());
    }
    const Status status = open_model(path).status();
    EXPECT_FALSE(status.ok()) << c.name;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.name;
    EXPECT_THAT(status.message(), StartsWith(path.string() + ": ")) << c.name;
  }
  EXPECT_EQ(cases.size(), 55U);
  std::cout << cases.size() << " bad models refused\n";
}

TEST_F(GgufModelTest, RefusesNonFiniteSafetensors) {
  const ModelConfig config = llama_config();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    TensorMap tensors = to_float_type(random_model_tensors(config, 1), dtype);
    std::vector<float> values(96 * 64, 0.5F);
    values[95 * 64 + 63] = -std::numeric_limits<float>::infinity();
    tensors["model.layers.1.mlp.up_proj.weight"] = make_float_tensor(values, {96, 64}, dtype);
    ASSERT_TRUE(export_model(files_, at("m"), config, tensors, std::nullopt).ok());
    EXPECT_EQ(open_model(at("m")).status().message(),
              at("m/model.safetensors").string() +
                  ": tensor \"model.layers.1.mlp.up_proj.weight\": element [95, 63] is infinite");
    const auto unchecked = open_model(at("m"), TensorPlacement::kMapped, FiniteCheck::kInRuntime);
    ASSERT_TRUE(unchecked.ok()) << unchecked.status().to_string();
    EXPECT_EQ(unchecked.value().unchecked, at("m/model.safetensors").string());
  }
}

}  // namespace
}  // namespace tidemill::engines
