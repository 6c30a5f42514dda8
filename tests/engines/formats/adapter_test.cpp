// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/json/json.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/module_pattern.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

const std::filesystem::path kEngine = TIDEMILL_TEST_DIR "/golden/engine";
constexpr int kNumAdapters = 12;

std::vector<std::string> adapter_names() {
  std::vector<std::string> names = list_directory(kEngine / "adapters").value();
  std::erase(names, "summary.json");
  return names;
}

Json golden_of(const std::string& adapter) {
  const auto text =
      read_text_file(kEngine / "adapters" / adapter / "golden.json", std::uint64_t{16} << 20U);
  return parse_json(text.value(), {.max_bytes = std::size_t{16} << 20U}).value();
}

ModelConfig base_of(const std::string& adapter) {
  const std::string base = *golden_of(adapter).find("base_model")->if_string();
  return read_model_config(kEngine / "models" / base / "config.json").value();
}

AdapterFiles adapter_of(const std::string& name) {
  auto adapter = open_adapter(kEngine / "adapters" / name, base_of(name));
  EXPECT_TRUE(adapter.ok()) << adapter.status().to_string();
  return adapter.ok() ? std::move(adapter).value() : AdapterFiles();
}

std::vector<std::string> paths(const std::vector<AdapterModule>& modules) {
  std::vector<std::string> out;
  for (const AdapterModule& entry : modules) {
    out.push_back(entry.module.path);
  }
  return out;
}

const AdapterModule& module_at(const AdapterFiles& adapter, const std::string& path) {
  for (const AdapterModule& entry : adapter.modules) {
    if (entry.module.path == path) {
      return entry;
    }
  }
  static const AdapterModule kNone;
  ADD_FAILURE() << path << " is not selected";
  return kNone;
}

TEST(Adapter, EveryFixtureResolvesToTheTensorsOfItsFile) {
  int num_adapters = 0;
  for (const std::string& name : adapter_names()) {
    const AdapterFiles adapter = adapter_of(name);  // checks names and shapes against the file
    // golden.json lists the tensors that PEFT's own writer saved.
    const Json golden = golden_of(name);
    const Json::Object& listed = *golden.find("adapter_tensors")->if_object();
    const TensorShapes expected =
        expected_adapter_tensors(adapter.config, adapter.modules, base_of(name));
    EXPECT_EQ(listed.size(), expected.size()) << name;
    for (const Json::Member& member : listed) {
      std::vector<std::int64_t> shape;
      for (const Json& extent : *member.value.if_array()) {
        shape.push_back(*extent.if_integer());
      }
      ASSERT_TRUE(expected.contains(member.name)) << name << ' ' << member.name;
      EXPECT_EQ(expected.at(member.name), shape) << name << ' ' << member.name;
    }
    ++num_adapters;
  }
  EXPECT_EQ(num_adapters, kNumAdapters);
  std::cout << num_adapters << " adapter directories opened and resolved\n";
}

