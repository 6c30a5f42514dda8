// SPDX-License-Identifier: Apache-2.0
// Tests what a run says and does when its worker processes cannot start, or end.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/process/child_process_list.hpp"
#include "tests/process/run_folder.hpp"
#include "tests/support/wait_until.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr const char* kRun = "victim";
constexpr std::chrono::seconds kOrphanTime{2};
constexpr const char* kLongRun = "train: {steps: 100000, prompts_per_step: 4}\n";
constexpr const char* kPlacement =
    "placement: {rollout: {processes: 1}, reward: {processes: 1, workers: 2}}\n";

class WorkerEndsTest : public ::testing::Test {
protected:
  WorkerEndsTest() { folder_.write_rows(); }
  ~WorkerEndsTest() override {
    if (HasFailure()) {
      folder_.keep();
    }
  }

  [[nodiscard]] std::filesystem::path run_folder() const { return folder_.path() / "runs" / kRun; }

  // Returns the live worker processes of a role.
  static std::vector<pid_t> workers_of(const ProgramRun& run, const std::string& role) {
    std::vector<pid_t> children = children_of(run.pid());
    std::erase_if(children, [&](pid_t child) {
      const std::string words = read_file("/proc/" + std::to_string(child) + "/cmdline");
      return words.find("--role" + std::string(1, '\0') + role) == std::string::npos;
    });
    return children;
  }
  static void kill_workers(const ProgramRun& run, const std::string& role) {
    const std::vector<pid_t> workers = workers_of(run, role);
    EXPECT_FALSE(workers.empty()) << role;
    for (const pid_t worker : workers) {
      ::kill(worker, SIGKILL);
    }
  }

  // Writes a long run, whose model is a copy in the folder that the test may move.
  void write_run_with_copied_model() const {
    std::filesystem::copy(TIDEMILL_MODEL_DIR, folder_.path() / "model");
    std::string text = small_rl_run(kRun, std::string(kLongRun) + kPlacement);
    text.replace(text.find(TIDEMILL_MODEL_DIR), std::string(TIDEMILL_MODEL_DIR).size(), "model");
    folder_.write("run.yaml", text);
  }

  static int lines_with(const std::string& text, const std::string& part) {
    std::istringstream lines(text);
    int count = 0;
    for (std::string line; std::getline(lines, line);) {
      count += line.find(part) != std::string::npos ? 1 : 0;
    }
    return count;
  }

  RunFolder folder_;
};

// A failure that would repeat ends the run at once, with its code.
TEST_F(WorkerEndsTest, AModelThatDisappearsEndsTheRunWithOneLine) {
  write_run_with_copied_model();
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  std::filesystem::rename(folder_.path() / "model", folder_.path() / "moved");
  kill_workers(run, "rollout");
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_THAT(ended->last_error_line(),
              MatchesRegex("rollout-[01]: rollout process 0: model.path: no folder or GGUF file "
                           "`model` .*"));
  EXPECT_EQ(lines_with(ended->err, "model.path:"), 1) << ended->err;
  EXPECT_THAT(ended->err, Not(HasSubstr("restarting from the last commit")));
}

// The configuration of the run becomes unreadable, so its processes end before they can say why
// over their links.
TEST_F(WorkerEndsTest, AProcessThatNeverStartsIsGivenUpWithItsLastWords) {
  folder_.write("run.yaml", small_rl_run(kRun, std::string(kLongRun) + kPlacement));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  ASSERT_TRUE(wait_until([&] { return !workers_of(run, "reward").empty(); }, kHang));
  std::ofstream(run_folder() / "run.yaml") << "nothing: 1\n";
  kill_workers(run, "reward");
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 1) << ended->describe();
  EXPECT_THAT(ended->last_error_line(),
              MatchesRegex("reward-[01]: reward process 0: has failed to start 3 times in a row: "
                           "exit status 2 before it was ready: runs/victim/run.yaml: .*"));
  EXPECT_EQ(lines_with(ended->err, "exit status 2 before it was ready"), 3) << ended->err;
  EXPECT_THAT(ended->err, Not(HasSubstr("restarting from the last commit")));
  EXPECT_THAT(read_file(run_folder() / "processes.log"),
              MatchesRegex("(20[0-9T:-]* reward process 0: [^\n]*\n)+"));
}

