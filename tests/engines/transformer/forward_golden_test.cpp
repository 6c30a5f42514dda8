// SPDX-License-Identifier: Apache-2.0
// Compares forward passes with tests/golden/engine/forward: logits, hidden states,
// log-probabilities, cached greedy decoding, the ragged batch, and bfloat16.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/formats/rope.hpp"
#include "tests/engines/transformer/golden.hpp"
#include "tests/engines/transformer/model_harness.hpp"

namespace tidemill::engines {
namespace {

using nlohmann::json;

constexpr std::size_t kPrompts = 7;
constexpr double kMaxDifference = 2e-4;
constexpr double kRmsDifference = 2e-5;
constexpr double kGreedyMargin = 1e-3;

struct Case {
  Backend backend;
  std::string model;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.backend.name << " " << c.model;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Backend& backend : backends()) {
    for (const std::string& model : kGoldenModels) {
      all.push_back({backend, model});
    }
  }
  return all;
}

std::string other_spelling(const std::string& model) {
  const std::string name = "models/" + model + "/config.legacy_style.json";
  return std::filesystem::exists(golden_path(name)) ? "config.legacy_style.json"
                                                    : "config.new_style.json";
}

class ForwardGoldenTest : public ::testing::TestWithParam<Case> {
protected:
  ForwardGoldenTest()
      : golden_(golden_json("forward/" + GetParam().model + ".json")),
        tensors_(golden_tensors("forward/" + GetParam().model + ".safetensors")) {
    for (const json& prompt : golden_["prompts"]) {
      prompts_.push_back(prompt["ids"].get<std::vector<std::int32_t>>());
    }
  }

  [[nodiscard]] ModelHarness harness(const std::string& config_file = "config.json",
                                     const HarnessOptions& options = {}) const {
    const ModelFiles model = golden_model(GetParam().model, config_file);
    return {GetParam().backend, model.config, model.tensors, options};
  }

  // Reports what was compared, so that an empty fixture cannot pass unnoticed.
  static void report(const std::string& what, std::size_t count, std::size_t expected) {
    EXPECT_EQ(count, expected) << what;
    RecordProperty(what, static_cast<int>(count));
    std::cout << "[ checked  ] " << GetParam() << ": " << count << " " << what << "\n";
  }

  json golden_;
  TensorMap tensors_;
  std::vector<std::vector<std::int32_t>> prompts_;
};

// Returns the log-probabilities of tokens 1, 2, ... of `ids`.
std::vector<float> logprobs_of(ModelHarness& harness, const std::vector<std::int32_t>& ids) {
  const Rows hidden = harness.hidden(ids);
  std::vector<std::int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(-1);
  std::vector<float> logprobs = harness.token_logprobs(hidden, targets).logprobs;
  logprobs.pop_back();
  return logprobs;
}

// Returns how many tokens an engine that stops at an end token generates, including that token.
// Null: it does not stop.
json tokens_until_end(const json& ids, const std::vector<std::int32_t>& end_ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (std::ranges::find(end_ids, ids[i].get<std::int32_t>()) != end_ids.end()) {
      return i + 1;
    }
  }
  return nullptr;
}

TEST_P(ForwardGoldenTest, LogitsAndLogprobsInBothSpellings) {
  std::size_t checked = 0;
  for (const std::string& config_file :
       {std::string("config.json"), other_spelling(GetParam().model)}) {
    ModelHarness harness = this->harness(config_file);
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      SCOPED_TRACE(config_file + " prompt " + std::to_string(i));
      const json& prompt = golden_["prompts"][i];
      const Difference logits = difference(harness.logits_of(prompts_[i]).values,
                                           values_of(tensors_, "logits." + std::to_string(i)));
      EXPECT_LE(logits.max, kMaxDifference);
      EXPECT_LE(logits.rms, kRmsDifference);

      std::vector<std::int32_t> ids = prompts_[i];
      const auto continuation = prompt["continuation"].get<std::vector<std::int32_t>>();
      ids.insert(ids.end(), continuation.begin(), continuation.end());
      std::vector<float> expected;
      for (std::size_t t = 1; t < prompts_[i].size(); ++t) {
        expected.push_back(prompt["prompt_logprobs"][t].get<float>());
      }
      for (const json& logprob : prompt["continuation_logprobs"]) {
        expected.push_back(logprob.get<float>());
      }
      EXPECT_LE(difference(logprobs_of(harness, ids), expected).max, kMaxDifference);
      ++checked;
    }
  }
  report("prompts", checked, 2 * kPrompts);
}

