// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/tensor_file.hpp"
#include "base/json/json.hpp"
#include "engines/formats/rope.hpp"
#include "tests/engines/formats/golden_models.hpp"

namespace tidemill::engines {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kNumModels = 7;

std::vector<std::string> model_names() {
  std::vector<std::string> names = list_directory(kModels).value();
  std::erase_if(names, [](const std::string& name) {
    return !std::filesystem::is_regular_file(kModels / name / "config.json");
  });
  return names;
}

ModelConfig config_of(const std::string& model, const std::string& file = "config.json") {
  auto config = read_model_config(kModels / model / file);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return config.ok() ? std::move(config).value() : ModelConfig();
}

TEST(ModelConfig, BothConfigStylesOfEveryModelAgree) {
  int num_models = 0;
  for (const std::string& model : model_names()) {
    const bool legacy = std::filesystem::exists(kModels / model / "config.legacy_style.json");
    const ModelConfig other =
        config_of(model, legacy ? "config.legacy_style.json" : "config.new_style.json");
    EXPECT_EQ(config_of(model), other) << model;
    ++num_models;
  }
  EXPECT_EQ(num_models, kNumModels);
  std::cout << num_models << " models: both config styles agree\n";
}

TEST(ModelConfig, ReadsTheFixtures) {
  const ModelConfig llama = config_of("llama-tiny");
  EXPECT_EQ(llama.family, ModelFamily::kLlama);
  EXPECT_EQ(llama.vocab_size, 527);
  EXPECT_EQ(llama.hidden_size, 64);
  EXPECT_EQ(llama.intermediate_size, 160);
  EXPECT_EQ(llama.num_layers, 3);
  EXPECT_EQ(llama.num_heads, 4);
  EXPECT_EQ(llama.num_kv_heads, 2);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.max_positions, 512);
  EXPECT_EQ(llama.rms_norm_eps, 1e-5);
  EXPECT_FALSE(llama.tie_word_embeddings || llama.qkv_bias || llama.output_bias || llama.mlp_bias ||
               llama.qk_norm);
  EXPECT_EQ(llama.rope.kind, RopeKind::kLlama3);
  EXPECT_EQ(llama.rope.theta, 500000.0);
  EXPECT_EQ(llama.rope.original_max_positions, 64);
  EXPECT_EQ(llama.bos_token_id, 520);
  EXPECT_EQ(llama.pad_token_id, 521);
  EXPECT_THAT(llama.eos_token_ids, ElementsAre(524));

  const ModelConfig qwen2 = config_of("qwen2-tiny");
  EXPECT_TRUE(qwen2.qkv_bias && qwen2.tie_word_embeddings);
  EXPECT_FALSE(qwen2.output_bias || qwen2.mlp_bias || qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 16);
  EXPECT_EQ(qwen2.bos_token_id, std::nullopt);
  EXPECT_THAT(qwen2.eos_token_ids, ElementsAre(502, 500));
  EXPECT_THAT(qwen2.sliding_windows, ElementsAre(0, 0));

  const ModelConfig qwen3 = config_of("qwen3-tiny");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 32);

  EXPECT_THAT(config_of("qwen2-sliding").sliding_windows, ElementsAre(0, 16, 16));
  EXPECT_EQ(config_of("llama-linear").rope.factor, 2.5);
  EXPECT_EQ(config_of("llama-bf16-sharded").dtype, DType::kBF16);
}

TEST(ModelConfig, RoundTrips) {
  int num_models = 0;
  for (const std::string& model : model_names()) {
    const ModelConfig config = config_of(model);
    const auto again = parse_model_config(model_config_text(config), "again");
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again.value(), config) << model;
    ++num_models;
  }
  EXPECT_EQ(num_models, kNumModels);
  ModelConfig config = config_of("qwen2-yarn");
  config.rope.attention_factor = 1.25;
  config.rope.mscale = 0.5;
  config.rope.mscale_all_dim = 0.75;
  config.rope.truncate = false;
  config.eos_token_ids.clear();
  config.bos_token_id = 3;
  config.dtype = DType::kF16;
  config.sliding_windows = {32, 0};  // a pattern that only layer_types can express
  EXPECT_EQ(parse_model_config(model_config_text(config), "again").value(), config);
  config = config_of("llama-tiny");
  config.qkv_bias = config.output_bias = config.mlp_bias = true;
  EXPECT_EQ(parse_model_config(model_config_text(config), "again").value(), config);
  config = config_of("qwen2-tiny");
  config.hidden_size = 64;
  config.num_heads = 4;
  config.head_dim = 32;  // not hidden_size / num_heads, the default
  EXPECT_EQ(parse_model_config(model_config_text(config), "again").value(), config);
}

