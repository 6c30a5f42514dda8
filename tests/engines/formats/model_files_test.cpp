// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/model_files.hpp"

#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "tests/engines/formats/golden_models.hpp"
#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kShard = "model-00001-of-00002.safetensors";
constexpr const char* kOtherShard = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

ModelConfig small_config() {
  ModelConfig config;
  config.family = ModelFamily::kQwen3;
  config.vocab_size = 11;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 6;
  config.max_positions = 32;
  config.qk_norm = true;
  config.sliding_windows = {0, 0};
  config.eos_token_ids = {3};
  return config;
}

class ModelFilesTest : public ::testing::Test {
public:  // the test tables below use it to write bad directories
  std::filesystem::path at(const std::string& name) { return directory_.path() / name; }
  void write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  // Writes a model in two shards to "m". `change` may first modify the tensors and the index.
  struct Sharded {
    TensorMap first;
    TensorMap second;
    std::map<std::string, std::string> index;
  };
  void write_sharded(const std::function<void(Sharded&)>& change = {}) {
    const ModelConfig config = small_config();
    Sharded parts;
    for (auto& [name, tensor] : random_model_tensors(config, 1)) {
      const bool early = name < "model.layers.1";
      parts.index[name] = early ? kShard : kOtherShard;
      (early ? parts.first : parts.second)[name] = tensor;
    }
    if (change) {
      change(parts);
    }
    std::filesystem::create_directories(at("m"));
    ASSERT_TRUE(write_model_config(files_, at("m/config.json"), config).ok());
    ASSERT_TRUE(write_tensor_file(files_, at("m") / kShard, parts.first).ok());
    ASSERT_TRUE(write_tensor_file(files_, at("m") / kOtherShard, parts.second).ok());
    std::string text = R"({"metadata":{},"weight_map":{)";
    for (const auto& [name, file] : parts.index) {
      text += (text.back() == '{' ? "\"" : ",\"") + name + "\":\"" + file + "\"";
    }
    write(at("m") / kIndex, text + "}}");
  }
  std::string refusal() {
    const Status status = open_model(at("m")).status();
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.message();
  }

  PosixFileSystem files_;
  test::TemporaryDirectory directory_;
};

TEST_F(ModelFilesTest, OpensEveryFixture) {
  int num_models = 0;
  for (const std::string& name : list_directory(kModels).value()) {
    for (const auto placement : {TensorPlacement::kMapped, TensorPlacement::kCopied}) {
      const auto model = open_model(kModels / name, placement);
      ASSERT_TRUE(model.ok()) << model.status().to_string();
      EXPECT_EQ(model.value().tensors.size(), expected_tensors(model.value().config).size());
      for (const auto& [tensor, value] : model.value().tensors) {
        EXPECT_EQ(value.dtype, model.value().config.dtype) << name << ' ' << tensor;
      }
      EXPECT_EQ(model.value().generation.eos_token_ids, model.value().config.eos_token_ids);
    }
    ++num_models;
  }
  EXPECT_EQ(num_models, 7);
  std::cout << num_models << " model directories opened\n";
}

TEST_F(ModelFilesTest, CountsParameters) {
  // The value of total_parameters in the index that Transformers wrote.
  const auto model = open_model(kModels / "llama-bf16-sharded");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(num_parameters(model.value().config), 134848);
}

