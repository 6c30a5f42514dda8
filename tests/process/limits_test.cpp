// SPDX-License-Identifier: Apache-2.0
// Tests the program under limits of the system, and without its standard streams: it does its work,
// or ends with one line that names the limit.
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class LimitsTest : public ::testing::Test {
protected:
  LimitsTest() {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(random_model()));
  }
  ~LimitsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Carries out the run in a shell, after `before` and with `more` after the command.
  Ended run_in_shell(const std::string& before, const std::string& more = {}) {
    std::string command = before + "exec";
    for (const std::string& word : tidemill({"run", "run.yaml"})) {
      command += " '" + word + "'";
    }
    ProgramRun run(folder_.path(), {"sh", "-c", command + more});
    const auto ended = run.finish();
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  RunFolder folder_;
};

TEST_F(LimitsTest, ASmallStackIsRefused) {
  const Ended ended = run_in_shell("ulimit -s 64; ");
  EXPECT_EQ(ended.code, 1) << ended.describe();
  EXPECT_EQ(ended.err,
            "tidemill: the stack is limited to 64 KiB (ulimit -s), and the program needs 1024\n");
}

TEST_F(LimitsTest, TheLeastStackIsEnough) {
  const Ended ended = run_in_shell("ulimit -s 1024; ");
  EXPECT_EQ(ended.code, 0) << ended.describe();
}

TEST_F(LimitsTest, ASmallAddressSpaceIsNamed) {
  bool done = false;
  for (int mebibytes = 60; mebibytes <= 700; mebibytes += 80) {
    SCOPED_TRACE(mebibytes);
    const Ended ended = run_in_shell("ulimit -v " + std::to_string(mebibytes * 1024) + "; ");
    if (ended.code == 0) {
      done = true;
      std::filesystem::remove_all(folder_.path() / "runs");
      continue;
    }
    EXPECT_FALSE(done) << "a smaller limit was enough";
    EXPECT_THAT(ended.code, AnyOf(1, 2)) << ended.describe();
    EXPECT_THAT(ended.last_error_line(), HasSubstr("ulimit -v")) << ended.describe();
    std::filesystem::remove_all(folder_.path() / "runs");
  }
  EXPECT_TRUE(done) << "no limit was large enough";
}

// Without standard error, no file of the run may get its number and with it the log's lines.
TEST_F(LimitsTest, ClosedStandardStreamsLeaveTheFilesAlone) {
  for (const char* closed : {" 2>&-", " <&- >&- 2>&-"}) {
    SCOPED_TRACE(closed);
    const Ended ended = run_in_shell("", closed);
    EXPECT_EQ(ended.signal, 0) << ended.describe();
    EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(kGatedSteps));
    EXPECT_THAT(read_file(folder_.path() / "runs/gated/lock"), MatchesRegex("([0-9]+\n)?"));
    std::istringstream log(read_file(folder_.path() / "runs/gated/log.txt"));
    for (std::string line; std::getline(log, line);) {
      EXPECT_THAT(line, StartsWith("20")) << "not a line of the log file";
    }
    std::filesystem::remove_all(folder_.path() / "runs");
  }
}

// The limit holds from the first file that the program writes, run.yaml, on.
TEST_F(LimitsTest, ALimitOnFileSizesIsAnError) {
  const Ended ended = run_in_shell("ulimit -f 0; ");
  EXPECT_EQ(ended.code, 1) << ended.describe();
  EXPECT_EQ(ended.err, "runs/gated/started: cannot write: File too large\n");
}

// ZeroMQ ends a process that has no descriptor left for a connection.
TEST_F(LimitsTest, TooFewDescriptorsForProcessesOverZeroMqAreRefused) {
  const std::string processes =
      " placement.reward.transport=zmq train.steps=2 placement.reward.processes=";
  const Ended ended = run_in_shell("ulimit -n 100; ", processes + "50");
  EXPECT_EQ(ended.code, 1) << ended.describe();
  EXPECT_THAT(ended.last_error_line(),
              MatchesRegex("placement: 50 processes and the run need 378 "
                           "open files, and [0-9]+ are left \\(ulimit -n 100\\)"));
}

TEST_F(LimitsTest, ASoftLimitOnDescriptorsIsRaised) {
  const Ended ended =
      run_in_shell("ulimit -Sn 100; ",
                   " placement.reward.transport=zmq train.steps=2 placement.reward.processes=2");
  EXPECT_EQ(ended.code, 0) << ended.describe();
}

// Connections over shared memory that find no descriptor are tried again.
TEST_F(LimitsTest, FewDescriptorsForProcessesAreSaidAtTheStart) {
  const Ended ended =
      run_in_shell("ulimit -n 100; ", " train.steps=2 placement.reward.processes=2");
  EXPECT_EQ(ended.code, 0) << ended.describe();
  EXPECT_THAT(ended.err, HasSubstr("warning: placement: 2 processes and the run need 138 open "
                                   "files, and "));
}

}  // namespace
}  // namespace tidemill::test