// The same, but another process of the role serves the run.
class LeftOutProcessTest : public WorkerEndsTest,
                           public ::testing::WithParamInterface<const char*> {};

TEST_P(LeftOutProcessTest, ComesBackWhenTheNumberIsSetAgain) {
  const std::string role = GetParam();
  folder_.write("run.yaml", small_rl_run(kRun, std::string(kLongRun) + "placement: {" + role +
                                                   ": {processes: 2}}\n"));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(wait_until([&] { return workers_of(run, role).size() == 2; }, kHang));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  const std::string configuration = read_file(run_folder() / "run.yaml");
  std::ofstream(run_folder() / "run.yaml") << "nothing: 1\n";
  ::kill(workers_of(run, role)[0], SIGKILL);
  ASSERT_TRUE(run.wait_for_error_text("the run goes on without this process"));
  EXPECT_EQ(workers_of(run, role).size(), 1U);
  std::ofstream(run_folder() / "run.yaml") << configuration;
  const auto scaled = folder_.run({"scale", kRun, role + "=2"});
  ASSERT_TRUE(scaled.has_value() && scaled->code == 0);
  const auto all_connected = [&] {
    const auto shown = folder_.run({"top", kRun, "--json"});
    const std::string text = shown.has_value() ? shown->out : "";
    const std::string sign = "\"connection\":\"connected\"";
    const std::size_t first = text.find(sign);
    return first != std::string::npos && text.find(sign, first + 1) != std::string::npos;
  };
  EXPECT_TRUE(wait_until(all_connected, kHang));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_EQ(lines_with(ended->err, "has failed to start 3 times in a row: exit status 2"), 1)
      << ended->err;
  EXPECT_THAT(ended->err, Not(HasSubstr("restarting from the last commit")));
}

// A failure that would repeat ends no run that others serve.
TEST_F(WorkerEndsTest, AModelThatDisappearsBeforeScalingLeavesTheRunAlone) {
  write_run_with_copied_model();
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  std::filesystem::rename(folder_.path() / "model", folder_.path() / "moved");
  const auto scaled = folder_.run({"scale", kRun, "rollout=2"});
  ASSERT_TRUE(scaled.has_value() && scaled->code == 0);
  ASSERT_TRUE(run.wait_for_error_text("the run goes on without this process"));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
}

// The processes that start later would otherwise work with other settings than the first ones.
TEST_F(WorkerEndsTest, AnEditedConfigurationStartsNoProcess) {
  const std::string text =
      small_rl_run(kRun, std::string(kLongRun) + "placement: {reward: {processes: 2}}\n");
  folder_.write("run.yaml", text);
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(wait_until([&] { return workers_of(run, "reward").size() == 2; }, kHang));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  const std::string configuration = read_file(run_folder() / "run.yaml");
  std::ofstream(run_folder() / "run.yaml", std::ios::app) << "# a comment\n";
  ::kill(workers_of(run, "reward")[0], SIGKILL);
  ASSERT_TRUE(wait_until([&] { return workers_of(run, "reward").size() == 2; }, kHang));
  std::string edited = configuration;
  const std::string prompts = "prompts_per_step: 4";
  ASSERT_NE(edited.find(prompts), std::string::npos) << edited;
  edited.replace(edited.find(prompts), prompts.size(), "prompts_per_step: 5");
  std::ofstream(run_folder() / "run.yaml") << edited;
  ::kill(workers_of(run, "reward")[0], SIGKILL);
  EXPECT_TRUE(run.wait_for_error_text(
      "runs/victim/run.yaml: is not the configuration with which the run started"));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
}

TEST_F(WorkerEndsTest, ARefusedResumeOfALiveRunChangesNothing) {
  folder_.write("run.yaml", small_rl_run(kRun, std::string(kLongRun) + kPlacement));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  const auto refused = folder_.run({"resume", kRun});
  ASSERT_TRUE(refused.has_value()) << "hangs";
  EXPECT_EQ(refused->code, 1) << refused->describe();
  EXPECT_THAT(refused->err, HasSubstr("in use by process"));
  const auto shown = folder_.run({"top", kRun});
  ASSERT_TRUE(shown.has_value()) << "hangs";
  EXPECT_EQ(shown->code, 0) << shown->describe();
  run.send(SIGINT);
  ASSERT_TRUE(run.finish().has_value()) << "hangs";
}

