// SPDX-License-Identifier: Apache-2.0
// Child processes report how they ended, and leave no process, descriptor or signal behind.
#include "engines/reward/child_process.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "engines/reward/command_engine.hpp"
#include "engines/reward/process_tree.hpp"
#include "tests/engines/reward/reward_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Reads stdout until a newline, which the program is known to write.
std::string read_line(ChildProcess& child) {
  std::string line;
  while (line.empty() || line.back() != '\n') {
    child.wait(false, std::chrono::seconds(1));
    std::array<char, 64> bytes{};
    const PipeResult result = child.read_stdout(bytes);
    line.append(bytes.data(), result.bytes);
    if (result.state == PipeState::kClosed) {
      break;
    }
  }
  return line;
}

std::unique_ptr<ChildProcess> start_shell(const std::string& script) {
  auto started = ChildProcess::start({"sh", "-c", script});
  EXPECT_TRUE(started.ok()) << started.status().to_string();
  return std::move(started).value();
}

class ChildProcessTest : public ::testing::Test {
protected:
  // Makes orphans of the test its own children, so that it can observe their deaths.
  void SetUp() override { ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0); }
  void TearDown() override {
    while (::waitpid(-1, nullptr, 0) > 0) {  // orphans that were killed
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
};

TEST_F(ChildProcessTest, ReportsHowTheProgramEnded) {
  auto child = start_shell("exit 3");
  while (!child->ended()) {
    child->wait(false, std::chrono::milliseconds(10));
  }
  EXPECT_EQ(child->stop().how, "exit status 3");
  child = start_shell("kill -ABRT $$");
  while (!child->ended()) {
    child->wait(false, std::chrono::milliseconds(10));
  }
  EXPECT_EQ(child->stop().how, "killed by signal 6 (Aborted)");
  child = start_shell("exec sleep 100000");
  EXPECT_FALSE(child->ended());
  EXPECT_EQ(child->stop().how, "killed by signal 9 (Killed)");
  EXPECT_TRUE(child->ended());
}

TEST_F(ChildProcessTest, LeavesNoDescriptorAndNoZombie) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const auto child = start_shell("exit 0");
    EXPECT_FALSE(ChildProcess::start({"/no/such/program"}).ok());
  }
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_FALSE(has_children());
}

TEST_F(ChildProcessTest, AWriteToAClosedPipeDoesNotKillTheProcess) {
  auto child = start_shell("exec <&-; echo closed; exec sleep 100000");
  EXPECT_EQ(read_line(*child), "closed\n");
  EXPECT_EQ(child->write_stdin("x").state, PipeState::kClosed);
}

