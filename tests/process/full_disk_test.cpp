// SPDX-License-Identifier: Apache-2.0
// Tests a full disk during a commit: the run fails with one line, the last commit stays intact, and
// the resumed run ends with the same bits once there is space.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FullDiskTest : public ::testing::Test {
protected:
  FullDiskTest() {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(random_model()));
  }
  ~FullDiskTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  // Runs a shell script in which "$0" is the program.
  Ended shell(const std::vector<std::string>& prefix, const std::string& script) const {
    std::vector<std::string> command = prefix;
    command.insert(command.end(), {"sh", "-c", script, TIDEMILL_PROGRAM});
    const auto ended = ProgramRun(folder_.path(), command).finish();
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  void expect_as_undisturbed() const {
    RunFolder other;
    other.write_rows();
    other.write("run.yaml", gated_config(random_model()));
    const auto undisturbed = other.run({"run", "run.yaml"});
    ASSERT_TRUE(undisturbed.has_value()) << "hangs";
    ASSERT_EQ(undisturbed->code, 0) << undisturbed->describe();
    EXPECT_EQ(difference(run_output(other, kGatedRun), run_output(folder_, kGatedRun)), "");
  }

  RunFolder folder_;
};

// A file system of 16 MiB in a mount namespace has space for two commits of 6 MiB, but not for a
// third.
TEST_F(FullDiskTest, AFileSystemWithoutSpace) {
  const std::vector<std::string> in_namespace{"unshare", "--user", "--map-root-user", "--mount"};
  std::filesystem::create_directory(folder_.path() / "runs");
  const Ended probe = shell(in_namespace, "mount -t tmpfs -o size=16m tmpfs runs");
  if (probe.code != 0) {
    std::cout << "skipped: cannot mount in a user namespace: " << probe.err;
    GTEST_SKIP() << "cannot mount in a user namespace: " << probe.err;
  }
  const Ended ended = shell(in_namespace, R"(
      mount -t tmpfs -o size=16m tmpfs runs || exit 3
      "$0" run run.yaml 2> first.txt
      echo "ended with $?"
      ls runs/gated/checkpoints/commit-* | wc -l
      mount -o remount,size=64m runs || exit 3
      "$0" resume runs/gated || exit 4
      cp -r runs after)");
  EXPECT_EQ(ended.code, 0) << ended.describe();
  EXPECT_THAT(ended.out, StartsWith("ended with 1\n2\n"));
  const Ended first{1, 0, "", read_file(folder_.path() / "first.txt")};
  // The records of the next step are written beside the commit, and may find the disk full first.
  EXPECT_THAT(first.last_error_line(),
              AllOf(AnyOf(StartsWith("trainer: commit of step 3: "),
                          StartsWith("trainer: recording a step: ")),
                    HasSubstr(": runs/gated/"), EndsWith(": No space left on device")))
      << first.describe();
  std::filesystem::remove(folder_.path() / "runs");
  std::filesystem::rename(folder_.path() / "after", folder_.path() / "runs");
  expect_as_undisturbed();
}

// Needs no namespace: the file size limit is below the size of the optimizer's state (4 MiB), so
// the next commit fails as on a full disk.
TEST_F(FullDiskTest, ALimitOnFileSizes) {
  constexpr int kStep = 5;
  ASSERT_TRUE(begin_and_kill(folder_, kStep));
  const CommitState before = folder_.commits(kGatedRun);
  ASSERT_TRUE(before.last_step.has_value());
  const Ended ended = shell({}, R"(ulimit -f 6000; exec "$0" resume runs/gated)");
  EXPECT_EQ(ended.code, 1) << ended.describe();
  EXPECT_THAT(ended.last_error_line(),
              AllOf(StartsWith("trainer: commit of step "), HasSubstr(": optimizer: runs/gated/"),
                    EndsWith(": File too large")));
  EXPECT_EQ(folder_.commits(kGatedRun).last_step, before.last_step);
  EXPECT_FALSE(folder_.commits(kGatedRun).leftovers);
  const auto resumed = folder_.run({"resume", "runs/gated"});
  ASSERT_TRUE(resumed.has_value()) << "hangs";
  EXPECT_EQ(resumed->code, 0) << resumed->describe();
  expect_as_undisturbed();
}

}  // namespace
}  // namespace tidemill::test
