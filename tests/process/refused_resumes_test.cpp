// SPDX-License-Identifier: Apache-2.0
// Tests resuming runs whose folder or inputs have been tampered with: what is refused changes
// nothing, and what is accepted is cleaned up.
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/reward_gate.hpp"

namespace tidemill::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kKilledIn = 5;

class RefusedResumesTest : public ::testing::Test {
protected:
  RefusedResumesTest() {
    folder_.write_rows();
    folder_.write("run.yaml", gated_config(random_model()));
  }
  ~RefusedResumesTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  [[nodiscard]] std::filesystem::path at(const std::string& name) const {
    return folder_.path() / name;
  }
  [[nodiscard]] std::string run_file(const std::string& name) const {
    return read_file(at("runs/gated/" + name));
  }
  Ended run(const std::vector<std::string>& arguments) const {
    const auto ended = folder_.run(arguments);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }
  // Starts a run of `steps` steps, which ends.
  void begin_and_finish(int steps) const {
    const Ended ended = run({"run", "run.yaml", "train.steps=" + std::to_string(steps)});
    ASSERT_EQ(ended.code, 0) << ended.describe();
  }
  // Expects that resuming with `arguments` is refused with one line and leaves the state and the
  // log as they are.
  void expect_refused(const ::testing::Matcher<std::string>& line,
                      std::vector<std::string> arguments = {}, int code = 2) const {
    const std::string state = run_file("state.json");
    const std::string log = run_file("log.txt");
    arguments.insert(arguments.begin(), {"resume", "gated"});
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, code) << ended.describe();
    EXPECT_THAT(ended.last_error_line(), line);
    EXPECT_EQ(run_file("state.json"), state);
    EXPECT_EQ(run_file("log.txt"), log);
  }
  void replace_in(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = read_file(at(name));
    ASSERT_NE(text.find(from), std::string::npos) << name << " has no " << from;
    folder_.write(name, text.replace(text.find(from), from.size(), to));
  }

  RunFolder folder_;
};

TEST_F(RefusedResumesTest, OtherInputsLeaveAFinishedRunFinished) {
  begin_and_finish(2);
  ASSERT_THAT(run_file("state.json"), HasSubstr("finished"));
  const std::string rows = read_file(at("rows.jsonl"));
  folder_.write("rows.jsonl", rows + rows.substr(0, rows.find('\n') + 1));
  expect_refused("data.train: rows.jsonl: not the data that the run was started with");
  folder_.write("rows.jsonl", rows);
  EXPECT_EQ(run({"resume", "gated"}).code, 0);
}

TEST_F(RefusedResumesTest, ARunInProgressKeepsItsLog) {
  const RewardGate gate(folder_);
  gate.set_behavior("gate " + std::to_string(kGatedRows));
  ProgramRun first(folder_.path(), tidemill({"run", "run.yaml", "train.steps=2"}));
  ASSERT_TRUE(gate.wait_reached());
  expect_refused("runs/gated: in use by process " + std::to_string(first.pid()), {}, 1);
  gate.open();
  const auto ended = first.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
}

TEST_F(RefusedResumesTest, AnEditedRunFileIsComparedWithTheLastCommit) {
  begin_and_finish(2);
  replace_in("runs/gated/run.yaml", "learning_rate: 0.001", "learning_rate: 0.002");
  replace_in("runs/gated/run.yaml", "seed: 7", "seed: 8");
  expect_refused(AllOf(StartsWith("runs/gated/run.yaml: "), HasSubstr("seed"),
                       HasSubstr("train.learning_rate"),
                       HasSubstr(": cannot change in a resumed")));
  replace_in("runs/gated/run.yaml", "learning_rate: 0.002", "learning_rate: 0.001");
  replace_in("runs/gated/run.yaml", "seed: 8", "seed: 7");
  replace_in("runs/gated/run.yaml", "steps: 2", "steps: 3");
  EXPECT_EQ(run({"resume", "gated"}).code, 0);
  EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(3));
}

TEST_F(RefusedResumesTest, ALongerRunWithFixedScheduleIsAnnounced) {
  folder_.write("run.yaml",
                gated_config(random_model()) + "staleness: {schedule: fixed, max: 1}\n");
  begin_and_finish(2);
  const Ended longer = run({"resume", "gated", "train.steps=3"});
  EXPECT_EQ(longer.code, 0) << longer.describe();
  EXPECT_THAT(longer.err, HasSubstr("the length of the run has changed: with staleness.schedule: "
                                    "fixed"));
  EXPECT_THAT(run({"resume", "gated"}).err, ::testing::Not(HasSubstr("the length of the run")));
}

