// SPDX-License-Identifier: Apache-2.0
// Tests runs whose reward program hangs, exits, prints garbage or NaN: once, for some samples, or
// always.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kShortLimit = "timeout_ms: 300";

class RewardProgramsTest : public ::testing::Test {
protected:
  RewardProgramsTest() { folder_.write_rows(); }
  ~RewardProgramsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Carries out a run whose reward program misbehaves. `more` are further keys of `reward`, or
  // further sections.
  Ended run(const std::string& behavior, const std::string& more) {
    folder_.write("run.yaml", gated_config(random_model(), more));
    RewardGate(folder_).set_behavior(behavior);
    const auto ended = folder_.run({"run", "run.yaml"});
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  // Expects that the run failed and that its last line begins with `start`. Then resumes the run
  // with a correct program and expects success.
  void expect_one_line_and_resume(const Ended& ended, const std::string& start) {
    EXPECT_EQ(ended.code, 1) << ended.describe();
    EXPECT_THAT(ended.last_error_line(), StartsWith(start)) << ended.describe();
    EXPECT_FALSE(folder_.commits(kGatedRun).leftovers);
    RewardGate(folder_).clear_behavior();
    give_more_time();
    const auto resumed = folder_.run({"resume", "runs/gated"});
    ASSERT_TRUE(resumed.has_value()) << "hangs";
    EXPECT_EQ(resumed->code, 0) << resumed->describe();
    EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(kGatedSteps));
  }

  // Raises the time limit of a test of hangs, which is too short for a correct program to start.
  void give_more_time() {
    std::string config = read_file(folder_.path() / "runs/gated/run.yaml");
    if (const std::size_t at = config.find(kShortLimit); at != std::string::npos) {
      config.replace(at, std::string(kShortLimit).size(), "timeout_ms: 60000");
      folder_.write("runs/gated/run.yaml", config);
    }
  }

  void expect_done(const Ended& ended) {
    EXPECT_EQ(ended.code, 0) << ended.describe();
    EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(kGatedSteps));
  }

  [[nodiscard]] std::size_t trained_samples() const {
    const std::string text = folder_.samples(kGatedRun);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  RunFolder folder_;
};

constexpr std::size_t kAllSamples = kGatedSteps * kGatedRows;

// Failures that occur once: the sample is delivered again, and nothing is lost.

TEST_F(RewardProgramsTest, OneHangLosesNoSample) {
  expect_done(run("hang-once", "  timeout_ms: 1000\n"));
  EXPECT_EQ(trained_samples(), kAllSamples);
}

TEST_F(RewardProgramsTest, OneExitLosesNoSample) {
  expect_done(run("die-once", ""));
  EXPECT_EQ(trained_samples(), kAllSamples);
  EXPECT_THAT(read_file(folder_.path() / "runs/gated/reward-stderr.txt"),
              HasSubstr("out of cheese\n"));
}

TEST_F(RewardProgramsTest, OneLineOfGarbageLosesNoSample) {
  expect_done(run("garbage-once", "  timeout_ms: 5000\n"));
  EXPECT_EQ(trained_samples(), kAllSamples);
}

TEST_F(RewardProgramsTest, OneNanLosesNoSample) {
  expect_done(run("nan-once", ""));
  EXPECT_EQ(trained_samples(), kAllSamples);
}

// Failures for some samples: these fail after all deliveries. A dropped group is replaced by
// another one; a shrunk group is trained without them.

TEST_F(RewardProgramsTest, GroupsThatCannotBeScoredAreDropped) {
  expect_done(run("nan-for 15+", "stream: {on_failed: drop_group}\n"));
  EXPECT_EQ(trained_samples(), kAllSamples);
  EXPECT_THAT(folder_.samples(kGatedRun), Not(HasSubstr("\"prompt\":\"15+")));
}

TEST_F(RewardProgramsTest, GroupsAreTrainedWithoutSamplesThatCannotBeScored) {
  expect_done(run("nan-zero", "stream: {on_failed: shrink}\n"));
  EXPECT_GT(trained_samples(), 0U);
  EXPECT_LT(trained_samples(), kAllSamples);
  EXPECT_THAT(folder_.samples(kGatedRun), Not(HasSubstr("\"reward\":0.0")));
}

// Failures that always occur: the run soon ends with one line that names the problem.

