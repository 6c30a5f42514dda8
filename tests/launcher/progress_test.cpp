// SPDX-License-Identifier: Apache-2.0
// The table that a run prints: every column, when rows appear, and the time that is left.
#include "launcher/runs/progress.hpp"

#include <chrono>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::launcher {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

class ProgressTest : public ::testing::Test {
protected:
  // A step whose metrics all differ.
  static actors::StepRecord rollout_step(std::uint64_t step) {
    return {"train",
            step,
            {{"reward_mean", -0.375},
             {"staleness_mean", 1.25},
             {"response_tokens", 900.0},
             {"wait_seconds", 0.75},
             {"train_seconds", 2.25},
             {"rollout_idle_seconds", 0.5},
             {"reward_idle_seconds", 1.75}},
            {}};
  }
  static actors::StepRecord evaluation(double mean_reward, double failed = 1.0) {
    return {"eval",
            1,
            {{"eval_mean_at_k", mean_reward},
             {"eval_prompts", 2.0},
             {"eval_samples", 4.0},
             {"eval_failed", failed}},
            {}};
  }
  static actors::StepRecord supervised_step(std::uint64_t step) {
    return {"train",
            step,
            {{"loss", 1.5},
             {"gradient_norm", 0.25},
             {"learning_rate", 3e-5},
             {"batch_tokens", 640.0},
             {"train_seconds", 5.0}},
            {}};
  }
  // Shows a record that arrives a second after the last one.
  void show(const std::string& kind, std::uint64_t step, std::map<std::string, double> metrics) {
    clock_.advance(1s);
    progress_.show({kind, step, std::move(metrics), {}});
  }
  // Returns the words of the lines printed since the last call.
  std::vector<std::vector<std::string>> rows() {
    std::vector<std::vector<std::string>> rows;
    std::istringstream lines(out_.str());
    out_.str("");
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      rows.emplace_back(std::istream_iterator<std::string>(words),
                        std::istream_iterator<std::string>());
    }
    return rows;
  }

  ManualClock clock_;
  std::ostringstream out_;
  Progress progress_{out_, OutputForm::kText, clock_};
};

TEST_F(ProgressTest, ALineAboutProcessesPrecedesARowIfItHasChanged) {
  std::string processes = "rollout 1 of 2 connected";
  const auto lines_of = [&](OutputForm form) {
    out_.str("");
    Progress progress(out_, form, clock_);
    progress.set_processes([&] { return processes; });
    processes = "rollout 1 of 2 connected";
    for (std::uint64_t step = 1; step <= 5; ++step) {
      if (step == 3) {
        processes = "rollout 2 of 2 connected; 1 restart";
      }
      clock_.advance(1s);
      progress.show(rollout_step(step));
    }
    processes = "rollout 0 of 2 connected";  // since the run ends
    progress.show(rollout_step(6));
    progress.end();
    std::vector<std::string> firsts;
    for (const std::vector<std::string>& row : rows()) {
      firsts.push_back(row.front() == "processes:" ? row[1] + row[2] : row.front());
    }
    return firsts;
  };
  EXPECT_THAT(lines_of(OutputForm::kText),
              ElementsAre("rollout1", "mean", "step", "1", "2", "rollout2", "3", "4", "5", "6"));
  EXPECT_EQ(lines_of(OutputForm::kJson).size(), 6U) << "records only";
}

TEST_F(ProgressTest, TheTableOfRolloutsShowsMeanRewards) {
  progress_.begin(4);
  const auto train = [](double reward, double response_tokens = 1234.0) {
    return std::map<std::string, double>{{"reward_mean", reward},
                                         {"wait_seconds", 0.25},
                                         {"train_seconds", 0.75},
                                         {"response_tokens", response_tokens},
                                         {"staleness_mean", 0.5}};
  };
  show("train", 1, train(-0.5));
  show("eval", 1, {{"eval_mean_at_k", -1.0}, {"eval_prompts", 2.0}, {"eval_samples", 1.0}});
  show("train", 2, train(1.194));
  show("eval", 2, {{"eval_failed", 2.0}, {"eval_prompts", 2.0}, {"eval_samples", 1.0}});
  show("train", 4, train(1.0, 3.25));
  EXPECT_EQ(out_.str(),
            "          mean reward       seconds per step\n"
            "  step    train     eval  waiting  training  tokens/s  staleness  time left\n"
            "     1   -0.500        -     0.25      0.75      1234       0.50          -\n"
            "     2    1.194   -1.000     0.25      0.75      1234       0.50         4s\n"
            "     4    1.000        -     0.25      0.75       3.2       0.50         0s\n");
}

TEST_F(ProgressTest, TheEvaluationColumnShowsTheLastEvaluation) {
  progress_.show(rollout_step(1));
  rows();
  const std::pair<actors::StepRecord, std::string> cases[] = {
      {evaluation(0.625), "0.625"},
      {evaluation(0.25), "0.250"},
      {evaluation(0.0), "0.000"},
      {evaluation(0.0, 8.0), "-"},  // no response could be scored
      {evaluation(0.5, 7.0), "0.500"}};
  std::uint64_t step = 2;
  for (const auto& [record, expected] : cases) {
    progress_.show(record);
    EXPECT_TRUE(rows().empty());
    clock_.advance(1s);
    progress_.show(rollout_step(step++));
    const auto printed = rows();
    ASSERT_EQ(printed.size(), 1U);
    EXPECT_EQ(printed[0][2], expected);
  }
}

