// SPDX-License-Identifier: Apache-2.0
// Supervised runs on rows of each kind. Rows of different kinds with the same tokens and targets
// end with the same bits, so a run on ready tokens, whose mask is written by hand, checks all
// others.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

using RowJson = nlohmann::ordered_json;

const std::string kArithmetic = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";
constexpr int kNumRows = 12;
constexpr int kRowTokens = 9;     // "17+25=", "42" and the end token; a token for each byte
constexpr int kPromptTokens = 6;  // "17+25="
constexpr int kPerStep = 4;

// A sum, and its tokens.
struct Sum {
  std::string prompt;
  std::string answer;
  std::vector<int> ids;
};

std::vector<Sum> sums() {
  const auto tokenizer = RowJson::parse(read_file(kArithmetic + "/tokenizer.json"));
  const RowJson& vocabulary = tokenizer.at("model").at("vocab");
  std::vector<Sum> all;
  for (int i = 0; i < kNumRows; ++i) {
    Sum sum{std::to_string(10 + i) + "+" + std::to_string(20 + i) + "=",
            std::to_string(30 + 2 * i),
            {}};
    for (const char c : sum.prompt + sum.answer) {
      sum.ids.push_back(vocabulary.at(std::string(1, c)).get<int>());
    }
    sum.ids.push_back(tokenizer.at("added_tokens").at(0).at("id").get<int>());
    all.push_back(std::move(sum));
  }
  return all;
}

RowJson message(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

// Returns `ids` with `other` in place of those of the prompt.
std::vector<int> after_prompt(std::vector<int> ids, int other) {
  std::fill_n(ids.begin(), kPromptTokens, other);
  return ids;
}

class RowKindsTest : public ::testing::Test {
protected:
  ~RowKindsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Writes the rows that `row_of` makes of the sums, as JSON Lines.
  template <class RowOf>
  void write_lines(const std::string& name, const RowOf& row_of) const {
    std::string text;
    for (const Sum& sum : sums()) {
      text += row_of(sum).dump() + "\n";
    }
    folder_.write(name, text);
  }

  [[nodiscard]] Ended start(const std::string& data, const std::vector<std::string>& more) const {
    folder_.write("run.yaml", "workflow: sft\nname: " + data.substr(0, data.find('.')) +
                                  "\nmodel: {path: " + kArithmetic + "}\ndata: {train: " + data +
                                  "}\nseed: 5\ntrain: {steps: 2, sequences_per_step: " +
                                  std::to_string(kPerStep) + ", learning_rate: 1e-3}\n");
    std::vector<std::string> arguments{"run", "run.yaml"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const auto ended = folder_.run(arguments);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  // Trains two steps on a file of rows with `targets` targets each, and returns the weights.
  [[nodiscard]] std::string train(const std::string& data, int targets) const {
    SCOPED_TRACE(data);
    const Ended ended = start(data, {});
    EXPECT_EQ(ended.code, 0) << ended.describe();
    const std::string name = data.substr(0, data.find('.'));
    EXPECT_EQ(folder_.metrics_steps(name), steps_up_to(2));
    std::istringstream lines(read_file(folder_.path() / "runs" / name / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto step = RowJson::parse(line);
      EXPECT_EQ(step.at("tokens"), kPerStep * targets) << line;
      EXPECT_EQ(step.at("batch_tokens"), kPerStep * kRowTokens) << line;
    }
    std::string weights = folder_.exported_weights(name);
    EXPECT_FALSE(weights.empty());
    return weights;
  }

  RunFolder folder_;
};

TEST_F(RowKindsTest, AllTokensOfATextAreTrained) {
  write_lines("ids.jsonl", [](const Sum& sum) { return RowJson{{"input_ids", sum.ids}}; });
  write_lines("text.jsonl", [](const Sum& sum) {
    return RowJson{{"text", sum.prompt + sum.answer}};
  });
  EXPECT_EQ(train("text.jsonl", kRowTokens - 1), train("ids.jsonl", kRowTokens - 1));
}

TEST_F(RowKindsTest, OnlyWhatFollowsThePromptIsTrained) {
  write_lines("mask.jsonl", [](const Sum& sum) {
    auto mask = after_prompt(sum.ids, 0);
    std::fill(mask.begin() + kPromptTokens, mask.end(), 1);
    return RowJson{{"input_ids", sum.ids}, {"loss_mask", mask}};
  });
  const std::string expected = train("mask.jsonl", kRowTokens - kPromptTokens);

  write_lines("labels.jsonl", [](const Sum& sum) {
    return RowJson{{"input_ids", sum.ids}, {"labels", after_prompt(sum.ids, -100)}};
  });
  write_lines("answer.jsonl", [](const Sum& sum) {
    return RowJson{{"prompt", sum.prompt}, {"answer", sum.answer}};
  });
  write_lines("completion.jsonl", [](const Sum& sum) {
    return RowJson{{"prompt", sum.prompt}, {"completion", sum.answer}};
  });
  write_lines("lists.jsonl", [](const Sum& sum) {
    return RowJson{{"prompt", RowJson::array({message("user", sum.prompt)})},
                   {"completion", RowJson::array({message("assistant", sum.answer)})}};
  });
  write_lines("messages.jsonl", [](const Sum& sum) {
    return RowJson{{"messages", RowJson::array({message("user", sum.prompt),
                                                message("assistant", sum.answer)})}};
  });
  RowJson array = RowJson::array();
  for (const Sum& sum : sums()) {
    array.push_back({{"prompt", sum.prompt}, {"completion", sum.answer}});
  }
  folder_.write("array.json", array.dump(2));
  for (const char* data : {"labels.jsonl", "answer.jsonl", "completion.jsonl", "lists.jsonl",
                           "messages.jsonl", "array.json"}) {
    EXPECT_EQ(train(data, kRowTokens - kPromptTokens), expected) << data;
  }
}

TEST_F(RowKindsTest, TheMemoryPlanCountsRowsOfEachKind) {
  const auto plan = [this](const std::string& data) {
    const Ended ended = start(data, {"--dry-run", "--json"});
    EXPECT_EQ(ended.code, 0) << ended.describe();
    auto printed = RowJson::parse(ended.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(printed.is_object()) << ended.out;
    auto memory = printed.at("memory_bytes");
    memory.erase("program");
    memory.erase("total");
    return memory.dump();
  };
  const std::string longest(40, '7');
  const auto write_long = [&](const std::string& name, const RowJson& row) {
    folder_.write(name, "{\"text\": \"1+1=2\"}\n" + row.dump() + "\n");
    return name;
  };
  const std::string expected =
      plan(write_long("ids.jsonl", {{"input_ids", std::vector<int>(41, 1)}}));
  EXPECT_EQ(plan(write_long("text.jsonl", {{"text", longest}})), expected);
  EXPECT_EQ(
      plan(write_long("completion.jsonl", {{"prompt", "7"}, {"completion", longest.substr(1)}})),
      expected);
  EXPECT_NE(plan(write_long("short.jsonl", {{"text", "1+2=3"}})), expected);
}

}  // namespace
}  // namespace tidemill::test
