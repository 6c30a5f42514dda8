// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/dataset.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sys/stat.h>

#include <gmock/gmock.h>

namespace tidemill::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string prompt_line(const std::string& prompt) {
  return R"({"prompt": ")" + prompt + R"("})";
}

class DatasetTest : public ::testing::Test {
protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "tidemill-dataset-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.order = RowOrder::kFileOrder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
    return folder_ + "/" + name;
  }
  [[nodiscard]] Result<std::unique_ptr<PromptDataset>> open(std::vector<std::string> paths) {
    options_.paths = std::move(paths);
    return PromptDataset::open(options_);
  }
  [[nodiscard]] std::string failure(std::vector<std::string> paths) {
    return open(std::move(paths)).status().message();
  }
  static std::vector<std::string> prompts(PromptDataset& data, std::uint64_t from,
                                          std::uint64_t count) {
    std::vector<std::string> all;
    for (std::uint64_t position = from; position < from + count; ++position) {
      all.push_back(data.row_at(position).value().prompt);
    }
    return all;
  }

  std::string folder_;
  DatasetOptions options_;
};

TEST_F(DatasetTest, ReadsSeveralFilesInTheOrderOfTheirNames) {
  write("b.jsonl", prompt_line("b1") + "\n" + prompt_line("b2"));
  write("a.jsonl", prompt_line("a1") + "\r\n\n  \t\n" + prompt_line("a2") + "\n");
  const std::string other = write("other.txt", prompt_line("o") + "\n");
  const auto data =
      open({other, folder_ + "/*.jsonl", folder_ + "/b.jsonl", folder_ + "/[ab].jsonl"}).value();
  EXPECT_EQ(data->num_rows(), 5U);
  EXPECT_THAT(data->files(),
              ElementsAre(EndsWith("/a.jsonl"), EndsWith("/b.jsonl"), EndsWith("/other.txt")));
  EXPECT_THAT(prompts(*data, 0, 7), ElementsAre("a1", "a2", "b1", "b2", "o", "a1", "a2"));
  EXPECT_EQ(data->row_at(1).value().location.line, 4U);
  EXPECT_EQ(data->row_at(3).value().location.to_string(), folder_ + "/b.jsonl:2");
  EXPECT_EQ(data->num_positions(), std::nullopt);
}

TEST_F(DatasetTest, AnExistingPathIsNotAGlob) {
  const std::string odd = write("[x]*.jsonl", prompt_line("odd") + "\n");
  write("x.jsonl", prompt_line("x") + "\n");
  const auto data = open({odd}).value();
  EXPECT_THAT(prompts(*data, 0, 1), ElementsAre("odd"));
}

TEST_F(DatasetTest, NamesFileAndLineOfABrokenRow) {
  const std::string path = write("a.jsonl", prompt_line("1") + "\n\n{\"prompt\": 3}\n");
  EXPECT_EQ(failure({path}), path + ":3: prompt: must be a string");
  const std::string broken = write("b.jsonl", prompt_line("1") + "\n{\"prompt\": \"x\n");
  EXPECT_EQ(failure({broken}), broken + ":2: not JSON at byte 14");
}

TEST_F(DatasetTest, NamesPathsThatAreNotDataFiles) {
  EXPECT_EQ(failure({}), "no data file given");
  EXPECT_EQ(failure({folder_ + "/no*.jsonl"}), "`" + folder_ + "/no*.jsonl` matches no file");
  EXPECT_EQ(failure({folder_ + "/no/*.jsonl"}), "`" + folder_ + "/no/*.jsonl` matches no file");
  std::filesystem::create_symlink("loop", folder_ + "/loop");
  EXPECT_EQ(failure({folder_ + "/loop/*.jsonl"}),
            "`" + folder_ + "/loop/*.jsonl`: a folder cannot be read");
  EXPECT_THAT(failure({folder_}), HasSubstr(folder_));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(failure({fifo}), HasSubstr(fifo)) << "and does not wait for a writer";
  EXPECT_EQ(failure({std::string("a\0b", 3)}), "a path contains a NUL byte");
  const std::string empty = write("empty.jsonl", "\n  \n");
  EXPECT_EQ(failure({empty}), empty + ": no usable row");
}

