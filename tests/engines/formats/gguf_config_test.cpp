// SPDX-License-Identifier: Apache-2.0
// The config of models in GGUF files: scaling of positions, and defaults of absent keys.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/formats/gguf_model.hpp"
#include "engines/formats/model_files.hpp"
#include "tests/engines/formats/llama_config.hpp"
#include "tests/support/gguf_model_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using test::GgufWriter;

class GgufConfigTest : public ::testing::Test {
protected:
  std::filesystem::path at(const std::string& name) { return directory_.path() / name; }
  std::filesystem::path write(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories(at(name).parent_path());
    std::ofstream(at(name), std::ios::binary | std::ios::trunc) << bytes;
    return at(name);
  }

  test::TemporaryDirectory directory_{test::memory_directory_path()};
};

TEST_F(GgufConfigTest, RecoversTheScalingFromTheFactors) {
  for (const std::int64_t context : {8192, 64, 32768}) {
    for (const double factor : {8.0, 32.0, 2.5}) {
      ModelConfig config = llama_config();
      config.head_dim = 64;
      config.rope.kind = RopeKind::kLlama3;
      config.rope.theta = 500000.0;
      config.rope.factor = factor;
      config.rope.original_max_positions = context;
      const auto opened = open_model(
          write("x.gguf", test::gguf_model_bytes(config, random_model_tensors(config, 1))));
      ASSERT_TRUE(opened.ok()) << opened.status().to_string();
      EXPECT_EQ(opened.value().config, config) << context << ' ' << factor;
    }
  }
}

// Old files have `rope.scale_linear` instead of a type and a factor. As in llama.cpp, a factor
// without a type scales linearly, and a type of "none" turns every factor off.
TEST_F(GgufConfigTest, ReadsTheScalingFromOldAndNewKeys) {
  struct Case {
    const char* type;  // empty: no key
    std::optional<float> factor;
    std::optional<float> linear;  // of `rope.scale_linear`
    RopeKind kind;
    double expected;  // factor
  };
  const std::vector<Case> cases{
      {"", {}, {}, RopeKind::kDefault, 1.0},        {"", {}, 1.0F, RopeKind::kDefault, 1.0},
      {"", {}, 4.0F, RopeKind::kLinear, 4.0},       {"", 1.0F, {}, RopeKind::kDefault, 1.0},
      {"", 4.0F, {}, RopeKind::kLinear, 4.0},       {"", 4.0F, 2.0F, RopeKind::kLinear, 4.0},
      {"", 1.0F, 2.0F, RopeKind::kDefault, 1.0},    {"none", {}, {}, RopeKind::kDefault, 1.0},
      {"none", 4.0F, {}, RopeKind::kDefault, 1.0},  {"none", {}, 4.0F, RopeKind::kDefault, 1.0},
      {"linear", 4.0F, {}, RopeKind::kLinear, 4.0}, {"linear", 4.0F, 2.0F, RopeKind::kLinear, 4.0},
      {"linear", {}, 4.0F, RopeKind::kLinear, 4.0}, {"linear", {}, 1.0F, RopeKind::kLinear, 1.0},
      {"yarn", 4.0F, {}, RopeKind::kYarn, 4.0},     {"yarn", {}, 4.0F, RopeKind::kYarn, 4.0},
  };
  ModelConfig config = llama_config();
  const TensorMap tensors = random_model_tensors(config, 1);
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.type) + ", factor " + std::to_string(c.factor.value_or(0.0F)) +
                 ", linear " + std::to_string(c.linear.value_or(0.0F)));
    GgufWriter writer;
    test::add_gguf_keys(writer, config);
    if (*c.type != '\0') {
      writer.text("llama.rope.scaling.type", c.type);
    }
    if (c.factor.has_value()) {
      writer.f32("llama.rope.scaling.factor", *c.factor);
    }
    if (c.linear.has_value()) {
      writer.f32("llama.rope.scale_linear", *c.linear);
    }
    test::add_gguf_tensors(writer, config, tensors);
    const auto opened = open_model(write("x.gguf", writer.bytes()));
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    EXPECT_EQ(opened.value().config.rope.kind, c.kind);
    EXPECT_EQ(opened.value().config.rope.factor, c.expected);
  }
}