TEST(Rope, FrequenciesOfEveryModelMatchTheGolden) {
  int num_models = 0;
  for (const std::string& model : model_names()) {
    const auto golden = read_tensor_file(kModels / ".." / "forward" / (model + ".safetensors"),
                                         TensorPlacement::kMapped);
    ASSERT_TRUE(golden.ok()) << golden.status().to_string();
    const auto expected = golden.value().tensors.at("inv_freq").data.as<float>();
    const RopeFrequencies actual = rope_frequencies(config_of(model));
    ASSERT_EQ(actual.inverse.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual.inverse[i], expected[i], 1e-6F * expected[i]) << model << ' ' << i;
    }
    EXPECT_NEAR(actual.attention_scaling, model == "qwen2-yarn" ? 1.1386294361 : 1.0, 1e-6);
    ++num_models;
  }
  EXPECT_EQ(num_models, kNumModels);
  std::cout << num_models << " models: inverse frequencies match\n";
}

TEST(Rope, YarnScalingFollowsItsOptions) {
  ModelConfig config = config_of("qwen2-yarn");
  config.rope.attention_factor = 1.5;
  EXPECT_EQ(rope_frequencies(config).attention_scaling, 1.5F);
  config.rope.attention_factor.reset();
  config.rope.mscale = 2.0;
  config.rope.mscale_all_dim = 1.0;
  EXPECT_NEAR(rope_frequencies(config).attention_scaling,
              (0.2 * std::log(4.0) + 1.0) / (0.1 * std::log(4.0) + 1.0), 1e-6);
  config.rope.mscale.reset();
  config.rope.factor = 1.0;
  EXPECT_EQ(rope_frequencies(config).attention_scaling, 1.0F);
}

// A magnitude of 0 counts as absent.
TEST(Rope, YarnMagnitudesOfZeroAreAbsent) {
  ModelConfig config = config_of("qwen2-yarn");
  const float plain = rope_frequencies(config).attention_scaling;
  EXPECT_GT(plain, 1.0F);
  config.rope.mscale = 0.0;
  config.rope.mscale_all_dim = 2.0;
  EXPECT_EQ(rope_frequencies(config).attention_scaling, plain);
  config.rope.mscale = 2.0;
  config.rope.mscale_all_dim = 0.0;
  EXPECT_EQ(rope_frequencies(config).attention_scaling, plain);
}