TEST(Adapter, RanksAndScalesFollowThePatterns) {
  const AdapterFiles patterns = adapter_of("lora-patterns");
  const AdapterModule& q = module_at(patterns, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(q.rank, 2);
  EXPECT_EQ(q.alpha, 8.0);
  EXPECT_EQ(q.scale, 4.0);
  const AdapterModule& k = module_at(patterns, "model.layers.1.self_attn.k_proj");
  EXPECT_EQ(k.rank, 4);
  EXPECT_EQ(k.alpha, 32.0);
  EXPECT_EQ(k.scale, 8.0);
  const AdapterModule& down = module_at(patterns, "model.layers.1.mlp.down_proj");
  EXPECT_EQ(down.rank, 6);
  EXPECT_EQ(down.scale, 0.5);
  EXPECT_EQ(module_at(patterns, "model.layers.0.mlp.down_proj").scale, 2.0);

  const AdapterFiles rslora = adapter_of("lora-rslora");
  EXPECT_EQ(rslora.modules.size(), 14U);
  for (const AdapterModule& entry : rslora.modules) {
    EXPECT_DOUBLE_EQ(entry.scale, 4.0 / std::sqrt(8.0));
  }
  for (const AdapterModule& entry : adapter_of("lora-all-linear").modules) {
    EXPECT_EQ(entry.scale, 2.0);
  }
}

TEST(Adapter, SelectsTheExpectedModules) {
  EXPECT_THAT(paths(adapter_of("lora-layers").modules),
              ElementsAre("model.layers.1.self_attn.v_proj", "model.layers.1.mlp.up_proj"));
  EXPECT_THAT(paths(adapter_of("lora-regex").modules),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj",
                          "model.layers.0.mlp.down_proj", "model.layers.2.self_attn.q_proj",
                          "model.layers.2.self_attn.o_proj", "model.layers.2.mlp.down_proj"));
  const AdapterFiles embedding = adapter_of("lora-embedding");
  EXPECT_TRUE(module_at(embedding, "model.embed_tokens").module.is_embedding);
  EXPECT_THAT(adapter_of("lora-lm-head-saved").config.modules_to_save, ElementsAre("lm_head"));
  EXPECT_EQ(adapter_of("lora-bias-only").config.bias, AdapterBias::kTargets);
  EXPECT_TRUE(adapter_of("dora").config.use_dora);
  EXPECT_EQ(adapter_of("lora-all-linear").config.dropout, 0.05);
  const AdapterFiles ia3 = adapter_of("ia3");
  EXPECT_EQ(ia3.config.kind, AdapterKind::kIa3);
  EXPECT_TRUE(module_at(ia3, "model.layers.0.mlp.down_proj").scales_input);
  EXPECT_FALSE(module_at(ia3, "model.layers.0.self_attn.k_proj").scales_input);
}

TEST(Adapter, ConfigsRoundTrip) {
  int num_adapters = 0;
  for (const std::string& name : adapter_names()) {
    const AdapterConfig config =
        read_adapter_config(kEngine / "adapters" / name / "adapter_config.json").value();
    const auto again = parse_adapter_config(adapter_config_text(config), "again");
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again.value(), config) << name;
    ++num_adapters;
  }
  EXPECT_EQ(num_adapters, kNumAdapters);
  AdapterConfig config;
  config.alpha = 2.5;
  config.targets = {ModuleSelector::Kind::kAllLinear, {}, {}};
  EXPECT_EQ(parse_adapter_config(adapter_config_text(config), "again").value(), config);
  config.targets = {ModuleSelector::Kind::kNames, {"q_proj", "v_proj"}, {}};
  config.excluded = {ModuleSelector::Kind::kRegex, {}, ".*k_proj"};
  config.alpha_pattern = {{"z", 1.5}, {"a", 2.0}};
  config.lora_bias = true;
  config.bias = AdapterBias::kAll;
  config.layers_to_transform = {{0, 2}};
  config.layers_pattern = {"layers"};
  EXPECT_EQ(parse_adapter_config(adapter_config_text(config), "again").value(), config);
}