TEST_F(ModelFilesTest, ExpectsTheTensorsOfEachVariant) {
  ModelConfig config = small_config();
  TensorShapes shapes = expected_tensors(config);
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.q_proj.weight"),
            (std::vector<std::int64_t>{12, 8}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.k_proj.weight"), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(shapes.at("model.layers.1.self_attn.o_proj.weight"),
            (std::vector<std::int64_t>{8, 12}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_norm.weight"), (std::vector<std::int64_t>{6}));
  EXPECT_TRUE(shapes.contains("lm_head.weight"));
  EXPECT_FALSE(shapes.contains("model.layers.0.self_attn.q_proj.bias"));
  config.tie_word_embeddings = config.qkv_bias = config.output_bias = config.mlp_bias = true;
  config.qk_norm = false;
  shapes = expected_tensors(config);
  EXPECT_FALSE(shapes.contains("lm_head.weight"));
  EXPECT_FALSE(shapes.contains("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.q_proj.bias"), (std::vector<std::int64_t>{12}));
  EXPECT_EQ(shapes.at("model.layers.0.self_attn.o_proj.bias"), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(shapes.at("model.layers.0.mlp.up_proj.bias"), (std::vector<std::int64_t>{12}));
}

TEST_F(ModelFilesTest, RandomWeightsFollowTheSeed) {
  ModelConfig config = small_config();
  config.vocab_size = 2000;
  config.qkv_bias = config.output_bias = true;
  const TensorMap tensors = random_model_tensors(config, 7);
  EXPECT_TRUE(check_tensors(expected_tensors(config), tensors, "random").ok());
  EXPECT_EQ(digest_tensors(random_model_tensors(config, 7)), digest_tensors(tensors));
  EXPECT_NE(digest_tensors(random_model_tensors(config, 8)), digest_tensors(tensors));
  const auto table = tensors.at("model.embed_tokens.weight").data.as<float>();
  double sum = 0;
  double squares = 0;
  for (const float x : table) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto count = static_cast<double>(table.size());
  // 16,000 samples, with a tolerance of four standard errors.
  EXPECT_NEAR(sum / count, 0.0, 4 * 0.02 / std::sqrt(count));
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 4 * 0.02 / std::sqrt(2 * count));
  const auto head = tensors.at("lm_head.weight").data.as<float>();
  EXPECT_NE(head[0], table[0]);
  EXPECT_THAT(tensors.at("model.norm.weight").data.as<float>(), ::testing::Each(1.0F));
  EXPECT_THAT(tensors.at("model.layers.0.self_attn.q_norm.weight").data.as<float>(),
              ::testing::Each(1.0F));
  EXPECT_THAT(tensors.at("model.layers.0.self_attn.q_proj.bias").data.as<float>(),
              ::testing::Each(0.0F));
  config.dtype = DType::kBF16;
  const TensorMap half = random_model_tensors(config, 7);
  EXPECT_EQ(half.at("model.embed_tokens.weight").data.as<std::uint16_t>()[5],
            float_to_bf16(table[5]));
  config.dtype = DType::kF16;
  const TensorMap f16 = random_model_tensors(config, 7);
  EXPECT_EQ(f16.at("model.embed_tokens.weight").dtype, DType::kF16);
  EXPECT_EQ(f16.at("model.embed_tokens.weight").data.as<std::uint16_t>()[5],
            float_to_f16(table[5]));
  EXPECT_EQ(f16.at("model.norm.weight").data.as<std::uint16_t>()[0], 0x3C00);
}

TEST_F(ModelFilesTest, ExportedModelsOpenAgain) {
  const auto model = open_model(kModels / "qwen2-tiny").value();
  ASSERT_TRUE(
      export_model(files_, at("out"), model.config, model.tensors, kModels / "qwen2-tiny").ok());
  const auto again = open_model(at("out"));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again.value().config, model.config);
  EXPECT_EQ(again.value().generation, model.generation);
  EXPECT_EQ(digest_tensors(again.value().tensors), digest_tensors(model.tensors));
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "generation_config.json"}) {
    EXPECT_EQ(read_text_file(at("out") / name, 1U << 20U).value(),
              read_text_file(kModels / "qwen2-tiny" / name, 1U << 20U).value())
        << name;
  }
  EXPECT_FALSE(std::filesystem::exists(at("out/config.new_style.json")));
}

TEST_F(ModelFilesTest, WritesANewConfigUnlessTheSourceHasAnEqualOne) {
  const ModelConfig config = small_config();
  const TensorMap tensors = random_model_tensors(config, 1);
  ASSERT_TRUE(export_model(files_, at("out"), config, tensors, std::nullopt).ok());
  EXPECT_EQ(open_model(at("out")).value().config, config);
  // The source is another model: its tokenizer is copied, its config is not.
  ASSERT_TRUE(export_model(files_, at("out2"), config, tensors, kModels / "qwen3-tiny").ok());
  EXPECT_EQ(open_model(at("out2")).value().config, config);
  EXPECT_TRUE(std::filesystem::exists(at("out2/tokenizer.json")));
}

TEST_F(ModelFilesTest, RefusesToExportOverTheSourceOrAnIncompleteModel) {
  const ModelConfig config = small_config();
  TensorMap tensors = random_model_tensors(config, 1);
  ASSERT_TRUE(export_model(files_, at("out"), config, tensors, std::nullopt).ok());
  EXPECT_THAT(export_model(files_, at("out"), config, tensors, at("out")).message(),
              HasSubstr("cannot be exported over its own source"));
  tensors.erase("model.norm.weight");
  EXPECT_THAT(export_model(files_, at("out"), config, tensors, std::nullopt).message(),
              HasSubstr("tensor \"model.norm.weight\": missing"));
  EXPECT_TRUE(open_model(at("out")).ok());
}