TEST_F(RewardProgramsTest, AlwaysExiting) {
  expect_one_line_and_resume(
      run("die", ""), "reward-0: command: given up after 5 failures in a row without a reply: ");
}

TEST_F(RewardProgramsTest, AlwaysHanging) {
  expect_one_line_and_resume(
      run("hang", "  " + std::string(kShortLimit) + "\n"),
      "reward-0: command: given up after 5 failures in a row without a reply: ");
}

TEST_F(RewardProgramsTest, AlwaysGarbage) {
  const Ended ended = run("garbage", "");
  EXPECT_THAT(ended.last_error_line(), HasSubstr("I like this one"));
  expect_one_line_and_resume(
      ended, "reward-0: command: given up after 5 failures in a row without a reply: ");
}

TEST_F(RewardProgramsTest, AlwaysNan) {
  expect_one_line_and_resume(run("nan", ""),
                             "reward-0: 256 samples in a row without a reward; the last: reward: ");
}

TEST_F(RewardProgramsTest, AlwaysAnErrorEvenIfGroupsMayShrink) {
  const Ended ended = run("error", "stream: {on_failed: shrink}\n");
  EXPECT_THAT(ended.last_error_line(), HasSubstr("no opinion"));
  expect_one_line_and_resume(ended,
                             "reward-0: 256 samples in a row without a reward; the last: reward: ");
}

TEST_F(RewardProgramsTest, ProgramDisappearsDuringTheRun) {
  const std::string script =
      "#!/bin/sh\nexec python3 " TIDEMILL_TEST_DIR "/process/reward_program.py .\n";
  const auto write_script = [&] {
    folder_.write("scorer.sh", script);
    std::filesystem::permissions(folder_.path() / "scorer.sh", std::filesystem::perms::owner_all);
  };
  write_script();
  const std::string config = gated_config(random_model());
  folder_.write("run.yaml",
                config.substr(0, config.find("  command: [")) + "  command: [./scorer.sh]\n");
  RewardGate(folder_).set_behavior("vanish 40 scorer.sh");
  const auto ended = folder_.run({"run", "run.yaml"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  write_script();
  expect_one_line_and_resume(*ended,
                             "reward-0 died 4 times in a row: reward.command: cannot run "
                             "`./scorer.sh`: No such file or directory");
}

TEST_F(RewardProgramsTest, ProgramDoesNotExist) {
  folder_.write("run.yaml", gated_config(random_model()));
  const std::string config = read_file(folder_.path() / "run.yaml");
  folder_.write("run.yaml",
                config.substr(0, config.find("  command: [")) + "  command: [no-such-program]\n");
  const auto ended = folder_.run({"run", "run.yaml"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 2);
  EXPECT_EQ(ended->err, "reward.command: cannot run `no-such-program`: not found in PATH\n");
}

// With schedule: fixed, groups that fail are not replaced, so a short run reaches its last step.
TEST_F(RewardProgramsTest, AProgramThatNeverScoresEndsAShortRunWithFixedSchedule) {
  RewardGate(folder_).set_behavior("error");
  folder_.write("run.yaml",
                gated_config(random_model()) + "staleness: {schedule: fixed, max: 1}\n");
  const auto ended = folder_.run({"run", "run.yaml", "train.steps=2"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_THAT(ended->last_error_line(), StartsWith("reward: none of the "));
  EXPECT_THAT(read_file(folder_.path() / "runs/gated/state.json"), HasSubstr("failed"));
}

// Only the three standard streams and the descriptor that lists the folder are open.
TEST_F(RewardProgramsTest, TheProgramInheritsNoFilesOfTheRun) {
  std::string config = gated_config(random_model());
  const std::string command = "[python3, " TIDEMILL_TEST_DIR "/process/reward_program.py, .]";
  config.replace(config.find(command), command.size(), "[sh, list.sh]");
  folder_.write("run.yaml", config);
  folder_.write("list.sh",
                "ls -l /proc/self/fd >> open.txt\n"
                "exec python3 " TIDEMILL_TEST_DIR "/process/reward_program.py .\n");
  const auto ended = folder_.run({"run", "run.yaml", "train.steps=2"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  const std::string open = read_file(folder_.path() / "open.txt");
  EXPECT_THAT(open, HasSubstr("pipe:"));
  EXPECT_THAT(open, Not(HasSubstr("runs/gated")));
}

}  // namespace
}  // namespace tidemill::test