TEST(Adapter, DirectoriesRoundTrip) {
  const test::TemporaryDirectory directory;
  PosixFileSystem files;
  int num_adapters = 0;
  for (const std::string& name : adapter_names()) {
    const AdapterFiles adapter = adapter_of(name);
    const auto path = directory.path() / name;
    for (int round = 0; round < 2; ++round) {  // the second one replaces the first
      const Status status =
          write_adapter(files, path, adapter.config, base_of(name), adapter.tensors);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    const auto again = open_adapter(path, base_of(name));
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(again.value().config, adapter.config);
    EXPECT_EQ(digest_tensors(again.value().tensors), digest_tensors(adapter.tensors)) << name;
    EXPECT_THAT(list_directory(path).value(),
                ElementsAre("adapter_config.json", "adapter_model.safetensors"));
    ++num_adapters;
  }
  EXPECT_EQ(num_adapters, kNumAdapters);
}

TEST(Adapter, RefusesToWriteUnexpectedTensors) {
  const test::TemporaryDirectory directory;
  PosixFileSystem files;
  AdapterFiles adapter = adapter_of("lora-qv");
  adapter.tensors.erase(adapter.tensors.begin());
  EXPECT_THAT(write_adapter(files, directory.path() / "a", adapter.config, base_of("lora-qv"),
                            adapter.tensors)
                  .message(),
              HasSubstr("lora_A.weight\": missing"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "a"));
}

// Selects modules of a Llama model with three layers by the rules of PEFT.
class Resolve : public ::testing::Test {
protected:
  std::vector<std::string> selected(const std::string& fields) {
    const auto config =
        parse_adapter_config(R"({"peft_type":"LORA",)" + fields + "}", "adapter_config.json");
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    const auto modules = resolve_adapter(config.value(), model_, "adapter_config.json");
    EXPECT_TRUE(modules.ok()) << modules.status().to_string();
    return modules.ok() ? paths(modules.value()) : std::vector<std::string>();
  }
  std::string layer(int number, const std::string& name) {
    return "model.layers." + std::to_string(number) + "." + name;
  }
  ModelConfig model_ = read_model_config(kEngine / "models/llama-tiny/config.json").value();
};

TEST_F(Resolve, NamesMatchWholeComponents) {
  EXPECT_EQ(selected(R"("target_modules":["q_proj"])").size(), 3U);
  EXPECT_EQ(selected(R"("target_modules":["self_attn.q_proj","roj"])").size(), 3U);
  EXPECT_THAT(selected(R"("target_modules":["model.layers.1.mlp.up_proj"])"),
              ElementsAre(layer(1, "mlp.up_proj")));
  EXPECT_THAT(selected(R"("target_modules":["lm_head"])"), ElementsAre("lm_head"));
}

TEST_F(Resolve, AbsentTargetsUseTheDefaultOfPeft) {
  EXPECT_EQ(selected(R"("r":4)").size(), 6U);
}

TEST_F(Resolve, AllLinearExcludesTheHead) {
  const auto all = selected(R"("target_modules":"all-linear")");
  EXPECT_EQ(all.size(), 21U);
  EXPECT_THAT(all, ::testing::Not(::testing::Contains("lm_head")));
  EXPECT_EQ(selected(R"("target_modules":"all-linear","exclude_modules":["k_proj"])").size(), 18U);
  EXPECT_EQ(selected(R"("target_modules":"all-linear","exclude_modules":".*\\.(0|1)\\..*")").size(),
            7U);
}

TEST_F(Resolve, PatternsMustMatchTheWholePath) {
  EXPECT_EQ(selected(R"("target_modules":".*[qv]_proj")").size(), 6U);
  EXPECT_THAT(selected(R"("target_modules":"model\\.layers\\.0\\.mlp\\.up_proj|lm_head")"),
              UnorderedElementsAre(layer(0, "mlp.up_proj"), "lm_head"));
}

TEST_F(Resolve, LayersToTransformRestrictsSuffixes) {
  EXPECT_THAT(selected(R"("target_modules":["q_proj"],"layers_to_transform":[0,2])"),
              ElementsAre(layer(0, "self_attn.q_proj"), layer(2, "self_attn.q_proj")));
  EXPECT_THAT(selected(R"("target_modules":["q_proj"],"layers_to_transform":1,
                          "layers_pattern":"layers")"),
              ElementsAre(layer(1, "self_attn.q_proj")));
}

TEST_F(Resolve, LayersToTransformExcludesAllOtherModules) {
  model_.num_layers = 12;
  model_.sliding_windows.resize(12);
  EXPECT_THAT(selected(R"("target_modules":["q_proj"],"layers_to_transform":[1])"),
              ElementsAre(layer(1, "self_attn.q_proj")))
      << "not 10 and 11";
  // A module outside of the layers has no number.
  EXPECT_THAT(selected(R"("target_modules":["embed_tokens"])"), ElementsAre("model.embed_tokens"));
  EXPECT_THAT(
      selected(R"("target_modules":["embed_tokens","q_proj"],"layers_to_transform":[0,10])"),
      ElementsAre(layer(0, "self_attn.q_proj"), layer(10, "self_attn.q_proj")));
}

TEST_F(Resolve, WholePathsIgnoreLayersToTransform) {
  EXPECT_THAT(selected(R"("target_modules":["q_proj","model.layers.2.mlp.up_proj"],
                          "layers_to_transform":[0])"),
              ElementsAre(layer(0, "self_attn.q_proj"), layer(2, "mlp.up_proj")));
  EXPECT_EQ(selected(R"("target_modules":["q_proj"],"layers_to_transform":[])").size(), 3U);
}

TEST_F(Resolve, SavedModulesAreNotTargets) {
  EXPECT_THAT(selected(R"("target_modules":["lm_head","model.layers.0.mlp.up_proj"],
                          "modules_to_save":["lm_head"])"),
              ElementsAre(layer(0, "mlp.up_proj")));
}

TEST_F(Resolve, TheFirstPatternInFileOrderWins) {
  const auto rank_of = [this](const std::string& patterns) {
    const auto config =
        parse_adapter_config(
            R"({"peft_type":"LORA","r":4,"target_modules":["q_proj"],)" + patterns + "}", "a")
            .value();
    return resolve_adapter(config, model_, "a").value().at(1).rank;  // layer 1
  };
  EXPECT_EQ(rank_of(R"("rank_pattern":{"q_proj":2,"layers.1.self_attn.q_proj":3})"), 2);
  EXPECT_EQ(rank_of(R"("rank_pattern":{"layers.1.self_attn.q_proj":3,"q_proj":2})"), 3);
  EXPECT_EQ(rank_of(R"("rank_pattern":{"^model.layers.1.*":5})"), 5);
  EXPECT_EQ(rank_of(R"("rank_pattern":{"proj":7,"_proj":8,"q_pro":9})"), 4);
  EXPECT_EQ(rank_of(R"("rank_pattern":{"layers.(0|2).*":7,"[qk]_proj":6})"), 6);
}

// The scale of a module comes from its own rank and alpha.
TEST_F(Resolve, ScalesFollowThePatterns) {
  const auto scale_of = [this](const std::string& options) {
    const auto config = parse_adapter_config(
                            R"({"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],
                                "rank_pattern":{"layers.1.*":16},"alpha_pattern":{"layers.2.*":24},)" +
                                options + "}",
                            "a")
                            .value();
    std::vector<double> scales;
    for (const AdapterModule& entry : resolve_adapter(config, model_, "a").value()) {
      scales.push_back(entry.scale);
    }
    return scales;
  };
  EXPECT_THAT(scale_of(R"("use_rslora":false)"), ElementsAre(2.0, 0.5, 6.0));
  EXPECT_THAT(scale_of(R"("use_rslora":true)"), ElementsAre(4.0, 2.0, 12.0));
}

