// SPDX-License-Identifier: Apache-2.0
// Tests `export` on finished runs: the model or adapter of the last commit is the one that the run
// exported at its end, and a merged model has the log-probabilities of the adapter over its base.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

const std::string kModel = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";

class ExportedRunsTest : public ::testing::Test {
protected:
  ExportedRunsTest() { folder_.write_rows(); }
  ~ExportedRunsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Runs a command that must succeed, and returns its output.
  [[nodiscard]] std::string done(const std::vector<std::string>& arguments) const {
    const auto ended = folder_.run(arguments);
    if (!ended.has_value() || ended->code != 0) {
      ADD_FAILURE() << arguments[0] << ": " << (ended.has_value() ? ended->describe() : "hangs");
      return {};
    }
    return ended->out;
  }

  // Carries out a run of the shipped model. `rest` is the rest of its file.
  [[nodiscard]] std::string train(const std::string& name, const std::string& rest) const {
    folder_.write(
        name + ".yaml",
        "model: {path: " + kModel + "}\n" +
            (rest.find("data:") == std::string::npos ? "data: {train: rows.jsonl}\n" : "") + rest);
    return done({"run", name + ".yaml"});
  }

  // Returns the log-probabilities that `score` computes for three rows of tokens, in a single list.
  [[nodiscard]] std::vector<double> scores(const std::vector<std::string>& model) const {
    folder_.write("ids.jsonl",
                  "{\"ids\": [4, 8, 3, 9, 1]}\n{\"ids\": [1, 2]}\n{\"ids\": [12, 5, 5]}\n");
    std::vector<std::string> command{"score", "--input", "ids.jsonl"};
    command.insert(command.end(), model.begin(), model.end());
    std::istringstream lines(done(command));
    std::vector<double> values;
    for (std::string line; std::getline(lines, line);) {
      const auto result = nlohmann::json::parse(line);
      for (const auto& value : result.at("logprobs")) {
        if (!value.is_null()) {
          values.push_back(value.get<double>());
        }
      }
    }
    EXPECT_EQ(values.size(), 7U);
    return values;
  }