TEST_F(ModelFilesTest, AnExportReplacesAShardedModel) {
  write_sharded();
  const TensorMap tensors = random_model_tensors(small_config(), 2);
  ASSERT_TRUE(export_model(files_, at("m"), small_config(), tensors, std::nullopt).ok());
  EXPECT_EQ(digest_tensors(open_model(at("m")).value().tensors), digest_tensors(tensors));
  // Some programs read the files that an index lists before any other.
  EXPECT_FALSE(std::filesystem::exists(at("m") / kIndex));
}

// Replaces a model in one file or in shards, with a failure at each system call in turn. The
// directory must open as one of the two models, or be refused for missing weights.
TEST_F(ModelFilesTest, InterruptedExportNeverMixesModels) {
  const ModelConfig old_config = small_config();
  ModelConfig new_config = old_config;
  new_config.rms_norm_eps = 1e-5;  // same tensors: a mixture would open without complaint
  const TensorMap old_tensors = random_model_tensors(old_config, 1);
  const TensorMap new_tensors = random_model_tensors(new_config, 2);
  test::FaultyFileSystem counting({});
  ASSERT_TRUE(export_model(counting, at("m"), new_config, new_tensors, std::nullopt).ok());
  for (const bool sharded : {false, true}) {
    int num_refused = 0;
    for (int call = 1; call <= counting.num_calls() + 1; ++call) {
      SCOPED_TRACE((sharded ? "shards, call " : "one file, call ") + std::to_string(call));
      std::filesystem::remove_all(at("m"));
      if (sharded) {
        write_sharded();
      } else {
        ASSERT_TRUE(export_model(files_, at("m"), old_config, old_tensors, std::nullopt).ok());
      }
      test::FaultyFileSystem failing({.at = call, .error = EIO, .dead = true});
      (void)export_model(failing, at("m"), new_config, new_tensors, std::nullopt);
      const auto model = open_model(at("m"));
      if (!model.ok()) {
        EXPECT_THAT(model.status().message(), HasSubstr("contains neither model.safetensors"));
        ++num_refused;
        continue;
      }
      const bool is_new = model.value().config == new_config;
      EXPECT_TRUE(is_new || model.value().config == old_config);
      EXPECT_EQ(digest_tensors(model.value().tensors),
                digest_tensors(is_new ? new_tensors : old_tensors));
    }
    EXPECT_GT(num_refused, 0);
  }
}

// A process that is killed during an export leaves a temporary file. The next export removes it.
TEST_F(ModelFilesTest, ExportRemovesLeftoversOfAnInterruptedOne) {
  const ModelConfig config = small_config();
  const TensorMap tensors = random_model_tensors(config, 1);
  test::FaultyFileSystem counting({});
  ASSERT_TRUE(export_model(counting, at("out"), config, tensors, std::nullopt).ok());
  const auto whole = list_directory(at("out"));
  int num_leftovers = 0;
  for (int call = 1; call <= counting.num_calls(); ++call) {
    std::filesystem::remove_all(at("out"));
    test::FaultyFileSystem failing({.at = call, .error = EIO, .dead = true});
    (void)export_model(failing, at("out"), config, tensors, std::nullopt);
    if (std::filesystem::exists(at("out"))) {
      for (const std::string& name : list_directory(at("out")).value()) {
        num_leftovers += name.starts_with('.') ? 1 : 0;
      }
    }
    ASSERT_TRUE(export_model(files_, at("out"), config, tensors, std::nullopt).ok());
    EXPECT_EQ(list_directory(at("out")).value(), whole.value()) << call;
  }
  EXPECT_GT(num_leftovers, 0);
}

TEST_F(ModelFilesTest, ToleratesExtraTensorsOfPublishedFiles) {
  ModelConfig config = small_config();
  config.tie_word_embeddings = true;
  TensorMap tensors = random_model_tensors(config, 1);
  ASSERT_TRUE(export_model(files_, at("m"), config, tensors, std::nullopt).ok());
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      DType::kF32, {3}, Buffer::adopt(std::vector<float>(3), DType::kF32)};
  ASSERT_TRUE(write_tensor_file(files_, at("m/model.safetensors"), tensors).ok());
  const auto model = open_model(at("m"));
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_FALSE(model.value().tensors.contains("lm_head.weight"));
}

