// SPDX-License-Identifier: Apache-2.0
// Compares PEFT adapters of every kind with tests/golden/engine/adapters: logits with the adapter
// applied to the base and merged into it, and logits of all adapters of one base in one batch.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/formats/adapter_files.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_harness.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kPrompts = 2;
constexpr double kMaxDifference = 2e-4;

const std::vector<std::string> kAdapters = {
    "dora",           "ia3",         "lora-all-linear",    "lora-bf16-base", "lora-bias-only",
    "lora-embedding", "lora-layers", "lora-lm-head-saved", "lora-patterns",  "lora-qv",
    "lora-regex",     "lora-rslora"};

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
    for (const std::string& adapter : kAdapters) {
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
        spec_(adapter_spec(files_.config, files_.modules, model_.config).value()) {}

  void expect_logits(ModelHarness& harness, const Adapter* adapter, const std::string& kind) {
    std::size_t checked = 0;
    for (const json& prompt : golden_["prompts"]) {
      const Rows logits = harness.logits_of(prompt.get<std::vector<std::int32_t>>(), adapter);
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
  AdapterSpec spec_;
};

TEST_P(AdapterGoldenTest, BaseAndAdaptedLogits) {
  ModelHarness harness(GetParam().backend, model_.config, model_.tensors);
  const auto adapter = harness.adapter(spec_, files_.tensors);
  expect_logits(harness, nullptr, "base");
  expect_logits(harness, adapter.get(), "adapted");
}

TEST_P(AdapterGoldenTest, MergedLogits) {
  const MergedModel merged =
      merge_adapter(spec_, files_.tensors, model_.config, model_.tensors).value();
  EXPECT_EQ(merged.config, model_.config);
  ModelHarness harness(GetParam().backend, merged.config, merged.tensors);
  expect_logits(harness, nullptr, "merged");
}

INSTANTIATE_TEST_SUITE_P(Adapters, AdapterGoldenTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) {
                           std::string name = test.param.backend.name + "_" + test.param.adapter;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Segments of every adapter of a base and of the base itself, alternating in one batch.
class AdapterMixTest : public ::testing::TestWithParam<Backend> {};

TEST_P(AdapterMixTest, AdaptersOfEveryKindInOneBatchKeepTheirBits) {
  std::size_t mixed = 0;
  for (const std::string base : {"llama-tiny", "qwen2-tiny"}) {
    const ModelFiles model = golden_model(base);
    ModelHarness harness(GetParam(), model.config, model.tensors);
    struct Row {
      std::shared_ptr<const Adapter> adapter;  // null: the base
      std::vector<std::int32_t> ids;
      std::vector<std::int32_t> pages;
      std::span<const float> logits;
      Rows alone;
    };
    std::vector<TensorMap> golden;
    std::vector<Row> rows;
    for (const std::string& name : kAdapters) {
      const std::string folder = "adapters/" + name + "/";
      const json about = golden_json(folder + "golden.json");
      if (about["base_model"] != base) {
        continue;
      }
      const AdapterFiles files = open_adapter(golden_path(folder), model.config).value();
      const auto adapter = harness.adapter(
          adapter_spec(files.config, files.modules, model.config).value(), files.tensors);
      golden.push_back(golden_tensors(folder + "golden.safetensors"));
      for (std::size_t i = 0; i < 2 * kPrompts; ++i) {
        const bool adapted = i < kPrompts;
        Row& row = rows.emplace_back();
        row.adapter = adapted ? adapter : nullptr;
        row.ids = about["prompts"][i % kPrompts].get<std::vector<std::int32_t>>();
        row.logits = values_of(golden.back(),
                               (adapted ? "adapted." : "base.") + std::to_string(i % kPrompts));
      }
      ++mixed;
    }
    Batch batch;
    for (Row& row : rows) {
      const auto length = static_cast<std::int64_t>(row.ids.size());
      row.alone = harness.logits_of(row.ids, row.adapter.get());
      row.pages = harness.pages_for(length);
      batch.ids.insert(batch.ids.end(), row.ids.begin(), row.ids.end());
      batch.segments.push_back({length, 0, row.pages, row.adapter.get()});
    }
    const ConstMatrix hidden = harness.model.forward(*harness.weights, batch, *harness.cache);
    std::int64_t first = 0;
    for (const Row& row : rows) {
      const auto length = static_cast<std::int64_t>(row.ids.size());
      const Rows logits = harness.logits(hidden.slice_rows(first, length), row.adapter.get());
      EXPECT_TRUE(logits == row.alone) << base << " row " << first;
      EXPECT_LE(difference(logits.values, row.logits).max, kMaxDifference);
      first += length;
    }
  }
  EXPECT_EQ(mixed, 10U) << "all adapters of these two bases";
  std::cout << "[ checked  ] " << GetParam().name << ": " << mixed << " adapters in two batches\n";
}

INSTANTIATE_TEST_SUITE_P(Backends, AdapterMixTest, ::testing::ValuesIn(backends()),
                         [](const auto& test) { return test.param.name; });

TEST(AdapterGoldenFilesTest, EveryDirectoryIsTested) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("adapters"))) {
    if (entry.is_directory()) {
      found.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(found);
  EXPECT_EQ(found, kAdapters);
}

TEST(AdapterGoldenFilesTest, DropoutIsRefusedForTraining) {
  const ModelFiles model = golden_model("qwen3-tiny");
  AdapterConfig config =
      open_adapter(golden_path("adapters/lora-all-linear"), model.config).value().config;
  EXPECT_EQ(check_adapter_training(config).message(),
            "lora_dropout: training with dropout is not supported; set it to 0");
  config.dropout = 0.0;
  EXPECT_TRUE(check_adapter_training(config).ok());
}

}  // namespace
}  // namespace tidemill::engines