TEST_P(ForwardGoldenTest, InverseFrequenciesAndHiddenStates) {
  ModelHarness harness = this->harness();
  const std::vector<float> frequencies = rope_frequencies(harness.config).inverse;
  const std::span<const float> expected = values_of(tensors_, "inv_freq");
  ASSERT_EQ(frequencies.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(frequencies[i], expected[i], 1e-6 * double{expected[i]}) << i;
  }

  const auto& ids = prompts_[golden_["hidden_states_prompt"].get<std::size_t>()];
  const auto length = static_cast<std::int64_t>(ids.size());
  const auto pages = harness.pages_for(length);
  std::size_t checked = 0;
  const auto compare = [&](std::int64_t layer, ConstMatrix hidden) {
    Rows rows;
    rows.append(hidden, *harness.ops);
    EXPECT_LE(difference(rows.values, values_of(tensors_, "hidden." + std::to_string(layer))).max,
              kMaxDifference)
        << layer;
    ++checked;
  };
  const auto observe = [&](std::int64_t layer, ConstMatrix hidden) {
    // The last golden state is after the final norm.
    if (layer < harness.config.num_layers) {
      compare(layer, hidden);
    }
  };
  compare(harness.config.num_layers,
          harness.model.forward(*harness.weights, {ids, {{length, 0, pages}}}, *harness.cache,
                                {nullptr, observe}));
  report("hidden states", checked, static_cast<std::size_t>(harness.config.num_layers) + 1);
}

TEST_P(ForwardGoldenTest, RaggedBatchEqualsOneByOne) {
  ModelHarness harness = this->harness();
  Batch batch;
  std::vector<std::vector<std::int32_t>> pages;
  for (const auto& ids : prompts_) {
    pages.push_back(harness.pages_for(static_cast<std::int64_t>(ids.size())));
    batch.ids.insert(batch.ids.end(), ids.begin(), ids.end());
  }
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    batch.segments.push_back({static_cast<std::int64_t>(prompts_[i].size()), 0, pages[i]});
  }
  Rows together;
  together.append(harness.model.forward(*harness.weights, batch, *harness.cache), *harness.ops);
  const Rows logits = harness.logits(together);
  Rows one_by_one;
  for (const auto& ids : prompts_) {
    const Rows alone = harness.logits_of(ids);
    one_by_one.cols = alone.cols;
    one_by_one.values.insert(one_by_one.values.end(), alone.values.begin(), alone.values.end());
  }
  EXPECT_TRUE(logits == one_by_one);
  report("prompts in one batch", batch.segments.size(), kPrompts);
}