TEST_F(ModelFilesTest, OpensShards) {
  write_sharded();
  const auto model = open_model(at("m"));
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ(digest_tensors(model.value().tensors),
            digest_tensors(random_model_tensors(small_config(), 1)));
}

TEST_F(ModelFilesTest, RefusesBadShardsAndIndexes) {
  struct Case {
    const char* name;
    std::function<void(ModelFilesTest&)> damage;
    const char* message;
  };
  using Self = ModelFilesTest&;
  const std::vector<Case> cases{
      {"tensor not in its shard",
       [](Self t) { t.write_sharded([](Sharded& p) { p.first.erase("lm_head.weight"); }); },
       "model-00001-of-00002.safetensors: tensor \"lm_head.weight\": missing, but"},
      {"tensor not in the index",
       [](Self t) { t.write_sharded([](Sharded& p) { p.index.erase("lm_head.weight"); }); },
       "tensor \"lm_head.weight\": model.safetensors.index.json does not list it"},
      {"tensor in both shards",
       [](Self t) {
         t.write_sharded(
             [](Sharded& p) { p.second["lm_head.weight"] = p.first.at("lm_head.weight"); });
       },
       "model-00002-of-00002.safetensors: tensor \"lm_head.weight\": model.safetensors.index.json "
       "lists it in model-00001-of-00002.safetensors"},
      {"missing everywhere",
       [](Self t) {
         t.write_sharded([](Sharded& p) {
           p.first.erase("lm_head.weight");
           p.index.erase("lm_head.weight");
         });
       },
       "model.safetensors.index.json: tensor \"lm_head.weight\": missing"},
      {"shard file gone",
       [](Self t) {
         t.write_sharded();
         std::filesystem::remove(t.at("m") / kOtherShard);
       },
       "model-00002-of-00002.safetensors: cannot open: No such file or directory"},
      {"shard truncated",
       [](Self t) {
         t.write_sharded();
         std::filesystem::resize_file(t.at("m") / kShard, 700);
       },
       "model-00001-of-00002.safetensors: "},
      {"path to a parent directory",
       [](Self t) {
         t.write_sharded([](Sharded& p) { p.index["lm_head.weight"] = "../../etc/passwd"; });
       },
       "weight_map: tensor \"lm_head.weight\": bad name \"../../etc/passwd\""},
      {"absolute path",
       [](Self t) { t.write_sharded([](Sharded& p) { p.index["lm_head.weight"] = "/dev/zero"; }); },
       "weight_map: tensor \"lm_head.weight\": bad name \"/dev/zero\""},
      {"hidden file",
       [](Self t) { t.write_sharded([](Sharded& p) { p.index["lm_head.weight"] = ".."; }); },
       "weight_map: tensor \"lm_head.weight\": bad name \"..\""},
      {"file name is a number",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, R"({"weight_map":{"a":1}})");
       },
       "weight_map: tensor \"a\": must be a file name"},
      {"no weight_map",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, "{}");
       },
       "index.json: weight_map: must be a non-empty object"},
      {"weight_map is a list",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, R"({"weight_map":[]})");
       },
       "index.json: weight_map: must be a non-empty object"},
      {"empty weight_map",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, R"({"weight_map":{}})");
       },
       "index.json: weight_map: must be a non-empty object"},
      {"same tensor twice in the index",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, R"({"weight_map":{"a":"x","a":"y"}})");
       },
       "index.json: the name \"a\" occurs twice"},
      {"index is not JSON",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, "weights");
       },
       "index.json: not JSON at byte 1"},
      {"index too large",
       [](Self t) {
         t.write_sharded();
         t.write(t.at("m") / kIndex, std::string((16U << 20U) + 1, ' '));
       },
       "index.json: 16777217 bytes; at most 16777216 are read"},
  };
  for (const Case& c : cases) {
    std::filesystem::remove_all(at("m"));
    c.damage(*this);
    const std::string message = refusal();
    EXPECT_THAT(message, HasSubstr(c.message)) << c.name;
  }
  EXPECT_EQ(cases.size(), 16U);
  std::cout << cases.size() << " bad shard sets refused\n";
}