TEST_F(ProgressTest, ARowOfASupervisedRunHasEveryColumn) {
  progress_.begin(3);
  progress_.show(supervised_step(1));
  progress_.show({"eval", 1, {{"eval_loss", 2.125}}, {}});
  clock_.advance(4s);
  progress_.show(supervised_step(2));
  const auto printed = rows();
  ASSERT_EQ(printed.size(), 3U);
  EXPECT_THAT(printed[0], ElementsAre("step", "loss", "eval", "loss", "gradient", "norm",
                                      "learning", "rate", "tokens/s", "time", "left"));
  EXPECT_THAT(printed[1], ElementsAre("1", "1.50000", "-", "0.2500", "3e-05", "128", "-"));
  EXPECT_THAT(printed[2], ElementsAre("2", "1.50000", "2.12500", "0.2500", "3e-05", "128", "4s"));
}

// A supervised run evaluates after it has shown the row of the step.
TEST_F(ProgressTest, TheEndShowsAnEvaluationAfterTheLastRow) {
  progress_.show(supervised_step(1));
  progress_.show({"eval", 1, {{"eval_loss", 2.5}}, {}});
  clock_.advance(1s);
  progress_.show(supervised_step(2));
  rows();
  progress_.end();
  EXPECT_TRUE(rows().empty());  // the row of step 2 has the loss
  progress_.show({"eval", 2, {{"eval_loss", 2.125}}, {}});
  progress_.end();
  const auto printed = rows();
  ASSERT_EQ(printed.size(), 1U);
  EXPECT_THAT(printed[0], ElementsAre("eval", "loss", "after", "step", "2:", "2.12500"));
  progress_.end();
  EXPECT_TRUE(rows().empty());
}

// The first step that is shown may follow a resume. The time per step is measured from there on.
TEST_F(ProgressTest, TheTimeLeftFollowsTheStepsSinceTheFirstRow) {
  progress_.begin(20);
  progress_.show(supervised_step(5));
  clock_.advance(30s);
  progress_.show(supervised_step(7));  // 15 seconds a step, 13 steps left
  clock_.advance(90s);
  progress_.show(supervised_step(10));  // 24 seconds a step, 10 steps left
  clock_.advance(60s);
  progress_.show(supervised_step(20));
  const auto printed = rows();
  ASSERT_EQ(printed.size(), 5U);
  EXPECT_EQ(printed[1].back(), "-");
  EXPECT_EQ(printed[2].back(), "3m15s");
  EXPECT_EQ(printed[3].back(), "4m00s");
  EXPECT_EQ(printed[4].back(), "0s");
}

TEST_F(ProgressTest, ShowsFourRowsASecondAndAlwaysTheLastStep) {
  progress_.begin(9);
  progress_.show(supervised_step(1));
  clock_.advance(249ms);
  progress_.show(supervised_step(2));
  EXPECT_EQ(rows().size(), 2U);  // the head and step 1
  clock_.advance(1ms);
  progress_.show(supervised_step(3));
  ASSERT_EQ(rows().size(), 1U);
  clock_.advance(249ms);
  progress_.show(supervised_step(4));
  progress_.show(supervised_step(5));
  EXPECT_TRUE(rows().empty());
  progress_.end();
  const auto last = rows();
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0][0], "5");
  progress_.end();
  EXPECT_TRUE(rows().empty());
}

TEST_F(ProgressTest, AStepLeftOutBeforeTheLastRowIsNotShownAtTheEnd) {
  progress_.begin(3);
  progress_.show(supervised_step(1));
  progress_.show(supervised_step(2));  // left out: at the same time as step 1
  clock_.advance(1s);
  progress_.show(supervised_step(3));
  EXPECT_EQ(rows().size(), 3U);  // the head, step 1 and step 3
  progress_.end();
  EXPECT_TRUE(rows().empty());
}

TEST_F(ProgressTest, WithoutTimeThereIsNoRate) {
  actors::StepRecord record = supervised_step(1);
  record.metrics["train_seconds"] = 0.0;
  progress_.show(record);
  EXPECT_EQ(rows().at(1)[5], "0");
}

TEST_F(ProgressTest, AsJsonEveryRecordIsALine) {
  Progress json(out_, OutputForm::kJson, clock_);
  json.show({"train", 3, {{"kl", -0.5}, {"loss", 1.25}}, {}});
  json.show(evaluation(0.25));
  EXPECT_EQ(out_.str(),
            "{\"kind\":\"train\",\"step\":3,\"kl\":-0.5,\"loss\":1.25}\n"
            "{\"kind\":\"eval\",\"step\":1,\"eval_failed\":1.0,\"eval_mean_at_k\":0.25,"
            "\"eval_prompts\":2.0,\"eval_samples\":4.0}\n");
}

TEST(DurationText, HasTwoUnitsAtMost) {
  EXPECT_EQ(duration_text(0s), "0s");
  EXPECT_EQ(duration_text(59s + 999ms), "59s");
  EXPECT_EQ(duration_text(60s), "1m00s");
  EXPECT_EQ(duration_text(65s), "1m05s");
  EXPECT_EQ(duration_text(59min + 59s), "59m59s");
  EXPECT_EQ(duration_text(1h), "1h00m");
  EXPECT_EQ(duration_text(2h + 7min + 59s), "2h07m");
  EXPECT_EQ(duration_text(30h), "30h00m");
}

}  // namespace
}  // namespace tidemill::launcher
