// SPDX-License-Identifier: Apache-2.0
// PEFT LoRA directories against tests/golden/engine/adapters: logits with the adapter as a bypass
// and merged into the base. Other kinds are refused by name.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/formats/adapter_files.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_bench.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kPrompts = 2;
constexpr double kMaxDifference = 2e-4;

const std::vector<std::string> kLoraAdapters = {"lora-all-linear", "lora-bf16-base", "lora-layers",
                                                "lora-patterns",   "lora-qv",        "lora-regex",
                                                "lora-rslora"};
// What each of the others is refused for.
const std::map<std::string, std::string> kOtherAdapters = {
    {"dora", "use_dora is not supported yet"},
    {"ia3", "peft_type IA3 is not supported yet"},
    {"lora-bias-only", "bias other than \"none\" is not supported yet"},
    {"lora-embedding", "target module model.embed_tokens is not supported yet"},
    {"lora-lm-head-saved", "modules_to_save is not supported yet"},
};

struct Case {
  Backend backend;
  std::string adapter;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.backend.name << " " << c.adapter;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    for (const std::string& adapter : kLoraAdapters) {
      all.push_back({backend, adapter});
    }
  }
  return all;
}

class AdapterGoldenTest : public ::testing::TestWithParam<Case> {
protected:
  AdapterGoldenTest()
      : folder_("adapters/" + GetParam().adapter + "/"),
        golden_(golden_json(folder_ + "golden.json")),
        tensors_(golden_tensors(folder_ + "golden.safetensors")),
        model_(golden_model(golden_["base_model"])),
        files_(open_adapter(golden_path(folder_), model_.config).value()),
        spec_(lora_spec(files_.config, files_.modules).value()) {}

  void expect_logits(ModelBench& bench, const Adapter* adapter, const std::string& kind) {
    std::size_t checked = 0;
    for (const json& prompt : golden_["prompts"]) {
      const Rows logits = bench.logits_of(prompt.get<std::vector<std::int32_t>>(), adapter);
      const Difference d =
          difference(logits.values, values_of(tensors_, kind + "." + std::to_string(checked)));
      EXPECT_LE(d.max, kMaxDifference) << kind << " " << checked;
      ++checked;
    }
    EXPECT_EQ(checked, kPrompts);
    std::cout << "[ checked  ] " << GetParam() << ": " << checked << " prompts, " << kind << "\n";
  }

  std::string folder_;
  json golden_;
  TensorMap tensors_;
  ModelFiles model_;
  AdapterFiles files_;
  LoraSpec spec_;
};

TEST_P(AdapterGoldenTest, BaseAndAdaptedLogits) {
  ModelBench bench(GetParam().backend, model_.config, model_.tensors);
  const auto adapter = bench.adapter(spec_, files_.tensors);
  expect_logits(bench, nullptr, "base");
  expect_logits(bench, adapter.get(), "adapted");
}

TEST_P(AdapterGoldenTest, MergedLogits) {
  ModelBench bench(GetParam().backend, model_.config,
                   merge_lora(spec_, files_.tensors, model_.tensors).value());
  expect_logits(bench, nullptr, "merged");
}

INSTANTIATE_TEST_SUITE_P(Adapters, AdapterGoldenTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) {
                           std::string name = test.param.backend.name + "_" + test.param.adapter;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(AdapterGoldenFilesTest, NoDirectoryIsLeftOut) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("adapters"))) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !kOtherAdapters.contains(name)) {
      found.push_back(name);
    }
  }
  std::ranges::sort(found);
  EXPECT_EQ(found, kLoraAdapters);
}

TEST(AdapterGoldenFilesTest, OtherKindsAreRefusedByName) {
  for (const auto& [name, message] : kOtherAdapters) {
    const std::string folder = "adapters/" + name + "/";
    const ModelFiles model = golden_model(golden_json(folder + "golden.json")["base_model"]);
    const AdapterFiles files = open_adapter(golden_path(folder), model.config).value();
    const auto spec = lora_spec(files.config, files.modules);
    EXPECT_EQ(spec.status().code(), Errc::kUnimplemented) << name;
    EXPECT_EQ(spec.status().message(), message);
  }
}

TEST(AdapterGoldenFilesTest, DropoutIsIgnoredAtInferenceAndRefusedForTraining) {
  const ModelFiles model = golden_model("qwen3-tiny");
  AdapterConfig config =
      open_adapter(golden_path("adapters/lora-all-linear"), model.config).value().config;
  EXPECT_EQ(check_lora_training(config).message(),
            "lora_dropout: training with other than 0 is not supported; set it to 0");
  config.dropout = 0.0;
  EXPECT_TRUE(check_lora_training(config).ok());
}

}  // namespace
}  // namespace tidemill::engines