// The ramp by its formula, with ends that are rounded outward and with ends that are not.
TEST(Rope, TheYarnRampRoundsItsEndsOnlyIfAsked) {
  ModelConfig config = config_of("qwen2-yarn");
  config.head_dim = 64;
  config.rope.theta = 10000.0;
  config.rope.factor = 4.0;
  config.rope.original_max_positions = 2048;
  int num_differences = 0;
  std::vector<float> rounded;
  for (const bool truncate : {true, false}) {
    config.rope.truncate = truncate;
    const auto end = [&](double beta) {
      return 64.0 * std::log(2048.0 / (2.0 * 3.14159265358979 * beta)) / (2.0 * std::log(10000.0));
    };
    double low = end(config.rope.beta_fast);
    double high = end(config.rope.beta_slow);
    if (truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    const RopeFrequencies actual = rope_frequencies(config);
    ASSERT_EQ(actual.inverse.size(), 32U);
    for (std::size_t i = 0; i < 32; ++i) {
      const double plain = std::pow(10000.0, -static_cast<double>(i) / 32.0);
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      const double expected = plain / 4.0 * ramp + plain * (1.0 - ramp);
      EXPECT_NEAR(actual.inverse[i], expected, 1e-5 * expected) << truncate << " " << i;
      num_differences += !truncate && actual.inverse[i] != rounded[i] ? 1 : 0;
    }
    rounded = actual.inverse;
  }
  EXPECT_GT(num_differences, 5);
}

// Both ends of the ramp are 0, so only the first frequency is kept.
TEST(Rope, AYarnRampWithoutWidthIsAStep) {
  ModelConfig config = config_of("qwen2-yarn");
  config.head_dim = 64;
  config.rope.theta = 10000.0;
  config.rope.factor = 4.0;
  config.rope.original_max_positions = 6;
  config.rope.truncate = true;
  const RopeFrequencies actual = rope_frequencies(config);
  ASSERT_EQ(actual.inverse.size(), 32U);
  EXPECT_EQ(actual.inverse[0], 1.0F);
  for (std::size_t i = 1; i < 32; ++i) {
    const double expected = std::pow(10000.0, -static_cast<double>(i) / 32.0) / 4.0;
    EXPECT_NEAR(actual.inverse[i], expected, 1e-5 * expected) << i;
  }
}

TEST(GenerationConfig, ReadsTheConfigOfEveryModel) {
  int num_models = 0;
  for (const std::string& model : model_names()) {
    const auto config = read_generation_config(kModels / model / "generation_config.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(config.value().eos_token_ids, config_of(model).eos_token_ids) << model;
    ++num_models;
  }
  EXPECT_EQ(num_models, kNumModels);
  const GenerationConfig qwen2 =
      read_generation_config(kModels / "qwen2-tiny/generation_config.json").value();
  EXPECT_EQ(qwen2.temperature, 0.7);
  EXPECT_EQ(qwen2.top_k, 20);
  EXPECT_EQ(qwen2.top_p, 0.8);
  EXPECT_EQ(qwen2.repetition_penalty, 1.05);
  EXPECT_EQ(qwen2.do_sample, true);
  EXPECT_EQ(qwen2.min_p, std::nullopt);
}

// Returns a small Qwen2 config with `changes` applied.
std::string config_text(const std::string& changes) {
  const auto base = parse_json(R"({"model_type":"qwen2","vocab_size":100,"hidden_size":64,
      "intermediate_size":96,"num_hidden_layers":3,"num_attention_heads":4,
      "num_key_value_heads":2,"max_position_embeddings":512})");
  const auto over = parse_json(changes);
  EXPECT_TRUE(over.ok()) << changes;
  Json::Object members = *over.value().if_object();
  for (const Json::Member& member : *base.value().if_object()) {
    if (over.value().find(member.name) == nullptr) {
      members.push_back(member);
    }
  }
  return Json(std::move(members)).to_text();
}

ModelConfig parsed(const std::string& changes) {
  auto config = parse_model_config(config_text(changes), "config.json");
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return config.ok() ? std::move(config).value() : ModelConfig();
}

TEST(ModelConfig, UsesTheDefaultsOfTransformers) {
  const ModelConfig plain = parsed("{}");
  EXPECT_EQ(plain.head_dim, 16);
  EXPECT_EQ(plain.rope, RopeConfig());
  EXPECT_THAT(plain.eos_token_ids, IsEmpty());
  EXPECT_EQ(parsed(R"({"model_type":"qwen3"})").head_dim, 128);
  EXPECT_EQ(parsed(R"({"num_key_value_heads":null})").num_kv_heads, 4);
  EXPECT_THAT(parsed(R"({"use_sliding_window":true,"max_window_layers":2})").sliding_windows,
              ElementsAre(0, 0, 4096));
  EXPECT_THAT(parsed(R"({"use_sliding_window":true,"sliding_window":8})").sliding_windows,
              ElementsAre(0, 0, 0));  // the default of max_window_layers is 28
  EXPECT_THAT(parsed(R"({"use_sliding_window":true,"sliding_window":null,"max_window_layers":0})")
                  .sliding_windows,
              ElementsAre(0, 0, 0));
  EXPECT_EQ(parsed(R"({"pad_token_id":-1,"bos_token_id":100})").pad_token_id, std::nullopt);
  EXPECT_EQ(parsed(R"({"pad_token_id":-1,"bos_token_id":100})").bos_token_id, std::nullopt);
  const ModelConfig yarn = parsed(R"({"rope_scaling":{"type":"yarn","factor":4}})");
  EXPECT_EQ(yarn.rope.original_max_positions, 512);
  const ModelConfig biased =
      parsed(R"({"model_type":"llama","attention_bias":true,"mlp_bias":true})");
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
}

TEST(ModelConfig, IgnoresIrrelevantFields) {
  EXPECT_EQ(parsed(R"({"attention_dropout":0.1,"initializer_range":0.5,"use_cache":false,
                       "transformers_version":"9","unheard_of":{"a":[1]},"pretraining_tp":2})"),
            parsed("{}"));
}