TEST(ModulePattern, AgreesWithPythonOnGroupsAndEnds) {
  const ModulePattern pattern = ModulePattern::compile(".*\\.[^.]*\\.(\\d+)\\.").value();
  EXPECT_EQ(pattern.first_group("model.layers.12.mlp.up_proj").value(), "12");
  EXPECT_EQ(pattern.first_group("lm_head").value(), std::nullopt);
  EXPECT_FALSE(ModulePattern::compile("a").value().matches_whole("ab").value());
  EXPECT_FALSE(ModulePattern::compile("b").value().matches_whole("ab").value());
}

TEST(ModulePattern, LongPatternsAreRefused) {
  EXPECT_TRUE(ModulePattern::compile(std::string(4096, 'a')).ok());
  EXPECT_EQ(ModulePattern::compile(std::string(4097, 'a')).status().message(),
            "a pattern of 4097 bytes; at most 4096 are read");
  // A group that takes no part in the match, and patterns without a group.
  EXPECT_EQ(ModulePattern::compile("(x)?model.(.)").value().first_group("model.2").value(),
            std::nullopt);
  EXPECT_EQ(ModulePattern::compile("model").value().first_group("model.2").value(), std::nullopt);
  EXPECT_EQ(ModulePattern::compile("\\d(.)").value().first_group("model.25").value(), std::nullopt)
      << "a match begins at the start";
  EXPECT_FALSE(ModulePattern::compile("a$").value().matches_whole("a\n").value());
}

