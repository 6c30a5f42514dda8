// SPDX-License-Identifier: Apache-2.0
// Tests the quickstart: its configuration reproduces the shipped model, and reinforcement learning
// corrects the model's mistakes. The responses come from `tidemill generate`, and the test grades
// them independently of the program.
#include <algorithm>
#include <cctype>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <gtest/gtest.h>

#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

// The accuracy of the shipped model on the 200 held-out problems, as stated in
// examples/models/README.md.
constexpr double kShippedGreedy = 0.555;
constexpr double kShippedPassAt8 = 0.985;

// A run can take minutes on a busy machine.
constexpr std::chrono::seconds kLongRun{900};

const std::filesystem::path kSource = TIDEMILL_SOURCE_DIR;
const std::filesystem::path kShipped = kSource / "examples/models/arithmetic";

// Adds links to the examples and configs of the repository.
void link_repository(const RunFolder& folder) {
  for (const char* name : {"examples", "configs"}) {
    std::filesystem::create_directory_symlink(kSource / name, folder.path() / name);
  }
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

// Returns the last sequence of digits in a text.
std::string last_number(const std::string& text) {
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto end = std::find_if(text.rbegin(), text.rend(), is_digit);
  const auto begin = std::find_if_not(end, text.rend(), is_digit);
  return {begin.base(), end.base()};
}

// Returns which of the 200 problems `model` solves if `tidemill generate` runs with the options
// `how`.
std::vector<bool> solved(const RunFolder& folder, const std::filesystem::path& model,
                         const std::vector<std::string>& how) {
  const auto problems = json_lines(read_file(kSource / "examples/arithmetic/data/eval.jsonl"));
  std::string input;
  for (const nlohmann::json& problem : problems) {
    input += nlohmann::json{{"prompt", problem.at("prompt")}}.dump() + '\n';
  }
  folder.write("problems.jsonl", input);
  std::vector<std::string> command{"generate",       model.string(),     "--input",
                                   "problems.jsonl", "--max-new-tokens", "4"};
  command.insert(command.end(), how.begin(), how.end());
  const std::optional<Ended> ended = folder.run(command);
  EXPECT_TRUE(ended.has_value());
  if (!ended.has_value() || ended->code != 0) {
    ADD_FAILURE() << (ended.has_value() ? ended->describe() : "hangs");
    return {};
  }
  const auto responses = json_lines(ended->out);
  EXPECT_EQ(responses.size(), problems.size());
  std::vector<bool> correct;
  for (std::size_t i = 0; i < std::min(responses.size(), problems.size()); ++i) {
    correct.push_back(last_number(responses[i].at("text")) ==
                      problems[i].at("answer").get<std::string>());
  }
  return correct;
}

double share(const std::vector<bool>& correct) {
  return static_cast<double>(std::count(correct.begin(), correct.end(), true)) /
         std::max(static_cast<double>(correct.size()), 1.0);
}

double greedy_accuracy(const RunFolder& folder, const std::filesystem::path& model) {
  return share(solved(folder, model, {"--greedy"}));
}

double pass_at_8(const RunFolder& folder, const std::filesystem::path& model) {
  std::vector<bool> any;
  for (int seed = 0; seed < 8; ++seed) {
    const std::vector<bool> correct =
        solved(folder, model, {"--temperature", "1", "--seed", std::to_string(seed)});
    any.resize(correct.size());
    for (std::size_t i = 0; i < correct.size(); ++i) {
      any[i] = any[i] || correct[i];
    }
  }
  return share(any);
}

// Returns whether this machine uses the kernels that the shipped model was made with: the built-in
// ones, which give the same bits on every processor with FMA.
bool uses_built_in_kernels() {
  engines::Workers workers(1);
  const auto ops = engines::make_cpu_ops(workers, {});
  return ops.ok() &&
         ops.value()->description().find("built-in matrix kernels") != std::string_view::npos;
}

TEST(QuickstartTest, TheShippedModelHasTheStatedAccuracy) {
  const RunFolder folder;
  EXPECT_NEAR(greedy_accuracy(folder, kShipped), kShippedGreedy, 0.0201);
  EXPECT_NEAR(pass_at_8(folder, kShipped), kShippedPassAt8, 0.0201);
}

TEST(QuickstartTest, TheConfigurationReproducesTheShippedModel) {
  const RunFolder folder;
  link_repository(folder);
  const std::optional<Ended> ended = folder.run({"run", "configs/quickstart-sft.yaml"}, kLongRun);
  ASSERT_TRUE(ended.has_value());
  ASSERT_EQ(ended->code, 0) << ended->describe();
  const std::string made = folder.exported_weights("quickstart-sft");
  ASSERT_FALSE(made.empty());
  const bool same = made == read_file(kShipped / "model.safetensors");
  std::cout << "the reproduced model has " << (same ? "the same bits" : "other bits") << '\n';
  if (uses_built_in_kernels()) {
    EXPECT_TRUE(same);
  }
  EXPECT_NEAR(greedy_accuracy(folder, folder.path() / "runs/quickstart-sft/export"), kShippedGreedy,
              0.0201);
}

TEST(QuickstartTest, ReinforcementLearningCorrectsTheMistakes) {
  const RunFolder folder;
  link_repository(folder);
  const std::optional<Ended> ended =
      folder.run({"run", "configs/quickstart.yaml", "--json"}, kLongRun);
  ASSERT_TRUE(ended.has_value());
  ASSERT_EQ(ended->code, 0) << ended->describe();
  const double after = greedy_accuracy(folder, folder.path() / "runs/quickstart/export");
  EXPECT_GT(after, 0.95);
  const auto lines = json_lines(ended->out);
  const auto report = std::find_if(lines.begin(), lines.end(), [](const nlohmann::json& line) {
    return line.value("kind", "") == "before_and_after";
  });
  ASSERT_NE(report, lines.end()) << ended->out;
  EXPECT_DOUBLE_EQ(report->at("accuracy_after").get<double>(), after);
  EXPECT_DOUBLE_EQ(report->at("accuracy_before").get<double>(), greedy_accuracy(folder, kShipped));
  EXPECT_EQ(report->at("answers").size(), 5U);
}

}  // namespace
}  // namespace tidemill::test
