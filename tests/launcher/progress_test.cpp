// SPDX-License-Identifier: Apache-2.0
// Tests the live tables of runs.
#include "launcher/runs/progress.hpp"

#include <sstream>

#include <gtest/gtest.h>

namespace tidemill::launcher {
namespace {

class ProgressTest : public ::testing::Test {
protected:
  // Shows a record that arrives a second after the last one.
  void show(const std::string& kind, std::uint64_t step, std::map<std::string, double> metrics) {
    clock_.advance(std::chrono::seconds(1));
    progress_.show({kind, step, std::move(metrics), {}});
  }

  ManualClock clock_;
  std::ostringstream out_;
  Progress progress_{out_, OutputForm::kText, clock_};
};

TEST_F(ProgressTest, TheTableOfRolloutsShowsMeanRewards) {
  progress_.begin(4);
  const auto train = [](double reward) {
    return std::map<std::string, double>{{"reward_mean", reward},
                                         {"wait_seconds", 0.25},
                                         {"train_seconds", 0.75},
                                         {"response_tokens", 1234.0},
                                         {"staleness_mean", 0.5}};
  };
  show("train", 1, train(-0.5));
  show("eval", 1, {{"eval_mean_at_k", -1.0}, {"eval_prompts", 2.0}, {"eval_samples", 1.0}});
  show("train", 2, train(1.194));
  show("eval", 2, {{"eval_failed", 2.0}, {"eval_prompts", 2.0}, {"eval_samples", 1.0}});
  show("train", 4, train(1.0));
  EXPECT_EQ(out_.str(),
            "          mean reward       seconds per step\n"
            "  step    train     eval  waiting  training  tokens/s  staleness  time left\n"
            "     1   -0.500        -     0.25      0.75      1234       0.50          -\n"
            "     2    1.194   -1.000     0.25      0.75      1234       0.50         4s\n"
            "     4    1.000        -     0.25      0.75      1234       0.50         0s\n");
}

TEST_F(ProgressTest, TheTableOfASupervisedRunShowsLosses) {
  progress_.begin(2);
  show("eval", 0, {{"eval_loss", 2.5}});
  show("train", 1,
       {{"loss", 1.5},
        {"gradient_norm", 0.25},
        {"learning_rate", 1e-5},
        {"train_seconds", 2.0},
        {"batch_tokens", 100.0}});
  EXPECT_EQ(out_.str(),
            "  step      loss  eval loss  gradient norm  learning rate  tokens/s  time left\n"
            "     1   1.50000    2.50000         0.2500          1e-05        50          -\n");
}

}  // namespace
}  // namespace tidemill::launcher