// The limit on patterns, and the biases that PEFT adds to the second matrix.
TEST(AdapterConfig, ManyPatternsAreRefused) {
  const auto with = [](int count) {
    std::string text = R"({"peft_type":"LORA","rank_pattern":{)";
    for (int i = 0; i < count; ++i) {
      text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
    }
    return parse_adapter_config(text + "}}", "a").status().message();
  };
  EXPECT_EQ(with(10000), "");
  EXPECT_EQ(with(10001), "a: rank_pattern: more than 10000 patterns");
}

TEST_F(Resolve, BiasesOfTheSecondMatrixAreTensors) {
  const auto config = parse_adapter_config(R"({"peft_type":"LORA","r":4,"lora_bias":true,
                               "target_modules":["embed_tokens","lm_head"]})",
                                           "a")
                          .value();
  const auto modules = resolve_adapter(config, model_, "a").value();
  const TensorShapes shapes = expected_adapter_tensors(config, modules, model_);
  EXPECT_EQ(shapes.size(), 5U);
  EXPECT_EQ(shapes.at("base_model.model.lm_head.lora_B.bias"),
            std::vector<std::int64_t>{model_.vocab_size});
  EXPECT_EQ(shapes.at("base_model.model.model.embed_tokens.lora_embedding_A"),
            (std::vector<std::int64_t>{4, model_.vocab_size}));
  EXPECT_EQ(shapes.at("base_model.model.model.embed_tokens.lora_embedding_B"),
            (std::vector<std::int64_t>{model_.hidden_size, 4}));
}

TEST(ModulePattern, StopsRunawayMatches) {
  const ModulePattern pattern = ModulePattern::compile("((a+)+)+[b-z]").value();
  const auto match = pattern.matches_whole(std::string(200, 'a'));
  ASSERT_FALSE(match.ok());
  EXPECT_THAT(match.status().message(), HasSubstr("too many steps"));
}