TEST_F(ChildProcessTest, StopKillsTheWholeProcessGroup) {
  // The grandchild keeps stdout open, so the exit of the child alone must be detected.
  auto child = start_shell("sleep 100000 & echo $!; exit 5");
  const pid_t grandchild = std::stoi(read_line(*child));
  while (!child->ended()) {
    child->wait(false, std::chrono::milliseconds(10));
  }
  EXPECT_EQ(child->stop().how, "exit status 5");
  int status = 0;
  ASSERT_EQ(::waitpid(grandchild, &status, 0), grandchild);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(ChildProcessTest, StopKillsAProcessInASessionOfItsOwn) {
  const std::string other_session = "setsid sh -c 'echo $$; exec sleep 100000'";
  for (const std::string& script :
       {other_session + " & exec sleep 100000", "(" + other_session + " &); exec sleep 100000",
        other_session + " & exit 5"}) {
    SCOPED_TRACE(script);
    auto child = start_shell(script);
    const pid_t other = std::stoi(read_line(*child));
    child->stop();
    int status = 0;
    ASSERT_EQ(::waitpid(other, &status, 0), other);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
}

TEST_F(ChildProcessTest, StopKillsAProcessWithoutTheEnvironmentOfTheProgram) {
  auto child = start_shell("env -i setsid sh -c 'echo $$; exec sleep 100000' & exec sleep 100000");
  const pid_t other = std::stoi(read_line(*child));
  child->stop();
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(ChildProcessTest, StopKillsNoProcessOfAnotherProgram) {
  auto one = start_shell("setsid sleep 100000 & exec sleep 100000");
  auto other = start_shell("exec cat");
  one->stop();
  EXPECT_FALSE(other->ended());
  EXPECT_EQ(other->write_stdin("still here\n").state, PipeState::kMoved);
  EXPECT_EQ(read_line(*other), "still here\n");
}

TEST_F(ChildProcessTest, IsKilledWhenItsParentDies) {
  std::array<int, 2> report{};
  ASSERT_EQ(::pipe(report.data()), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    auto child = start_shell("echo $$; trap '' HUP TERM INT; exec sleep 100000");
    const std::string line = read_line(*child);
    [[maybe_unused]] const ssize_t written = ::write(report[1], line.data(), line.size());
    ::kill(::getpid(), SIGKILL);
  }
  ::close(report[1]);
  std::array<char, 32> text{};
  ASSERT_GT(::read(report[0], text.data(), text.size() - 1), 0);
  ::close(report[0]);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  const pid_t orphan = std::stoi(text.data());
  int status = 0;
  ASSERT_EQ(::waitpid(orphan, &status, 0), orphan);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(ChildProcessTest, TheDestructorLetsTheProgramExit) {
  auto child = start_shell("cat >/dev/null; echo bye >&2");
  const pid_t group_before = ::getpgrp();
  child.reset();  // kills the program after half a second; a program that reads stdin needs less
  EXPECT_EQ(::getpgrp(), group_before);
  EXPECT_FALSE(has_children());
}

TEST_F(ChildProcessTest, InheritsNoPipesOfOtherChildren) {
  const ManualClock clock;
  RewardOptions options;
  options.kind = RewardKind::kCommand;
  options.command = {"python3", TIDEMILL_TEST_DIR "/engines/reward/programs/scorer.py", "pipes"};
  std::vector<double> pipes;
  std::vector<std::unique_ptr<CommandRewardEngine>> alive;
  for (std::uint64_t i = 0; i < 3; ++i) {
    alive.push_back(CommandRewardEngine::start(options, clock).value());
    RecordingSink sink;
    ASSERT_TRUE(alive.back()->submit(make_request(i, "x"), sink).ok());
    ASSERT_TRUE(step_until(*alive.back(), [&] { return sink.count() == 1; }));
    pipes.push_back(sink.reward(i));
  }
  EXPECT_GE(pipes[0], 3.0);
  EXPECT_EQ(pipes, std::vector<double>(3, pipes[0]));
}

// A made-up procfs.
class ProcessTreeTest : public ::testing::Test {
protected:
  void add(pid_t pid, const std::string& stat, const std::string& environment = {}) {
    const std::filesystem::path folder = proc_.path() / std::to_string(pid);
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "stat") << pid << ' ' << stat;
    std::ofstream(folder / "environ") << environment;
  }
  [[nodiscard]] std::vector<pid_t> tree() const {
    return find_process_tree(proc_.path(), 10, "MARK=1.2");
  }

  test::TemporaryDirectory proc_;
};

TEST_F(ProcessTreeTest, FindsDescendantsWhateverTheirOrderAndNames) {
  add(10, "(program) S 1 10 10\n");
  add(5, "(a) S 30 5 5\n");
  add(30, "(b) S 1) R 10 30 30\n");
  add(40, "(other) S 1 40 40\n");
  EXPECT_EQ(tree(), (std::vector<pid_t>{5, 30}));
}

TEST_F(ProcessTreeTest, FindsMarkedProcessesThatHaveLostTheirParent) {
  using namespace std::string_literals;
  add(11, "(a) S 1 11 11\n", "HOME=/\0MARK=1.2\0"s);
  add(12, "(b) S 11 12 12\n", "HOME=/\0"s);
  add(13, "(c) S 1 13 13\n", "MARK=1.23\0"s);
  add(14, "(d) S 1 14 14\n", "OTHER_MARK=1.2\0"s);
  EXPECT_EQ(tree(), (std::vector<pid_t>{11, 12}));
}

// A process that never goes away: the time bounds the rounds, whatever a round takes.
TEST_F(ProcessTreeTest, KillingEndsAtItsDeadline) {
  class SlowClock final : public Clock {
  public:
    [[nodiscard]] TimePoint now() const override {
      ++calls_;
      return TimePoint(calls_ * std::chrono::milliseconds(200));
    }
    [[nodiscard]] int calls() const { return calls_; }

  private:
    mutable int calls_ = 0;
  };
  const pid_t root = ::fork();
  ASSERT_GE(root, 0);
  if (root == 0) {
    ::setpgid(0, 0);
    ::pause();
    ::_exit(0);
  }
  ::setpgid(root, root);
  // Its own entry, under another number: a process that this test may kill.
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    ::_exit(0);
  }
  add(other, "(stays) S " + std::to_string(root) + " 1 1\n");
  const SlowClock clock;
  kill_process_tree(root, "MARK=1.2", proc_.path(), clock);
  EXPECT_EQ(clock.calls(), 4);  // 200 ms at the start, then 400, 600 and 800
  EXPECT_EQ(::waitpid(root, nullptr, 0), root);
  EXPECT_EQ(::waitpid(other, nullptr, 0), other);
}

TEST_F(ProcessTreeTest, LeavesOutZombiesAndWhatItCannotRead) {
  add(11, "(a) Z 10 11 11\n");
  add(12, "(b", "MARK=1.2");
  std::filesystem::create_directory(proc_.path() / "13");
  std::filesystem::create_directory(proc_.path() / "sys");
  EXPECT_TRUE(tree().empty());
  EXPECT_TRUE(find_process_tree(proc_.path() / "none", 10, "MARK=1.2").empty());
}

}  // namespace
}  // namespace tidemill::engines