struct BadConfig {
  const char* changes;
  const char* message;
};

TEST(ModelConfig, RefusesNamingFileAndField) {
  const std::vector<BadConfig> cases{
      {R"({"model_type":"mixtral"})",
       "config.json: model_type: \"mixtral\" is not supported; only \"llama\""},
      {R"({"model_type":null})", "config.json: model_type: missing"},
      {R"({"model_type":7})", "config.json: model_type: must be a string"},
      {R"({"architectures":["Qwen2ForSequenceClassification"]})",
       "architectures: \"Qwen2ForSequenceClassification\" is not supported; only "
       "\"Qwen2ForCausalLM\""},
      {R"({"hidden_act":"gelu"})",
       "config.json: hidden_act: \"gelu\" is not supported; only \"silu\""},
      {R"({"quantization_config":{"bits":4}})",
       "quantization_config: only the nf4 quantization of bitsandbytes is supported"},
      {R"({"quantization_config":{"quant_method":"bitsandbytes","bnb_4bit_quant_type":"fp4"}})",
       "quantization_config: only the nf4 quantization"},
      {R"({"num_experts":8})", "num_experts: mixtures of experts are not supported"},
      {R"({"partial_rotary_factor":0.5})", "partial_rotary_factor: only 1 is supported"},
      {R"({"vocab_size":null})", "vocab_size: missing; must be an integer from 1 to 16777216"},
      {R"({"vocab_size":0})", "vocab_size: must be an integer from 1"},
      {R"({"vocab_size":-5})", "vocab_size: must be an integer from 1"},
      {R"({"vocab_size":1e3})", "vocab_size: must be an integer from 1"},
      {R"({"vocab_size":9223372036854775807})",
       "vocab_size: must be an integer from 1 to 16777216"},
      {R"({"hidden_size":"64"})", "hidden_size: must be an integer"},
      {R"({"hidden_size":1099511627776})", "hidden_size: must be an integer from 1 to 131072"},
      {R"({"intermediate_size":[96]})", "intermediate_size: must be an integer"},
      {R"({"num_hidden_layers":1000000})", "num_hidden_layers: must be an integer from 1 to 1024"},
      {R"({"num_attention_heads":0})", "num_attention_heads: must be an integer from 1"},
      {R"({"num_key_value_heads":3})",
       "num_key_value_heads: 3 does not divide num_attention_heads, 4"},
      {R"({"num_attention_heads":6})",
       "num_attention_heads: 6 does not divide hidden_size, 64, and there is no head_dim"},
      {R"({"head_dim":7})", "head_dim: must be even and at most 1024, not 7"},
      {R"({"hidden_size":4,"num_key_value_heads":1})",
       "head_dim: must be even and at most 1024, not 1"},
      {R"({"head_dim":0})", "head_dim: must be an integer from 2 to 1024"},
      {R"({"max_position_embeddings":0})", "max_position_embeddings: must be an integer from 1"},
      {R"({"rms_norm_eps":0})", "rms_norm_eps: must be a number of at least"},
      {R"({"rms_norm_eps":"small"})", "rms_norm_eps: must be a number"},
      {R"({"tie_word_embeddings":1})", "tie_word_embeddings: must be true or false"},
      {R"({"torch_dtype":"float64"})", "torch_dtype: \"float64\" is not supported"},
      {R"({"dtype":"int8"})", "dtype: \"int8\" is not supported"},
      {R"({"eos_token_id":100})",
       "eos_token_id: must be an integer from 0 to 99, or a list of these"},
      {R"({"eos_token_id":[1,"2"]})",
       "eos_token_id: must be an integer from 0 to 99, or a list of these"},
      {R"({"use_sliding_window":"yes"})", "use_sliding_window: must be true or false"},
      {R"({"use_sliding_window":true,"sliding_window":0})",
       "sliding_window: must be an integer from 1"},
      {R"({"layer_types":["full_attention"]})", "layer_types: 1 entries for 3 layers"},
      {R"({"layer_types":["full_attention","linear_attention","full_attention"]})",
       "layer_types: \"linear_attention\" is not supported"},
      {R"({"layer_types":["sliding_attention","full_attention","full_attention"]})",
       "layer_types: \"sliding_attention\" needs use_sliding_window"},
      {R"({"rope_theta":0})", "rope_theta: must be a number of at least"},
      {R"({"rope_scaling":"linear"})", "config.json: rope_scaling: must be a JSON object"},
      {R"({"rope_scaling":{"type":"dynamic","factor":2}})",
       "rope_scaling.type: \"dynamic\" is not supported"},
      {R"({"rope_parameters":{"rope_type":"longrope"}})",
       "rope_parameters.rope_type: \"longrope\" is not supported"},
      {R"({"rope_scaling":{"type":"linear"}})", "rope_scaling.factor: missing"},
      {R"({"rope_scaling":{"type":"linear","factor":0.5}})",
       "rope_scaling.factor: must be a number of at least 1"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}})",
       "rope_scaling.original_max_position_embeddings: missing"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,
           "original_max_position_embeddings":64}})",
       "rope_scaling.low_freq_factor: must be smaller than high_freq_factor"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":1,"beta_slow":2}})",
       "rope_scaling.beta_fast: must not be smaller than beta_slow"},
      {R"({"rope_parameters":{"rope_type":"default","rope_theta":-1}})",
       "rope_parameters.rope_theta: must be a number"},
      {R"({"rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5}})",
       "rope_parameters.partial_rotary_factor: only 1 is supported"},
      {R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})",
       "rope_parameters: parameters per layer type are not supported"},
      {R"({"rope_parameters":{"rope_type":"linear","factor":2},"rope_scaling":{"type":"linear","factor":4}})",
       "rope_scaling: contradicts rope_parameters"},
  };
  for (const BadConfig& bad : cases) {
    const auto config = parse_model_config(config_text(bad.changes), "config.json");
    ASSERT_FALSE(config.ok()) << bad.changes;
    EXPECT_THAT(config.status().message(), HasSubstr(bad.message)) << bad.changes;
    EXPECT_THAT(config.status().message(), ::testing::StartsWith("config.json: ")) << bad.changes;
    EXPECT_EQ(config.status().message().find('\n'), std::string::npos);
  }
  EXPECT_EQ(cases.size(), 50U);
  std::cout << cases.size() << " bad configs refused\n";
}