TEST_F(DatasetTest, SkipsAndCountsBrokenRowsWhenAsked) {
  std::string text;
  for (int i = 0; i < 25; ++i) {
    text += i % 2 == 0 ? prompt_line(std::to_string(i)) + "\n" : "broken\n";
  }
  options_.on_error = OnRowError::kSkip;
  const std::string path = write("a.jsonl", text);
  const auto data = open({path}).value();
  EXPECT_EQ(data->num_rows(), 13U);
  EXPECT_EQ(data->num_skipped(), 12U);
  ASSERT_EQ(data->first_skipped().size(), 10U);
  EXPECT_EQ(data->first_skipped()[0],
            path + ":2: not JSON at byte 1; expected JSON Lines, one object per line");
  EXPECT_EQ(data->row_at(1).value().location.line, 3U);
  const std::string hopeless = write("b.jsonl", "broken\n");
  EXPECT_EQ(failure({hopeless}),
            hopeless + ": no usable row; the first skipped: " + hopeless +
                ":1: not JSON at byte 1; expected JSON Lines, one object per line");
}

TEST_F(DatasetTest, LimitsLinesAndRows) {
  options_.max_line_bytes = 40;
  const std::string long_line = prompt_line(std::string(3 << 20, 'x'));
  const std::string path = write(
      "a.jsonl", prompt_line("1") + "\n" + long_line + "\n" + prompt_line("2") + "\n" + long_line);
  EXPECT_EQ(failure({path}), path + ":2: line is longer than 40 bytes");
  options_.on_error = OnRowError::kSkip;
  const auto data = open({path}).value();
  EXPECT_EQ(data->num_skipped(), 2U);
  EXPECT_THAT(prompts(*data, 0, 2), ElementsAre("1", "2"));
  options_.max_rows = 1;
  EXPECT_EQ(open({path}).status().code(), Errc::kResourceExhausted);
  options_.max_line_bytes = 0;
  EXPECT_THAT(failure({path}), HasSubstr("max_line_bytes: must be from 1"));
}

TEST_F(DatasetTest, LinesMayCrossBlockBoundaries) {
  // Lines of many lengths over several blocks of 1 MiB.
  std::string text;
  std::vector<std::string> expected;
  for (std::size_t i = 0; text.size() < (3U << 20U); ++i) {
    expected.push_back(std::to_string(i) + std::string((i * 7919) % 5000, 'x'));
    text += prompt_line(expected.back()) + "\n";
  }
  const auto data = open({write("a.jsonl", text)}).value();
  EXPECT_EQ(data->num_rows(), expected.size());
  EXPECT_EQ(prompts(*data, 0, expected.size()), expected);
}

// -- files that are one JSON array ----------------------------------------------------------------

TEST_F(DatasetTest, ElementsOfAnArrayAreRows) {
  const std::string path = write("a.json", R"(
 [{"prompt": "a ] , \" \\"},
  {
    "prompt": "b",
    "more": [[], {"x": "}"}]
  } , {"prompt": "c"}

]
)");
  write("b.jsonl", prompt_line("d") + "\n");
  const auto data = open({folder_ + "/*"}).value();
  EXPECT_THAT(prompts(*data, 0, 4), ElementsAre("a ] , \" \\", "b", "c", "d"));
  std::vector<std::uint64_t> lines;
  for (std::uint64_t i = 0; i < 4; ++i) {
    lines.push_back(data->row_at(i).value().location.line);
  }
  EXPECT_THAT(lines, ElementsAre(2, 3, 6, 1)) << "where the element begins";
  EXPECT_EQ(data->row_at(1).value().fields,
            R"({     "prompt": "b",     "more": [[], {"x": "}"}]   })");
  EXPECT_EQ(data->row_at(2).value().fields, R"({"prompt": "c"})");
}

