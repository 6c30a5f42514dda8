// SPDX-License-Identifier: Apache-2.0
// Tests workflows/processes/child_processes.hpp with shells as children, and the file that takes
// what processes write.
#include "workflows/processes/child_processes.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/wait_until.hpp"
#include "workflows/processes/process_log.hpp"

namespace tidemill::test {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;
using workflows::ChildEnd;
using workflows::ChildProcesses;
using workflows::ChildProgram;

constexpr std::chrono::seconds kHang{60};

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Outcome {
  ChildEnd end;
  std::vector<std::string> lines;
};

// Runs a script to its end.
Outcome run(const std::string& script) {
  Outcome outcome;
  std::promise<ChildEnd> ended;
  ChildProcesses children;
  ChildProgram program{"/bin/sh", {"-c", script}};
  program.on_lines = [&outcome](const std::vector<std::string>& lines) {
    outcome.lines.insert(outcome.lines.end(), lines.begin(), lines.end());
  };
  children.start(std::move(program), [&ended](const ChildEnd& end) { ended.set_value(end); });
  auto end = ended.get_future();
  EXPECT_EQ(end.wait_for(kHang), std::future_status::ready) << "hangs";
  outcome.end = end.get();
  return outcome;
}

TEST(ChildProcesses, PassOnWhatAProcessWritesAndItsLastLine) {
  const Outcome outcome = run("echo first; echo second >&2; printf 'last\twords'; exit 3");
  EXPECT_EQ(outcome.end.how, "exit status 3");
  EXPECT_EQ(outcome.end.last_line, "last?words");
  EXPECT_EQ(outcome.end.lines, 3U);
  EXPECT_THAT(outcome.lines, ElementsAre("first", "second", "last?words"));
}

TEST(ChildProcesses, SayWhenAProcessHasWrittenNothing) {
  const Outcome outcome = run("kill -9 $$");
  EXPECT_EQ(outcome.end.how, "killed by signal 9 (Killed)");
  EXPECT_EQ(outcome.end.last_line, "");
  EXPECT_EQ(outcome.end.lines, 0U);
}

// A process that another one has inherited the output of: its end is not waited for.
TEST(ChildProcesses, DoNotWaitForWhatHasInheritedTheOutput) {
  const Outcome outcome = run("sleep 100 & echo started $!");
  ASSERT_EQ(outcome.lines.size(), 1U);
  std::string pid = outcome.lines.front().substr(8);
  EXPECT_EQ(::kill(std::stoi(pid), SIGKILL), 0);
}

TEST(ChildProcesses, ALongLineCountsAsSeveral) {
  const Outcome outcome = run("head -c 10000 /dev/zero | tr '\\000' x");
  ASSERT_EQ(outcome.lines.size(), 3U);
  EXPECT_EQ(outcome.lines.front(), std::string(ChildProcesses::kMaxLineBytes, 'x'));
  EXPECT_EQ(outcome.lines.back().size(), 10000 - 2 * ChildProcesses::kMaxLineBytes);
}

// The thread that reads is held, as if its process were stopped.
TEST(ChildProcesses, AProcessDoesNotWaitForItsOutputToBeTaken) {
  const TemporaryDirectory folder;
  const std::string done = (folder.path() / "done").string();
  std::promise<void> go_on;
  std::atomic<bool> first = true;
  ChildProcesses children;
  ChildProgram program{
      "/bin/sh", {"-c", "echo first; sleep 0.1; head -c 1000000 /dev/zero 2>&1; : > " + done}};
  program.on_lines = [&, wait = go_on.get_future().share()](const std::vector<std::string>&) {
    if (first.exchange(false)) {
      wait.wait();
    }
  };
  std::promise<void> ended;
  children.start(std::move(program), [&ended](const ChildEnd&) { ended.set_value(); });
  EXPECT_TRUE(wait_until([&] { return std::filesystem::exists(done); }, kHang)) << "it waits";
  go_on.set_value();
  EXPECT_EQ(ended.get_future().wait_for(kHang), std::future_status::ready) << "hangs";
}

TEST(ProcessLog, LinesHaveATimeAndAName) {
  const TemporaryDirectory folder;
  const workflows::ProcessLog log(folder.path() / "processes.log");
  log.write("reward process 1", {"one", "two"});
  EXPECT_THAT(text_of(log.path()),
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8} reward process 1: one\n"
                           "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8} reward process 1: two\n"));
}

TEST(ProcessLog, IsBounded) {
  const TemporaryDirectory folder;
  const workflows::ProcessLog log(folder.path() / "processes.log", 1000);
  for (int i = 0; i < 100; ++i) {
    log.write("rollout process 0", {"line " + std::to_string(i)});
  }
  const std::string last = text_of(log.path());
  const std::string before = text_of(log.path().string() + ".1");
  EXPECT_LE(last.size(), 1000U);
  EXPECT_LE(before.size(), 1000U);
  EXPECT_NE((before + last).find("line 90\n"), std::string::npos);
  EXPECT_NE(last.find("line 99\n"), std::string::npos);
}

}  // namespace
}  // namespace tidemill::test
