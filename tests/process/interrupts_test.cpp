// SPDX-License-Identifier: Apache-2.0
// Tests SIGINT and SIGTERM: the first signal ends a run after its step, with a commit; the second
// one ends it immediately. In both cases the resumed run ends with the same bits.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kGateStep = 4;
constexpr const char* kStopNotice =
    "stopping after this step; interrupt again to stop immediately\n";

class InterruptsTest : public ::testing::TestWithParam<int> {
protected:
  InterruptsTest() {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(random_model()));
  }
  ~InterruptsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Resumes the run to its end and compares it with an undisturbed run.
  void expect_resumes_to_same_bits();

  // Starts a run and waits until it is in the middle of step kGateStep. It gets no further rewards
  // until `gate_` is opened.
  void start_and_wait_for_gate(std::unique_ptr<ProgramRun>& run) {
    gate_.set_behavior("gate " + std::to_string((kGateStep - 1) * kGatedRows + kGatedRows / 2));
    run = std::make_unique<ProgramRun>(folder_.path(), tidemill({"run", "run.yaml"}));
    ASSERT_TRUE(gate_.wait_reached());
    gate_.clear_behavior();
  }

  RunFolder folder_;
  RewardGate gate_{folder_};
};

void InterruptsTest::expect_resumes_to_same_bits() {
  const auto resumed = folder_.run({"resume", "runs/gated"});
  ASSERT_TRUE(resumed.has_value()) << "hangs";
  ASSERT_EQ(resumed->code, 0) << resumed->describe();
  RunFolder other;
  other.write_rows();
  other.write("run.yaml", gated_config(random_model()));
  const auto undisturbed = other.run({"run", "run.yaml"});
  ASSERT_TRUE(undisturbed.has_value()) << "hangs";
  ASSERT_EQ(undisturbed->code, 0) << undisturbed->describe();
  EXPECT_EQ(difference(run_output(other, kGatedRun), run_output(folder_, kGatedRun)), "");
  EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(kGatedSteps));
}

// The rewards of the step arrive after the signal. The run uses them and ends after the step.
TEST_P(InterruptsTest, OneSignalEndsTheRunAfterTheStepWithACommit) {
  std::unique_ptr<ProgramRun> run;
  ASSERT_NO_FATAL_FAILURE(start_and_wait_for_gate(run));
  run->send(GetParam());
  ASSERT_TRUE(run->wait_for_error_text(kStopNotice));
  gate_.open();
  const auto ended = run->finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  const CommitState found = folder_.commits(kGatedRun);
  ASSERT_TRUE(found.last_step.has_value());
  EXPECT_GE(*found.last_step, kGateStep - 1U);
  EXPECT_FALSE(found.leftovers);
  EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(*found.last_step));
  expect_resumes_to_same_bits();
}

// The rewards never arrive. The run does not wait for them once it is to end.
TEST_P(InterruptsTest, OneSignalEndsARunThatWaitsForRewards) {
  std::unique_ptr<ProgramRun> run;
  ASSERT_NO_FATAL_FAILURE(start_and_wait_for_gate(run));
  run->send(GetParam());
  const auto ended = run->finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_THAT(ended->out, HasSubstr("stopped after step 3; the model is in runs/gated/export\n"
                                    "resume it with: tidemill resume runs/gated\n"));
  EXPECT_EQ(folder_.commits(kGatedRun).last_step, kGateStep - 1U);
  expect_resumes_to_same_bits();
}

TEST_P(InterruptsTest, TwoSignalsEndTheRunImmediatelyWithoutDamage) {
  std::unique_ptr<ProgramRun> run;
  ASSERT_NO_FATAL_FAILURE(start_and_wait_for_gate(run));
  run->send(GetParam());
  ASSERT_TRUE(run->wait_for_error_text(kStopNotice));
  run->send(GetParam());
  const auto ended = run->finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 128 + GetParam()) << ended->describe();
  EXPECT_LE(folder_.commits(kGatedRun).last_step, kGateStep - 1U);
  expect_resumes_to_same_bits();
}

// There is nothing left to do after the last step, so the run is done and not stopped. The signal
// may also arrive when the run has already ended.
TEST_P(InterruptsTest, ASignalAfterTheLastStepDoesNotStopTheRun) {
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  const fs::path metrics = folder_.path() / "runs" / kGatedRun / "metrics.jsonl";
  const std::string last_step = "\"step\":" + std::to_string(kGatedSteps) + ",";
  const auto deadline = std::chrono::steady_clock::now() + kHang;
  while (!fs::exists(metrics) || read_file(metrics).find(last_step) == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "hangs";
    if (run.ended_within(std::chrono::milliseconds(1))) {
      break;
    }
  }
  run.send(GetParam());
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_EQ(ended->out, "done: step 12; the model is in runs/gated/export\n");
  EXPECT_THAT(read_file(folder_.path() / "runs/gated/state.json"), HasSubstr("finished"));
}

INSTANTIATE_TEST_SUITE_P(Signals, InterruptsTest, ::testing::Values(SIGINT, SIGTERM),
                         [](const auto& tested) {
                           return std::string(tested.param == SIGINT ? "Interrupt" : "Terminate");
                         });

}  // namespace
}  // namespace tidemill::test