TEST_F(GgufConfigTest, ReadsTheRangeOfYarn) {
  struct Case {
    std::optional<float> fast;
    std::optional<float> slow;
    std::optional<std::uint32_t> context;
    double expected_fast;
    double expected_slow;
    std::int64_t expected_context;
  };
  const std::vector<Case> cases{
      {{}, {}, {}, 32.0, 1.0, 128},     {16.0F, {}, {}, 16.0, 1.0, 128},
      {{}, 2.0F, {}, 32.0, 2.0, 128},   {{}, {}, 64, 32.0, 1.0, 64},
      {16.0F, 2.0F, 32, 16.0, 2.0, 32},
  };
  const ModelConfig config = llama_config();
  const auto open_with = [&](const Case& c) {
    GgufWriter writer;
    test::add_gguf_keys(writer, config);
    writer.text("llama.rope.scaling.type", "yarn");
    writer.f32("llama.rope.scaling.factor", 4.0F);
    if (c.fast.has_value()) {
      writer.f32("llama.rope.scaling.yarn_beta_fast", *c.fast);
    }
    if (c.slow.has_value()) {
      writer.f32("llama.rope.scaling.yarn_beta_slow", *c.slow);
    }
    if (c.context.has_value()) {
      writer.u32("llama.rope.scaling.original_context_length", *c.context);
    }
    test::add_gguf_tensors(writer, config, random_model_tensors(config, 1));
    return open_model(write("x.gguf", writer.bytes()));
  };
  for (const Case& c : cases) {
    const auto opened = open_with(c);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    const RopeConfig& rope = opened.value().config.rope;
    EXPECT_EQ(rope.kind, RopeKind::kYarn);
    EXPECT_EQ(rope.beta_fast, c.expected_fast);
    EXPECT_EQ(rope.beta_slow, c.expected_slow);
    EXPECT_EQ(rope.original_max_positions, c.expected_context);
  }
  EXPECT_EQ(open_with({1.0F, 2.0F, {}, 0.0, 0.0, 0}).status().message(),
            at("x.gguf").string() +
                ": llama.rope.scaling.yarn_beta_fast: must not be smaller than beta_slow");
}

// Writes the keys that every model has, and further ones.
TEST_F(GgufConfigTest, AbsentKeysHaveTheirDefaults) {
  ModelConfig config = llama_config();
  config.num_kv_heads = 4;
  config.head_dim = 16;
  config.eos_token_ids.clear();
  const auto open_with = [&](std::uint32_t heads, const std::function<void(GgufWriter&)>& more) {
    GgufWriter writer;
    writer.text("general.architecture", "llama");
    writer.u32("llama.block_count", 2);
    writer.u32("llama.context_length", 128);
    writer.u32("llama.embedding_length", 64);
    writer.u32("llama.feed_forward_length", 96);
    writer.u32("llama.attention.head_count", heads);
    writer.f32("llama.attention.layer_norm_rms_epsilon", 1e-6F);
    more(writer);
    test::add_gguf_tensors(writer, config, random_model_tensors(config, 1));
    return open_model(write("x.gguf", writer.bytes()));
  };
  const auto plain = open_with(4, [](GgufWriter&) {});
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  EXPECT_EQ(plain.value().config.num_kv_heads, 4);
  EXPECT_EQ(plain.value().config.head_dim, 16);
  EXPECT_EQ(plain.value().config.rope.theta, 10000.0);
  EXPECT_EQ(plain.value().config.rope.kind, RopeKind::kDefault);
  EXPECT_TRUE(plain.value().config.eos_token_ids.empty());
  EXPECT_TRUE(plain.value().config.qkv_bias);
  EXPECT_TRUE(plain.value().config.mlp_bias);
  EXPECT_EQ(open_with(6, [](GgufWriter&) {}).status().message(),
            at("x.gguf").string() +
                ": llama.attention.head_count: 6 does not divide llama.embedding_length, 64, and "
                "there is no llama.attention.key_length");
  // Values that say what is assumed anyway.
  EXPECT_TRUE(open_with(4, [](GgufWriter& w) {
                w.boolean("llama.attention.causal", true);
                w.u32("llama.expert_count", 0);
                w.u32("llama.attention.sliding_window", 0);
                w.u32("llama.attention.value_length", 16);
                w.u32("llama.rope.dimension_count", 16);
                w.u32("llama.vocab_size", 64);
              }).ok());
  // The tokens that end a response, each once.
  using Keys = std::vector<std::pair<const char*, std::uint32_t>>;
  const std::vector<std::pair<Keys, std::vector<std::int32_t>>> ends{
      {{{"eos", 3}}, {3}},
      {{{"eot", 5}}, {5}},
      {{{"eos", 3}, {"eot", 5}}, {3, 5}},
      {{{"eot", 3}, {"eos", 5}}, {5, 3}},
      {{{"eos", 3}, {"eot", 3}}, {3}},
  };
  for (const auto& [keys, expected] : ends) {
    const auto opened = open_with(4, [&keys = keys](GgufWriter& w) {
      for (const auto& [name, id] : keys) {
        w.u32("tokenizer.ggml." + std::string(name) + "_token_id", id);
      }
    });
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    EXPECT_EQ(opened.value().config.eos_token_ids, expected);
  }
}

}  // namespace
}  // namespace tidemill::engines