TEST_F(RefusedResumesTest, FilesThatAreNotRegularFiles) {
  begin_and_finish(2);
  for (const std::string name : {"log.txt", "metrics.jsonl", "samples.jsonl", "state.json",
                                 "started", "events.out.tfevents.tidemill", "reward-stderr.txt"}) {
    SCOPED_TRACE(name);
    const std::string path = "runs/gated/" + name;
    std::filesystem::rename(at(path), at("kept"));
    ASSERT_EQ(::mkfifo(at(path).c_str(), 0600), 0);
    const auto ended = folder_.run({"resume", "gated", "train.steps=3"}, std::chrono::seconds(20));
    ASSERT_TRUE(ended.has_value()) << "hangs";
    if (name != "state.json") {  // is replaced, since nothing depends on it
      EXPECT_EQ(ended->code, 2) << ended->describe();
      EXPECT_THAT(ended->last_error_line(), HasSubstr(" not a regular file"));
    }
    std::filesystem::remove(at(path));
    std::filesystem::rename(at("kept"), at(path));
  }
}

TEST_F(RefusedResumesTest, LinesThatCannotBeReadAreDroppedWithLostRecords) {
  begin_and_finish(3);
  std::string metrics = run_file("metrics.jsonl");
  const std::size_t second = metrics.find('\n') + 1;
  metrics[second] = '#';
  folder_.write("runs/gated/metrics.jsonl", metrics);
  std::string samples = run_file("samples.jsonl");
  samples[0] = '#';
  folder_.write("runs/gated/samples.jsonl", samples);
  const Ended resumed = run({"resume", "gated", "--accept-lost-records"});
  ASSERT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_THAT(resumed.err, HasSubstr("(dropped lines that cannot be read: 1 of metrics.jsonl, 1 of "
                                     "samples.jsonl)"));
  EXPECT_EQ(folder_.metrics_steps(kGatedRun), (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(run_file("samples.jsonl"), samples.substr(samples.find('\n') + 1));
  EXPECT_EQ(run({"resume", "gated"}).code, 0);
}

TEST_F(RefusedResumesTest, TemporaryFilesAreRemoved) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledIn));
  folder_.write("runs/gated/.tmp-1-0", "{");
  EXPECT_EQ(run({"resume", "gated"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(at("runs/gated/.tmp-1-0")));
}

TEST_F(RefusedResumesTest, AnObjectReplacedByAFolderIsDamage) {
  ASSERT_TRUE(begin_and_kill(folder_, kKilledIn));
  const auto manifests = folder_.manifests(kGatedRun);
  ASSERT_GE(manifests.size(), 2U);
  const std::string object = folder_.object_of(manifests.front(), "weights");
  const std::string path = "runs/gated/checkpoints/objects/" + object;
  std::filesystem::remove(at(path));
  std::filesystem::create_directories(at(path) / "inner");
  expect_refused(AllOf(HasSubstr(": a directory, not a file of this store; an earlier commit, of "),
                       EndsWith("tidemill resume runs/gated --use-commit-before")));
  const Ended resumed = run({"resume", "gated", "--use-commit-before"});
  EXPECT_EQ(resumed.code, 0) << resumed.describe();
  EXPECT_EQ(folder_.metrics_steps(kGatedRun), steps_up_to(kGatedSteps));
  EXPECT_FALSE(folder_.commits(kGatedRun).leftovers);
}

TEST_F(RefusedResumesTest, AFolderWhoseRunDidNotBeginIsUsedAgain) {
  std::filesystem::create_directories(at("runs/gated/checkpoints/objects"));
  folder_.write("runs/gated/run.yaml", read_file(at("run.yaml")));
  folder_.write("runs/gated/checkpoints/store.json", R"({"format": 1, "run": "old"})");
  folder_.write("runs/gated/log.txt", "old\n");
  folder_.write("runs/gated/state.json", R"({"state": "failed", "steps": 0, "reason": "old"})");
  const Ended ended = run({"run", "run.yaml", "train.steps=2"});
  ASSERT_EQ(ended.code, 0) << ended.describe();
  EXPECT_THAT(ended.err, HasSubstr("runs/gated: takes the place of a run that ended before it "
                                   "began and left no commit and no records"));
  EXPECT_THAT(run_file("log.txt"), ::testing::Not(HasSubstr("old")));
  // With records it is not.
  std::filesystem::remove(at("runs/gated/started"));
  EXPECT_EQ(run({"run", "run.yaml", "train.steps=2"}).err,
            "runs/gated: the run exists; resume it, or give another name\n");
}

}  // namespace
}  // namespace tidemill::test