// Prefills all prompts in chunks, then decodes all of them in one batch, one token per step.
TEST_P(ForwardGoldenTest, GreedyDecodingFromTheCache) {
  ModelHarness harness = this->harness();
  std::size_t compared = 0;
  std::size_t flipped = 0;
  constexpr std::int64_t kNewTokens = 32;
  std::vector<std::vector<std::int32_t>> pages;
  std::vector<Rows> last(prompts_.size());
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts_[i].size());
    pages.push_back(harness.pages_for(length + kNewTokens));
    for (std::int64_t done = 0; done < length; done += 10) {
      const std::int64_t count = std::min<std::int64_t>(10, length - done);
      const ConstMatrix hidden =
          harness.model.forward(*harness.weights,
                                {{prompts_[i].begin() + done, prompts_[i].begin() + done + count},
                                 {{count, done, pages[i]}}},
                                *harness.cache);
      last[i] = {};
      last[i].append(hidden.slice_rows(count - 1, 1), *harness.ops);
    }
  }
  std::vector<bool> following(prompts_.size(), true);
  for (std::size_t step = 0; step < kNewTokens; ++step) {
    Batch batch;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const json& greedy = golden_["prompts"][i]["greedy"];
      const Rows logits = harness.logits(last[i]);
      const auto best = static_cast<std::int32_t>(std::ranges::max_element(logits.values) -
                                                  logits.values.begin());
      const auto expected = greedy["ids"][step].get<std::int32_t>();
      if (following[i] && best != expected) {
        EXPECT_LT(greedy["margins"][step].get<double>(), kGreedyMargin)
            << "prompt " << i << " step " << step;
        following[i] = false;
        ++flipped;
      }
      if (following[i]) {
        const float logprob = harness.logprob(logits, expected, 1.0F);
        EXPECT_NEAR(double{logprob}, greedy["logprobs"][step].get<double>(), kMaxDifference);
        ++compared;
      }
      batch.ids.push_back(best);
      batch.segments.push_back({1, static_cast<std::int64_t>(prompts_[i].size() + step), pages[i]});
    }
    const ConstMatrix hidden = harness.model.forward(*harness.weights, batch, *harness.cache);
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      last[i] = {};
      last[i].append(hidden.slice_rows(static_cast<std::int64_t>(i), 1), *harness.ops);
    }
  }
  for (const json& prompt : golden_["prompts"]) {
    EXPECT_EQ(tokens_until_end(prompt["greedy"]["ids"], harness.config.eos_token_ids),
              prompt["greedy"]["eos_stop_after"]);
  }
  EXPECT_EQ(flipped, 0U) << "a step within the margin chose the other token; check the margin";
  report("greedy tokens", compared, kPrompts * kNewTokens);
}

TEST_P(ForwardGoldenTest, CachedDecodingMatchesTheGoldenLogits) {
  ModelHarness harness = this->harness();
  std::size_t rows = 0;
  DifferenceSum sum;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const auto& ids = prompts_[i];
    const auto pages = harness.pages_for(static_cast<std::int64_t>(ids.size()));
    const std::int64_t cols = harness.config.vocab_size;
    const auto expected = values_of(tensors_, "logits." + std::to_string(i));
    for (std::size_t t = 0; t < ids.size(); ++t, ++rows) {
      const ConstMatrix hidden = harness.model.forward(
          *harness.weights, {{ids[t]}, {{1, static_cast<std::int64_t>(t), pages}}}, *harness.cache);
      sum.add(harness.logits(hidden).values,
              expected.subspan(t * static_cast<std::size_t>(cols), static_cast<std::size_t>(cols)));
    }
    harness.cache->release(pages);
  }
  EXPECT_LE(sum.result().max, kMaxDifference);
  EXPECT_LE(sum.result().rms, kRmsDifference);
  report("decoded positions", rows, 1 + 2 + 7 + 33 + 120 + 21 + 36);
}

TEST_P(ForwardGoldenTest, Bfloat16StaysWithinTwiceTheReferencesError) {
  ModelHarness harness =
      this->harness("config.json", {{DType::kBF16, WeightUse::kForward}, DType::kBF16, 4096});
  DifferenceSum sum;
  std::size_t checked = 0;
  for (std::size_t i = 0; i < prompts_.size(); ++i, ++checked) {
    sum.add(harness.logits_of(prompts_[i]).values,
            values_of(tensors_, "logits." + std::to_string(i)));
  }
  const double reference = golden_["stats"]["hf_bfloat16_vs_golden_rms"].get<double>();
  EXPECT_LE(sum.result().rms, 2.0 * reference);
  std::cout << "bfloat16 rms " << sum.result().rms << ", reference " << reference << "\n";
  report("bfloat16 prompts", checked, kPrompts);
}

INSTANTIATE_TEST_SUITE_P(Models, ForwardGoldenTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) {
                           std::string name = test.param.backend.name + "_" + test.param.model;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(ForwardGoldenFilesTest, EveryModelIsTested) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(golden_path("models"))) {
    found.push_back(entry.path().filename().string());
  }
  std::ranges::sort(found);
  EXPECT_EQ(found, kGoldenModels);
}

}  // namespace
}  // namespace tidemill::engines