TEST_F(DatasetTest, ElementsMayCrossBlockBoundaries) {
  // Elements of many lengths over several blocks of 1 MiB, which cut strings, escapes and numbers.
  std::string text = "[";
  std::vector<std::string> expected;
  for (std::size_t i = 0; text.size() < (3U << 20U); ++i) {
    expected.push_back(std::to_string(i) + std::string((i * 7919) % 5000, '"'));
    text += i == 0 ? "\n{\"prompt\": \"" : ",\n{\"prompt\": \"";
    for (const char c : expected.back()) {
      text += c == '"' ? std::string("\\\"") : std::string(1, c);
    }
    text += "\"}";
  }
  const auto data = open({write("a.json", text + "]")}).value();
  EXPECT_EQ(data->num_rows(), expected.size());
  EXPECT_EQ(prompts(*data, 0, expected.size()), expected);
  EXPECT_EQ(data->row_at(7).value().location.line, 9U);
}

TEST_F(DatasetTest, NamesTheLineOfABadElement) {
  const std::string good = prompt_line("1");
  struct BadArray {
    std::string text;
    std::string message;
  };
  const std::vector<BadArray> cases = {
      {"[\n" + good + ",\n {\"prompt\": 3}]", ":3: prompt: must be a string"},
      {"[\n" + good + ",\n {\"prompt\": \"p\"]\n]", ":3: not JSON at byte 15"},
      {"[\n" + good + ",\n 3]", ":3: not a JSON object"},
      {"[[" + good + "]]", ":1: not a JSON object"},
      {"[\n" + good + ",\n]", ":3: a comma of the JSON array has no row on one side"},
      {"[\n,\n" + good + "]", ":2: a comma of the JSON array has no row on one side"},
      {"[" + good + ",\n,\n" + good + "]", ":2: a comma of the JSON array has no row on one side"},
      {"[" + good + "\n" + good + "]", ":1: not JSON at byte 17"},
      {"[" + good + "]\n[" + good + "]", ":2: text after the end of the JSON array"},
      {"[" + good + ",\n{\"prompt\": \"a\n\n", ":2: the JSON array has no end"},
      {"[" + good + ",\n\n", ":3: the JSON array has no end"},
      {"[\n]\n", ": no usable row"},
  };
  for (const BadArray& c : cases) {
    const std::string path = write("a.json", c.text);
    EXPECT_EQ(failure({path}), path + c.message) << c.text;
  }
}

TEST_F(DatasetTest, SkipsBadElementsButNotABrokenArray) {
  options_.on_error = OnRowError::kSkip;
  options_.max_line_bytes = 40;
  const std::string array = "[3,\n" + prompt_line("1") + std::string(100, ' ') + ",\n" +
                            prompt_line(std::string(50, 'x')) + ",\n" + prompt_line("2");
  const std::string path = write("a.json", array + "]");
  const auto data = open({path}).value();
  EXPECT_THAT(prompts(*data, 0, 2), ElementsAre("1", "2"));
  EXPECT_THAT(data->first_skipped(), ElementsAre(path + ":1: not a JSON object",
                                                 path + ":3: row is longer than 40 bytes"));
  const std::string open_array = write("b.json", array);
  EXPECT_EQ(failure({open_array}), open_array + ":4: the JSON array has no end");
}