  RunFolder folder_;
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

constexpr const char* kReinforced =
    "workflow: rl\nrollout: {group_size: 4, max_new_tokens: 4}\nreward: {kind: number}\n";

TEST_F(ExportedRunsTest, AnExportedModelIsThatOfTheEndOfTheRun) {
  std::ignore = train("all", std::string(kReinforced) +
                                 "train: {steps: 2, prompts_per_step: 4, learning_rate: 1e-3}\n");
  EXPECT_EQ(done({"export", "runs/all", "out"}), "out: model\n");
  const std::string weights = read_file(folder_.path() / "out/model.safetensors");
  EXPECT_FALSE(weights.empty());
  EXPECT_EQ(weights, folder_.exported_weights("all"));
  EXPECT_NE(weights, read_file(kModel + "/model.safetensors"));
}

TEST_F(ExportedRunsTest, AnExportedAdapterIsThatOfTheEndOfTheRunAndCanBeMerged) {
  const std::string adapter = "learning_rate: 1e-2, adapter: {rank: 4, alpha: 8}}\n";
  for (const auto& [name, rest] : std::map<std::string, std::string>{
           {"supervised", "workflow: sft\ntrain: {steps: 2, sequences_per_step: 8, " + adapter},
           {"reinforced",
            std::string(kReinforced) + "train: {steps: 2, prompts_per_step: 4, " + adapter}}) {
    SCOPED_TRACE(name);
    std::ignore = train(name, rest);
    EXPECT_EQ(done({"export", "runs/" + name, name}), name + ": adapter\n");
    EXPECT_EQ(read_file(folder_.path() / name / "adapter_model.safetensors"),
              folder_.exported_weights(name));
    EXPECT_EQ(read_file(folder_.path() / name / "adapter_config.json"),
              read_file(folder_.path() / "runs" / name / "export/adapter/adapter_config.json"));
    EXPECT_EQ(done({"export", "runs/" + name, name + "-merged", "--merge"}),
              name + "-merged: model\n");

    const auto base = scores({kModel});
    const auto with_adapter = scores({kModel, "--adapter", name});
    const auto merged = scores({name + "-merged"});
    EXPECT_GT(largest_difference(base, with_adapter), 1e-2);    // training has changed it
    EXPECT_LT(largest_difference(merged, with_adapter), 1e-4);  // the same sums in another order
  }
}

TEST_F(ExportedRunsTest, ExportsTheBestModel) {
  // The learning rate is so high that the model gets worse: the first evaluations are the best.
  std::ignore = train("best",
                      "workflow: rl\ndata: {train: rows.jsonl, eval: rows.jsonl}\n"
                      "rollout: {group_size: 4, max_new_tokens: 4}\n"
                      "reward:\n  - {kind: number}\n"
                      "  - {kind: regex, pattern: '^\\d+$', name: form, weight: 0.125}\n"
                      "train: {steps: 20, prompts_per_step: 4, learning_rate: 0.05}\n"
                      "eval: {every_steps: 1, keep_best: true, patience: 3}\n"
                      "checkpoint: {every_steps: 2}\n");
  double best = -1;
  std::int64_t best_step = 0;
  std::vector<std::int64_t> evaluated;
  for (const std::string& line : folder_.evaluations("best")) {
    const auto record = nlohmann::json::parse(line);
    evaluated.push_back(record.at("step"));
    const double value = record.at("eval_mean_at_k");
    if (value > best || (value == best && evaluated.back() < best_step)) {
      best = value;
      best_step = evaluated.back();
    }
    EXPECT_NEAR(value,
                record.at("eval_number_mean").get<double>() +
                    0.125 * record.at("eval_form_mean").get<double>(),
                1e-12);
  }
  const std::int64_t last = *std::max_element(evaluated.begin(), evaluated.end());
  EXPECT_EQ(last, best_step + 3) << "the run ends at a plateau";
  const std::string weights = folder_.exported_weights("best");
  EXPECT_EQ(done({"export", "runs/best", "kept", "--best"}), "kept: model\n");
  EXPECT_EQ(read_file(folder_.path() / "kept/model.safetensors"), weights);
  EXPECT_EQ(done({"export", "runs/best", "last"}), "last: model\n");
  EXPECT_NE(read_file(folder_.path() / "last/model.safetensors"), weights);
  std::istringstream samples(folder_.samples("best"));
  std::string line;
  ASSERT_TRUE(std::getline(samples, line));
  const auto sample = nlohmann::json::parse(line);
  EXPECT_EQ(sample.at("reward").get<double>(),
            sample.at("rewards").at("number").get<double>() +
                0.125 * sample.at("rewards").at("form").get<double>());
}

// These rows have partial masks and different lengths, so a mean over rows would differ from the
// mean over tokens.
constexpr const char* kHeldOut =
    "{\"input_ids\": [4, 8, 3, 9, 1], \"loss_mask\": [1, 0, 1, 1, 0]}\n"
    "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n"
    "{\"input_ids\": [12, 5, 5], \"loss_mask\": [0, 0, 1]}\n";

TEST_F(ExportedRunsTest, TheLossOnHeldOutRowsMatchesScoreAndFindsTheBestModel) {
  folder_.write("held-out.jsonl", kHeldOut);
  std::ignore = train("held",
                      "workflow: sft\ndata: {train: rows.jsonl, eval: held-out.jsonl}\n"
                      "train: {steps: 12, sequences_per_step: 2, learning_rate: 0.01}\n"
                      "eval: {every_steps: 1, keep_best: true, patience: 3}\n"
                      "checkpoint: {every_steps: 2}\n");
  std::map<std::int64_t, double> losses;
  for (const std::string& line : folder_.evaluations("held")) {
    const auto record = nlohmann::json::parse(line);
    const double loss = record.at("eval_loss");
    losses[record.at("step")] = loss;
    EXPECT_DOUBLE_EQ(record.at("eval_perplexity"), std::exp(loss));
    EXPECT_EQ(record.at("eval_tokens"), 4);
  }
  const auto best = std::ranges::min_element(
      losses, [](const auto& a, const auto& b) { return a.second < b.second; });
  ASSERT_NE(best, losses.end());
  EXPECT_EQ(losses.rbegin()->first, best->first + 3) << "the run ends at a plateau";
  EXPECT_EQ(done({"export", "runs/held", "kept", "--best"}), "kept: model\n");
  EXPECT_EQ(read_file(folder_.path() / "kept/model.safetensors"), folder_.exported_weights("held"));
  EXPECT_EQ(done({"export", "runs/held", "last"}), "last: model\n");
  EXPECT_NE(read_file(folder_.path() / "last/model.safetensors"), folder_.exported_weights("held"));

  // `scores` returns the log-probabilities of tokens 1 to 4, of token 1, and of tokens 1 and 2.
  for (const auto& [model, loss] :
       {std::pair("last", losses.rbegin()->second), std::pair("kept", best->second)}) {
    const std::vector<double> all = scores({model});
    EXPECT_NEAR(loss, -(all[1] + all[2] + all[4] + all[6]) / 4, 1e-6) << model;
  }
}

class ExportTargetsTest : public ExportedRunsTest {
protected:
  ExportTargetsTest() {
    std::filesystem::copy(kModel, at("model"), std::filesystem::copy_options::recursive);
    folder_.write("run.yaml",
                  "workflow: sft\nmodel: {path: model}\ndata: {train: rows.jsonl}\n"
                  "train: {steps: 1, sequences_per_step: 2}\n");
    EXPECT_NE(done({"run", "run.yaml", "name=one"}), "");
  }