TEST(ModelConfig, RefusesMalformedConfigs) {
  EXPECT_EQ(parse_model_config("{", "config.json").status().code(), Errc::kCorruptData);
  EXPECT_THAT(parse_model_config("[]", "config.json").status().message(),
              HasSubstr("config.json: must be a JSON object"));
  EXPECT_THAT(
      parse_model_config(R"({"vocab_size":1,"vocab_size":2})", "config.json").status().message(),
      HasSubstr("config.json: the name \"vocab_size\" occurs twice"));
  EXPECT_THAT(parse_model_config(std::string(100, '['), "config.json").status().message(),
              HasSubstr("nested deeper"));
  EXPECT_EQ(read_model_config("/nonexistent/config.json").status().code(), Errc::kNotFound);
}

TEST(GenerationConfig, RefusesNamingFileAndField) {
  const std::vector<BadConfig> cases{
      {R"({"temperature":-1})", "g.json: temperature: must be a number of at least 0"},
      {R"({"top_p":1.5})", "g.json: top_p: must be a number of at least 0 and at most 1"},
      {R"({"top_k":-1})", "g.json: top_k: must be an integer from 0"},
      {R"({"repetition_penalty":0})", "g.json: repetition_penalty: must be a number"},
      {R"({"eos_token_id":"x"})", "g.json: eos_token_id: must be an integer"},
      {R"({"do_sample":"x"})", "g.json: do_sample: must be true or false"},
      {R"({"max_new_tokens":0})", "g.json: max_new_tokens: must be an integer from 1"},
  };
  for (const BadConfig& bad : cases) {
    const auto config = parse_generation_config(bad.changes, "g.json");
    ASSERT_FALSE(config.ok()) << bad.changes;
    EXPECT_THAT(config.status().message(), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace tidemill::engines