TEST_F(DatasetTest, AResumedRunDrawsTheSameRows) {
  std::string text;
  for (int i = 0; i < 10; ++i) {
    text += prompt_line(std::to_string(i)) + "\n";
  }
  const std::string path = write("a.jsonl", text);
  options_.order = RowOrder::kShuffled;
  options_.seed = 3;
  const std::vector<std::string> whole = prompts(*open({path}).value(), 0, 35);
  // Epochs end at 10, 20 and 30. A run may resume at any position.
  for (std::uint64_t stopped = 0; stopped <= 35; ++stopped) {
    const auto resumed = open({path}).value();
    const std::vector<std::string> rest = prompts(*resumed, stopped, 35 - stopped);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + static_cast<long>(stopped)));
  }
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    const auto begin = whole.begin() + static_cast<long>(10 * epoch);
    EXPECT_EQ(std::set<std::string>(begin, begin + 10).size(), 10U);
  }
}

TEST_F(DatasetTest, TheDataEndsAfterItsEpochs) {
  options_.epochs = 2;
  const auto data = open({write("a.jsonl", prompt_line("1") + "\n" + prompt_line("2"))}).value();
  EXPECT_EQ(data->num_positions(), 4U);
  EXPECT_TRUE(data->row_at(3).ok());
  const Status end = data->row_at(4).status();
  EXPECT_EQ(end.code(), Errc::kNotFound);
  EXPECT_EQ(end.message(), "end of data: 2 epochs of 2 rows are used up");
  EXPECT_FALSE(data->row_at(~std::uint64_t{0}).ok());
}

TEST_F(DatasetTest, AFileThatChangesAfterOpeningIsAnError) {
  const std::string path = write("a.jsonl", prompt_line("1") + "\n" + prompt_line("2") + "\n");
  const auto data = open({path}).value();
  write("a.jsonl", prompt_line("1") + "\n" + prompt_line("3") + "\n");  // same size
  EXPECT_TRUE(data->row_at(0).ok()) << "this row is unchanged";
  const Status changed = data->row_at(1).status();
  EXPECT_EQ(changed.code(), Errc::kCorruptData);
  EXPECT_EQ(changed.message(), path + ":2: the file has changed since the data was read");
  write("a.jsonl", "");
  EXPECT_EQ(data->row_at(0).status().code(), Errc::kCorruptData);

  const auto other = open({write("b.jsonl", prompt_line("1"))}).value();
  std::filesystem::remove(folder_ + "/b.jsonl");
  EXPECT_EQ(other->row_at(0).status().code(), Errc::kNotFound);
}

TEST_F(DatasetTest, TheDigestDistinguishesData) {
  const std::string text = prompt_line("1") + "\n" + prompt_line("2") + "\n";
  const std::string path = write("a.jsonl", text);
  const std::string digest = open({path}).value()->digest();
  EXPECT_EQ(digest.size(), 32U);
  EXPECT_EQ(open({path}).value()->digest(), digest);
  std::filesystem::create_directory(folder_ + "/moved");
  EXPECT_EQ(open({write("moved/a.jsonl", text)}).value()->digest(), digest) << "only moved";
  std::set<std::string> digests = {digest};
  digests.insert(open({write("b.jsonl", text)}).value()->digest());
  digests.insert(open({write("a.jsonl", text + "\n")}).value()->digest());
  digests.insert(open({write("a.jsonl", prompt_line("1") + "\n" + prompt_line("3") + "\n")})
                     .value()
                     ->digest());
  digests.insert(open({folder_ + "/a.jsonl", folder_ + "/b.jsonl"}).value()->digest());
  EXPECT_EQ(digests.size(), 5U);
}