INSTANTIATE_TEST_SUITE_P(Roles, LeftOutProcessTest, ::testing::Values("reward", "rollout"));

TEST_F(WorkerEndsTest, AProcessThatIsStoppedIsNamedOnceAndOnceMoreWhenItGoesOn) {
  folder_.write("run.yaml", small_rl_run(kRun, std::string(kLongRun) + kPlacement));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  const std::vector<pid_t> workers = workers_of(run, "reward");
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers[0], SIGSTOP);
  ASSERT_TRUE(run.wait_for_error_text("reward process 0 has not been heard for "));
  ::kill(workers[0], SIGCONT);
  ASSERT_TRUE(run.wait_for_error_text("reward process 0 was heard again after "));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_EQ(lines_with(ended->err, "reward process 0 has not been heard for"), 1) << ended->err;
  EXPECT_EQ(lines_with(ended->err, "reward process 0 was heard again after"), 1) << ended->err;
}

// A run that is short of descriptors would otherwise end once its new processes cannot reach it.
TEST_F(WorkerEndsTest, MoreProcessesThanDescriptorsAllowAreRefusedAndTheRunGoesOn) {
  folder_.write("run.yaml", small_rl_run(kRun, std::string(kLongRun) + kPlacement));
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  rlimit before{};
  ASSERT_EQ(::prlimit(run.pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit tight{110, before.rlim_max};
  ASSERT_EQ(::prlimit(run.pid(), RLIMIT_NOFILE, &tight, nullptr), 0);
  const auto refused = folder_.run({"scale", kRun, "reward=20"});
  ASSERT_TRUE(refused.has_value()) << "hangs";
  EXPECT_EQ(refused->code, 2) << refused->describe();
  EXPECT_THAT(refused->err,
              MatchesRegex("reward=20: 19 more processes and the run need 223 open files, and "
                           "[0-9]+ are left \\(ulimit -n 110\\)\n"));
  ASSERT_EQ(::prlimit(run.pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  const auto scaled = folder_.run({"scale", kRun, "reward=3"});
  ASSERT_TRUE(scaled.has_value() && scaled->code == 0);
  ASSERT_TRUE(wait_until([&] { return workers_of(run, "reward").size() == 3; }, kHang));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
}

// The reward program starts two processes, one of them in a session of its own.
TEST_F(WorkerEndsTest, WhatARewardProgramHasStartedEndsWithItsProcess) {
  const std::string program =
      "sleep 1000 & echo $! >> pids; setsid sleep 1000 & echo $! >> pids; echo >> started; "
      "exec python3 " TIDEMILL_TEST_DIR "/process/reward_program.py .";
  std::string text = small_rl_run(kRun, std::string(kLongRun) + kPlacement);
  const std::string rule = "reward: {kind: regex, pattern: '[A-Z]'}\n";
  text.replace(text.find(rule), rule.size(),
               "reward: {kind: command, command: [sh, -c, '" + program + "']}\n");
  folder_.write("run.yaml", text);
  const auto started = [&](const std::string& lines) {
    return wait_until([&] { return read_file(folder_.path() / "started") >= lines; }, kHang);
  };
  const auto all_gone = [&] {
    std::istringstream pids(read_file(folder_.path() / "pids"));
    const std::vector<pid_t> all{std::istream_iterator<pid_t>(pids), {}};
    return wait_until([&] { return std::ranges::none_of(all, is_alive); }, kOrphanTime);
  };
  ProgramRun run(folder_.path(), tidemill({"run", "run.yaml"}));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 0 has joined"));
  ASSERT_TRUE(started("\n\n"));  // of both workers
  ASSERT_TRUE(run.wait_for_error_text("     1 "));
  const std::string first = read_file(folder_.path() / "pids");
  kill_workers(run, "reward");
  std::istringstream pids(first);
  const std::vector<pid_t> killed{std::istream_iterator<pid_t>(pids), {}};
  EXPECT_TRUE(wait_until([&] { return std::ranges::none_of(killed, is_alive); }, kOrphanTime));
  ASSERT_TRUE(started("\n\n\n\n"));
  run.send(SIGKILL);
  ASSERT_TRUE(run.finish().has_value()) << "hangs";
  EXPECT_TRUE(all_gone());
}

}  // namespace
}  // namespace tidemill::test