  [[nodiscard]] std::filesystem::path at(const std::string& name) const {
    return folder_.path() / name;
  }
  // Expects that the command is refused with exactly this line.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& line) const {
    const auto ended = folder_.run(arguments);
    ASSERT_TRUE(ended.has_value()) << "hangs";
    EXPECT_EQ(ended->code, 2) << ended->describe();
    EXPECT_EQ(ended->err, line + "\n");
  }
  [[nodiscard]] std::string origin(const std::string& run) const {
    std::string started = read_file(at("runs/" + run + "/started"));
    started.pop_back();
    return "run " + run + ", begun " + started;
  }
};

TEST_F(ExportTargetsTest, AnExportWithoutTokenizerIsRefused) {
  std::filesystem::rename(at("model/tokenizer.json"), at("kept.json"));
  expect_refused({"export", "one", "out"},
                 at("model/tokenizer.json").string() +
                     ": no such file; an export copies the tokenizer of the model that the run "
                     "started from");
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  std::filesystem::rename(at("kept.json"), at("model/tokenizer.json"));
  EXPECT_EQ(done({"export", "one", "out"}), "out: model\n");
}

TEST_F(ExportTargetsTest, OnlyAnEarlierExportOfTheRunIsReplaced) {
  EXPECT_NE(done({"run", "run.yaml", "name=two", "seed=2"}), "");
  std::filesystem::copy(at("model"), at("mine"), std::filesystem::copy_options::recursive);
  const std::string mine = read_file(at("mine/model.safetensors"));
  const std::string hint = "; name another directory, or replace its files with --force";
  expect_refused({"export", "one", "mine"},
                 "mine: is not empty and holds no earlier export of " + origin("one") + hint);
  EXPECT_TRUE(read_file(at("mine/model.safetensors")) == mine);
  EXPECT_EQ(done({"export", "one", "out"}), "out: model\n");
  EXPECT_EQ(done({"export", "one", "out"}), "out: model\n");
  std::filesystem::rename(at("runs/one"), at("runs/renamed"));
  EXPECT_EQ(done({"export", "renamed", "out"}), "out: model\n");
  expect_refused({"export", "two", "out"},
                 "out: is not empty and holds no earlier export of " + origin("two") + hint);
  EXPECT_EQ(done({"export", "two", "out", "--force"}), "out: model\n");
  EXPECT_TRUE(read_file(at("out/model.safetensors")) == folder_.exported_weights("two"));
}

TEST_F(ExportTargetsTest, TheTargetIsCheckedFirst) {
  std::filesystem::remove_all(at("runs/one/checkpoints/objects"));  // fails later
  expect_refused({"export", "one", "none/out"},
                 "none/out: its parent folder " +
                     (std::filesystem::canonical(folder_.path()) / "none").string() +
                     " does not exist");
  expect_refused({"export", "one", "rows.jsonl"}, "rows.jsonl: not a directory");
  expect_refused({"export", "one", ""}, "DIR: is empty; name the directory to write");
  expect_refused({"show", ""}, "RUN: is empty; tidemill runs lists all runs");
}

// A folder of the same name that is not a run does not hide the run, as with show and resume.
TEST_F(ExportTargetsTest, RunsAreFoundAsByOtherCommands) {
  std::filesystem::create_directory(at("one"));
  EXPECT_NE(done({"show", "one"}), "");
  EXPECT_EQ(done({"export", "one", "out"}), "out: model\n");
  expect_refused({"export", "no\nrun", "out"},
                 "no\\nrun: no such run or commit; tidemill runs lists all runs");
}

}  // namespace
}  // namespace tidemill::test