TEST_F(DatasetTest, WeightsSayHowOftenEachPathIsDrawnFrom) {
  const std::string large = write("large.jsonl", prompt_line("l1") + "\n" + prompt_line("l2") +
                                                     "\n" + prompt_line("l3") + "\n");
  const std::string small = write("small.jsonl", prompt_line("s1") + "\n");
  options_.weights = {1.0, 3.0};
  const auto data = open({large, small}).value();
  EXPECT_EQ(data->num_rows(), 4U);
  std::map<std::string, int> drawn;
  for (const std::string& prompt : prompts(*data, 0, 400)) {
    ++drawn[prompt];
  }
  EXPECT_NEAR(drawn["s1"], 300, 3);
  EXPECT_NEAR(drawn["l1"], 33, 2);
  EXPECT_NEAR(drawn["l3"], 33, 2);
  EXPECT_EQ(prompts(*open({large, small}).value(), 123, 9), prompts(*data, 123, 9));
  std::vector<std::string> in_file_order;
  for (std::uint64_t number = 0; number < 4; ++number) {
    in_file_order.push_back(data->row_in_file_order(number).value().prompt);
  }
  EXPECT_THAT(in_file_order, ElementsAre("l1", "l2", "l3", "s1"));
  EXPECT_THAT(data->files(), ElementsAre(large, small));

  ASSERT_LT(data->positions_of_all_rows(), 100U);
  const auto window = static_cast<int>(data->positions_of_all_rows());
  for (std::uint64_t first = 0; first < 200; ++first) {
    const auto seen = prompts(*data, first, window);
    EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 4U) << first;
  }

  options_.weights = {1.0, 2.0};
  EXPECT_NE(open({large, small}).value()->digest(), data->digest());
  options_.weights = {1.0, 1e-8};
  const std::string tiny = open({large, small}).value()->digest();
  options_.weights = {1.0, 2e-8};
  EXPECT_NE(open({large, small}).value()->digest(), tiny);
  options_.epochs = 2;
  EXPECT_EQ(open({large, small}).value()->num_positions(), 8U);
}

TEST_F(DatasetTest, RefusesInvalidWeights) {
  const std::string a = write("a.jsonl", prompt_line("a") + "\n");
  const std::string b = write("b.jsonl", prompt_line("b") + "\n");
  options_.weights = {1.0, 2.0};
  EXPECT_EQ(failure({folder_ + "/*.jsonl", b}), b + ": has two weights");
  EXPECT_EQ(failure({a}), "weights: must have one entry for each path");
  options_.weights = {1.0, 0.0};
  EXPECT_EQ(failure({a, b}), "weights: must be above 0");
  options_.weights = {1.0, std::nan("")};
  EXPECT_EQ(failure({a, b}), "weights: must be above 0");
}

TEST_F(DatasetTest, CountsTheSkippedRowsOfAllSources) {
  options_.on_error = OnRowError::kSkip;
  options_.weights = {1.0, 3.0};
  const std::string a = write("a.jsonl", prompt_line("1") + "\nbroken\nbroken\n");
  const std::string b = write("b.jsonl", "broken\n" + prompt_line("2") + "\n");
  const auto data = open({a, b}).value();
  EXPECT_EQ(data->num_rows(), 2U);
  EXPECT_EQ(data->num_skipped(), 3U);
  EXPECT_THAT(data->first_skipped(),
              ElementsAre(a + ":2: not JSON at byte 1; expected JSON Lines, one object per line",
                          a + ":3: not JSON at byte 1; expected JSON Lines, one object per line",
                          b + ":1: not JSON at byte 1; expected JSON Lines, one object per line"));
}

TEST_F(DatasetTest, ReadsSupervisedRows) {
  options_.paths = {write("a.jsonl", R"({"input_ids": [1, 2], "loss_mask": [0, 1]})"
                                     "\n"
                                     R"({"prompt": "p", "answer": "a"})")};
  const auto data = SupervisedDataset::open(options_).value();
  EXPECT_EQ(data->row_at(0).value().input_ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(data->row_at(1).value().reference_answer, "a");
  EXPECT_EQ(data->row_at(1).value().location.line, 2U);
  const std::string prompts_only = write("b.jsonl", prompt_line("p"));
  options_.paths = {prompts_only};
  EXPECT_EQ(SupervisedDataset::open(options_).status().message(),
            prompts_only +
                ":1: has prompt; needs exactly one of: text | prompt, answer | prompt, "
                "completion | messages | input_ids (labels or loss_mask are optional)");
}

}  // namespace
}  // namespace tidemill::storage
