// SPDX-License-Identifier: Apache-2.0
// Tests the committed data files of the quickstart: they are what the generator writes, have the
// expected answers, and share no problems between training and evaluation.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/file.hpp"
#include "examples/arithmetic/addition.hpp"
#include "storage/dataset/row_parser.hpp"

namespace tidemill::examples {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// The sorted numbers of a problem, which are the same for its mirror image.
using PairName = std::pair<int, int>;

// One row, parsed from the text of its line.
struct Row {
  int left = 0;
  int right = 0;
  std::string reference_answer;
  [[nodiscard]] PairName pair() const { return {std::min(left, right), std::max(left, right)}; }
  [[nodiscard]] bool is_correct() const { return reference_answer == std::to_string(left + right); }
  [[nodiscard]] bool carries() const { return left % 10 + right % 10 > 9; }
  // Adds tens and ones separately, without the carry.
  [[nodiscard]] bool forgets_carry() const {
    const int tens = left / 10 + right / 10;
    const int ones = (left % 10 + right % 10) % 10;
    return carries() && reference_answer == std::to_string(tens * 10 + ones);
  }
};

std::string committed(const std::string& name) {
  Result<std::string> text =
      read_text_file(TIDEMILL_SOURCE_DIR "/examples/arithmetic/data/" + name, 16U << 20U);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? std::move(text).value() : "";
}

std::vector<Row> rows_of(const std::string& name) {
  std::vector<Row> rows;
  const std::string text = committed(name);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const auto parsed = storage::parse_supervised_row(text.substr(begin, end - begin));
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    if (!parsed.ok()) return {};
    const std::string& prompt = parsed.value().prompt;
    EXPECT_THAT(prompt, SizeIs(6));
    EXPECT_EQ(prompt[2], '+');
    EXPECT_EQ(prompt[5], '=');
    rows.push_back({std::stoi(prompt.substr(0, 2)), std::stoi(prompt.substr(3, 2)),
                    parsed.value().reference_answer});
    begin = end + 1;
  }
  return rows;
}

std::set<PairName> pairs_of(const std::vector<Row>& rows) {
  std::set<PairName> pairs;
  for (const Row& row : rows) pairs.insert(row.pair());
  return pairs;
}

TEST(ArithmeticDataTest, CommittedFilesAreWhatTheGeneratorWrites) {
  const AdditionTask task = AdditionTask::of_seed(kTaskSeed);
  EXPECT_TRUE(committed("eval.jsonl") == prompt_rows(task.eval));
  EXPECT_TRUE(committed("train.jsonl") == prompt_rows(task.train));
  EXPECT_TRUE(committed("sft.jsonl") == supervised_rows(task.train));
}

TEST(ArithmeticDataTest, AnotherSeedHoldsOutOtherProblems) {
  EXPECT_NE(AdditionTask::of_seed(kTaskSeed).eval, AdditionTask::of_seed(kTaskSeed + 1).eval);
}

TEST(ArithmeticDataTest, EvaluationSharesNoProblemWithTrainingInEitherOrder) {
  const std::vector<Row> eval = rows_of("eval.jsonl");
  const std::set<PairName> held_out = pairs_of(eval);
  EXPECT_THAT(eval, SizeIs(200));
  EXPECT_THAT(held_out, SizeIs(200));  // no problem appears in both orders
  for (const char* name : {"train.jsonl", "sft.jsonl"}) {
    const std::set<PairName> trained = pairs_of(rows_of(name));
    std::vector<PairName> both;
    std::set_intersection(held_out.begin(), held_out.end(), trained.begin(), trained.end(),
                          std::back_inserter(both));
    EXPECT_THAT(both, IsEmpty()) << name;
    EXPECT_EQ(held_out.size() + trained.size(), 90U * 91U / 2U) << name;  // no problem is missing
  }
}

TEST(ArithmeticDataTest, PromptsHaveTheCorrectAnswer) {
  for (const char* name : {"train.jsonl", "eval.jsonl"}) {
    for (const Row& row : rows_of(name)) {
      ASSERT_TRUE(row.is_correct()) << name << ": " << row.left << "+" << row.right;
    }
  }
}

TEST(ArithmeticDataTest, EveryTrainingProblemAppearsOnce) {
  std::set<std::pair<int, int>> problems;
  const std::vector<Row> rows = rows_of("train.jsonl");
  for (const Row& row : rows) problems.emplace(row.left, row.right);
  EXPECT_EQ(problems.size(), rows.size());
}

TEST(ArithmeticDataTest, ThreeOfFiveSupervisedRowsForgetTheCarryAndTheOthersAreCorrect) {
  struct Count {
    int rows = 0;
    int slips = 0;
  };
  std::map<std::pair<int, int>, Count> problems;
  for (const Row& row : rows_of("sft.jsonl")) {
    ASSERT_TRUE(row.is_correct() || row.forgets_carry()) << row.left << "+" << row.right;
    Count& count = problems[{row.left, row.right}];
    ++count.rows;
    count.slips += row.forgets_carry() ? 1 : 0;
  }
  ASSERT_EQ(problems.size(), rows_of("train.jsonl").size());
  for (const auto& [problem, count] : problems) {
    const bool carries = problem.first % 10 + problem.second % 10 > 9;
    ASSERT_EQ(count.rows, 5);
    ASSERT_EQ(count.slips, carries ? 3 : 0) << problem.first << "+" << problem.second;
  }
}

TEST(ArithmeticDataTest, EvaluationHasTheSameShareOfCarriesAsAllProblems) {
  const std::vector<Row> eval = rows_of("eval.jsonl");
  const auto carries =
      std::count_if(eval.begin(), eval.end(), [](const Row& row) { return row.carries(); });
  EXPECT_EQ(carries, 90);  // 45 of the 100 pairs of ones digits carry
}

}  // namespace
}  // namespace tidemill::examples