TEST_F(ModelFilesTest, RefusesBadDirectories) {
  struct Case {
    const char* name;
    std::function<void(ModelFilesTest&, TensorMap&)> damage;
    const char* message;
  };
  using Self = ModelFilesTest&;
  const auto floats = [](std::vector<std::int64_t> shape) {
    Tensor tensor{DType::kF32, std::move(shape), {}};
    tensor.data = Buffer::adopt(std::vector<float>(static_cast<std::size_t>(tensor.num_elements())),
                                DType::kF32);
    return tensor;
  };
  const std::vector<Case> cases{
      {"no directory", [](Self t, TensorMap&) { std::filesystem::remove_all(t.at("m")); },
       "m/config.json: cannot open: No such file or directory"},
      {"no config", [](Self t, TensorMap&) { std::filesystem::remove(t.at("m/config.json")); },
       "m/config.json: cannot open: No such file or directory"},
      {"config is a directory",
       [](Self t, TensorMap&) {
         std::filesystem::remove(t.at("m/config.json"));
         std::filesystem::create_directory(t.at("m/config.json"));
       },
       "m/config.json: not a regular file"},
      {"no weights",
       [](Self t, TensorMap&) { std::filesystem::remove(t.at("m/model.safetensors")); },
       "m: contains neither model.safetensors nor model.safetensors.index.json"},
      {"bad generation config",
       [](Self t, TensorMap&) { t.write(t.at("m/generation_config.json"), R"({"top_p":2})"); },
       "m/generation_config.json: top_p: must be a number"},
      {"missing tensor", [](Self, TensorMap& x) { x.erase("model.norm.weight"); },
       "m/model.safetensors: tensor \"model.norm.weight\": missing"},
      {"two missing tensors",
       [](Self, TensorMap& x) {
         x.erase("model.norm.weight");
         x.erase("lm_head.weight");
       },
       "tensor \"lm_head.weight\": missing, and 1 more"},
      {"extra tensor", [&](Self, TensorMap& x) { x["model.extra"] = floats({1}); },
       "tensor \"model.extra\": unexpected: the config asks for no such tensor"},
      {"an extra layer",
       [&](Self, TensorMap& x) { x["model.layers.2.input_layernorm.weight"] = floats({8}); },
       "tensor \"model.layers.2.input_layernorm.weight\": unexpected"},
      {"a bias that the config excludes",
       [&](Self, TensorMap& x) { x["model.layers.0.self_attn.q_proj.bias"] = floats({12}); },
       "tensor \"model.layers.0.self_attn.q_proj.bias\": unexpected"},
      {"wrong shape",
       [&](Self, TensorMap& x) {
         x["model.layers.0.mlp.up_proj.weight"] = floats({8, 12});
       },
       "tensor \"model.layers.0.mlp.up_proj.weight\": shape [8, 12], but the config asks for [12, "
       "8]"},
      {"wrong number of dimensions",
       [&](Self, TensorMap& x) {
         x["model.norm.weight"] = floats({8, 1});
       },
       "tensor \"model.norm.weight\": shape [8, 1], but the config asks for [8]"},
      {"vocabulary of another size",
       [&](Self, TensorMap& x) {
         x["model.embed_tokens.weight"] = floats({12, 8});
       },
       "tensor \"model.embed_tokens.weight\": shape [12, 8], but the config asks for [11, 8]"},
      {"integer weights",
       [](Self, TensorMap& x) {
         x["model.norm.weight"] = {
             DType::kI32, {8}, Buffer::adopt(std::vector<int>(8), DType::kI32)};
       },
       "tensor \"model.norm.weight\": type I32; only F32, F16, BF16, Q8_0 and NF4 are supported"},
      {"weights truncated",
       [](Self t, TensorMap&) { std::filesystem::resize_file(t.at("m/model.safetensors"), 6000); },
       "m/model.safetensors: "},
  };
  for (const Case& c : cases) {
    std::filesystem::remove_all(at("m"));
    const ModelConfig config = small_config();
    TensorMap tensors = random_model_tensors(config, 1);
    ASSERT_TRUE(export_model(files_, at("m"), config, tensors, std::nullopt).ok());
    const std::size_t size = std::filesystem::file_size(at("m/model.safetensors"));
    const std::string before = digest_tensors(tensors);
    c.damage(*this, tensors);
    if (digest_tensors(tensors) != before) {
      ASSERT_TRUE(write_tensor_file(files_, at("m/model.safetensors"), tensors).ok());
    }
    ASSERT_GT(size, 6000U);
    const std::string message = refusal();
    EXPECT_THAT(message, HasSubstr(c.message)) << c.name;
    EXPECT_THAT(message, StartsWith(directory_.path().string())) << c.name;
  }
  EXPECT_EQ(cases.size(), 15U);
  std::cout << cases.size() << " bad model directories refused\n";
}

}  // namespace
}  // namespace tidemill::engines