TEST(AdapterConfig, RefusesNamingFileAndField) {
  struct Case {
    const char* fields;  // after peft_type LORA
    const char* message;
  };
  const std::vector<Case> cases{
      {R"("peft_type":"PREFIX_TUNING")", "peft_type: \"PREFIX_TUNING\" is not supported"},
      {R"("peft_type":null)", "peft_type: \"\" is not supported"},
      {R"("peft_type":"LORA","task_type":"SEQ_CLS")", "task_type: \"SEQ_CLS\" is not supported"},
      {R"("peft_type":"LORA","r":0)", "r: must be an integer from 1 to 65536"},
      {R"("peft_type":"LORA","r":-4)", "r: must be an integer from 1 to 65536"},
      {R"("peft_type":"LORA","r":1000000000)", "r: must be an integer from 1 to 65536"},
      {R"("peft_type":"LORA","r":"8")", "r: must be an integer from 1 to 65536"},
      {R"("peft_type":"LORA","lora_alpha":"x")", "lora_alpha: must be a number"},
      {R"("peft_type":"LORA","lora_alpha":-1)", "lora_alpha: must be a number of at least 0"},
      {R"("peft_type":"LORA","lora_dropout":1)", "lora_dropout: must be a number of at least 0"},
      {R"("peft_type":"LORA","use_rslora":1)", "use_rslora: must be true or false"},
      {R"("peft_type":"LORA","bias":"some")", "bias: must be \"none\", \"all\" or \"lora_only\""},
      {R"("peft_type":"LORA","target_modules":[1])", "target_modules: must be a list of strings"},
      {R"("peft_type":"LORA","target_modules":{})", "target_modules: must be a list of strings"},
      {R"("peft_type":"LORA","exclude_modules":"all-linear")",
       "exclude_modules: \"all-linear\" would exclude every linear layer"},
      {R"("peft_type":"LORA","rank_pattern":[])", "rank_pattern: must be a JSON object"},
      {R"("peft_type":"LORA","rank_pattern":{"q_proj":0})",
       "rank_pattern.q_proj: must be an integer from 1"},
      {R"("peft_type":"LORA","rank_pattern":{"q":1,"q":2})", "the name \"q\" occurs twice"},
      {R"("peft_type":"LORA","alpha_pattern":{"q_proj":"x"})",
       "alpha_pattern.q_proj: must be a number"},
      {R"("peft_type":"LORA","layers_to_transform":[-1])",
       "layers_to_transform: must be an integer from 0"},
      {R"("peft_type":"LORA","layers_to_transform":[0],"target_modules":".*q_proj")",
       "layers_to_transform: cannot be used with a string as target_modules"},
      {R"("peft_type":"LORA","layers_to_transform":[0],"target_modules":"all-linear")",
       "layers_to_transform: cannot be used with a string as target_modules"},
      {R"("peft_type":"LORA","layers_pattern":"layers","target_modules":"all-linear")",
       "layers_pattern: cannot be used with a string as target_modules"},
      {R"("peft_type":"LORA","layers_pattern":"layers")",
       "layers_pattern: needs layers_to_transform"},
      {R"("peft_type":"LORA","init_lora_weights":"pissa_niter_4")",
       "init_lora_weights: \"pissa_niter_4\" is not supported: it changes the base weights too"},
      {R"("peft_type":"LORA","layer_replication":[[0,2]])", "layer_replication: not supported"},
      {R"("peft_type":"LORA","target_parameters":["x"])", "target_parameters: not supported"},
      {R"("peft_type":"LORA","trainable_token_indices":[1])",
       "trainable_token_indices: not supported"},
      {R"("peft_type":"LORA","use_qalora":true)", "use_qalora: not supported"},
      {R"("peft_type":"LORA","ensure_weight_tying":true)", "ensure_weight_tying: not supported"},
      {R"("peft_type":"LORA","r":65537)", "r: must be an integer from 1 to 65536"},
      {R"("peft_type":"LORA","lora_dropout":-0.1)", "lora_dropout: must be a number of at least 0"},
      {R"("peft_type":"LORA","lora_bias":1)", "lora_bias: must be true or false"},
      {R"("peft_type":"LORA","use_dora":"no")", "use_dora: must be true or false"},
      {R"("peft_type":"LORA","bias":true)", "bias: must be a string"},
      {R"("peft_type":"LORA","modules_to_save":[1])", "modules_to_save: must be a list of strings"},
      {R"("peft_type":"LORA","layers_to_transform":1000001)",
       "layers_to_transform: must be an integer from 0 to 1000000"},
      {R"("peft_type":"LORA","alpha_pattern":{"q":1,"k":-1})",
       "alpha_pattern.k: must be a number of at least 0"},
      {R"("peft_type":"LORA","rank_pattern":{"q":1,"k":65537})",
       "rank_pattern.k: must be an integer from 1 to 65536"},
      {R"("peft_type":"IA3","target_modules":["k_proj"],"task_type":"SEQ_2_SEQ_LM")",
       "task_type: \"SEQ_2_SEQ_LM\" is not supported; only \"CAUSAL_LM\""},
      {R"("peft_type":"IA3","target_modules":["embed_tokens"])",
       "target_modules: DoRA and IA3 on embed_tokens are not supported"},
      {R"("peft_type":"IA3","target_modules":["k_proj"],"feedforward_modules":"(")",
       "feedforward_modules: bad pattern \"(\" at offset 1"},
      {R"("peft_type":"IA3")", "target_modules: missing"},
      // refused only when applied to a model
      {R"("peft_type":"LORA","target_modules":["nothing"])",
       "target_modules: match no module of this model"},
      {R"("peft_type":"LORA","target_modules":[])",
       "target_modules: match no module of this model"},
      {R"("peft_type":"LORA","target_modules":".*(q_proj")",
       "target_modules: bad pattern \".*(q_proj\" at offset 9"},
      {R"("peft_type":"LORA","exclude_modules":"[")", "exclude_modules: bad pattern \"[\""},
      {R"("peft_type":"LORA","target_modules":"(([a-z._0-9]+)+)+[A-Z]")",
       "target_modules: the pattern takes too many steps on \"model."},
      {R"("peft_type":"LORA","rank_pattern":{"(":2})", "rank_pattern: bad pattern"},
      {R"("peft_type":"LORA","alpha_pattern":{"*":2})", "alpha_pattern: bad pattern"},
      {R"("peft_type":"LORA","layers_to_transform":[0],"layers_pattern":["("])",
       "layers_pattern: bad pattern"},
      {R"("peft_type":"LORA","use_dora":true,"target_modules":["embed_tokens"])",
       "target_modules: DoRA and IA3 on embed_tokens are not supported"},
  };
  const ModelConfig model = read_model_config(kEngine / "models/llama-tiny/config.json").value();
  for (const Case& c : cases) {
    const std::string text = "{" + std::string(c.fields) + "}";
    const auto config = parse_adapter_config(text, "adapter_config.json");
    const Status status =
        config.ok() ? resolve_adapter(config.value(), model, "adapter_config.json").status()
                    : config.status();
    ASSERT_FALSE(status.ok()) << c.fields;
    EXPECT_THAT(status.message(), StartsWith("adapter_config.json: ")) << c.fields;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.fields;
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  EXPECT_EQ(cases.size(), 52U);
  std::cout << cases.size() << " bad adapter configs refused\n";
}

TEST(AdapterConfig, IgnoresUnknownAndEmptyFields) {
  const auto config = parse_adapter_config(
      R"({"peft_type":"LORA","loftq_config":{},"megatron_config":null,"from_the_future":null,
          "use_qalora":false,"target_parameters":[],"init_lora_weights":"gaussian",
          "peft_version":"9.9"})",
      "a");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config.value(), AdapterConfig());
}

TEST(Adapter, RefusesBadDirectories) {
  struct Case {
    const char* name;
    std::function<void(const std::filesystem::path&, TensorMap&)> damage;
    const char* message;
  };
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::vector<Case> cases{
      {"no config",
       [](const auto& p, auto&) { std::filesystem::remove(p / "adapter_config.json"); },
       "adapter_config.json: cannot open"},
      {"no weights",
       [](const auto& p, auto& t) {
         t.clear();
         std::filesystem::remove(p / "adapter_model.safetensors");
       },
       "adapter_model.safetensors: cannot open"},
      {"missing tensor", [&q](const auto&, auto& t) { t.erase(q); }, "lora_A.weight\": missing"},
      {"tensor of another adapter",
       [&q](const auto&, auto& t) { t["base_model.model.lm_head.lora_A.weight"] = t.at(q); },
       "tensor \"base_model.model.lm_head.lora_A.weight\": unexpected"},
      {"wrong rank",
       [&q](const auto&, auto& t) {
         t[q] = {DType::kF32, {3, 64}, Buffer::adopt(std::vector<float>(192), DType::kF32)};
       },
       "lora_A.weight\": shape [3, 64], but the config asks for [4, 64]"},
      {"transposed",
       [&q](const auto&, auto& t) {
         t[q].shape = {64, 4};
       },
       "lora_A.weight\": shape [64, 4], but the config asks for [4, 64]"},
      {"wrong type",
       [&q](const auto&, auto& t) {
         t[q] = {DType::kF64, {4, 64}, Buffer::adopt(std::vector<double>(256), DType::kF64)};
       },
       "lora_A.weight\": type F64; only F32, F16, BF16, Q8_0 and NF4"},
  };
  const AdapterFiles adapter = adapter_of("lora-qv");
  const ModelConfig model = base_of("lora-qv");
  const test::TemporaryDirectory directory;
  PosixFileSystem files;
  for (const Case& c : cases) {
    const auto path = directory.path() / "a";
    ASSERT_TRUE(write_adapter(files, path, adapter.config, model, adapter.tensors).ok());
    TensorMap tensors = adapter.tensors;
    c.damage(path, tensors);
    if (!tensors.empty()) {
      ASSERT_TRUE(write_tensor_file(files, path / "adapter_model.safetensors", tensors).ok());
    }
    const Status status = open_adapter(path, model).status();
    ASSERT_FALSE(status.ok()) << c.name;
    EXPECT_THAT(status.message(), StartsWith(path.string())) << c.name;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.name;
  }
  // A valid adapter with another model.
  const ModelConfig other = base_of("lora-bf16-base");
  EXPECT_THAT(open_adapter(kEngine / "adapters/lora-qv", other).status().message(),
              HasSubstr("adapter_model.safetensors: tensor"));
  std::cout << cases.size() + 1 << " bad adapter directories refused\n";
}

}  // namespace
}  // namespace tidemill::engines
