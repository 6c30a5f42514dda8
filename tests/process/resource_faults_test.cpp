// SPDX-License-Identifier: Apache-2.0
// Runs with worker processes in which a resource is used up: shared memory, the disk, processes or
// threads, or the disk has errors. The run goes on, or it ends with one line that names the reason,
// and then goes on when it is resumed. The results must be bit-identical to those of a run of one
// process without faults.
//
// A library (fault_injector.cpp) makes calls of one role's processes fail: one call, or all calls
// from one on. A run without faults counts the calls, and the seed chooses among them. The run uses
// shared memory and not ZeroMQ, which ends a process that cannot start one of its threads.
//
// TIDEMILL_FAULT_SEED=N chooses other calls, and TIDEMILL_FAULT_ROUNDS=N chooses N times as often.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/process/run_folder.hpp"
#include "tests/support/wait_until.hpp"

namespace tidemill::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr const char* kRun = "victim";
constexpr std::uint64_t kDefaultSeed = 20'261'129;
constexpr std::chrono::seconds kOrphanTime{2};
// Such answers are lent to the processes that score, and not sent.
constexpr std::size_t kLongAnswer = 5000;

struct FaultKind {
  const char* name;     // as fault_injector.cpp has it
  const char* reasons;  // what an error message says; a regular expression
};
constexpr FaultKind kFaultKinds[] = {
    {"shared_memory", "No space left on device|Cannot allocate memory"},
    {"disk", "No space left on device"},
    {"io", "Input/output error"},
    {"processes", "Resource temporarily unavailable"},
    {"threads", "thread.* cannot be started|threads: only|cannot start a thread"},
};

// How many calls fail, instead of all, if the process of the run has no shared memory: it waits two
// minutes for other processes to free some.
constexpr int kSomeCalls = 8;

std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* given = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::strtoull(given, nullptr, 10) : fallback;
}

enum class FaultTimes { kOnce, kLasting };

// The programs that are started meanwhile get a fault.
class FaultScope {
public:
  explicit FaultScope(const std::string& fault) {
    ::setenv("LD_PRELOAD", TIDEMILL_FAULT_INJECTOR, 1);  // NOLINT(concurrency-mt-unsafe)
    ::setenv("TIDEMILL_FAULT", fault.c_str(), 1);        // NOLINT(concurrency-mt-unsafe)
  }
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
  ~FaultScope() {
    ::unsetenv("LD_PRELOAD");      // NOLINT(concurrency-mt-unsafe)
    ::unsetenv("TIDEMILL_FAULT");  // NOLINT(concurrency-mt-unsafe)
  }
};

// The reward program writes a line to stderr, which its process writes to a file.
std::string config_with_program() {
  std::string text = small_rl_run(kRun,
                                  "train: {steps: 5, prompts_per_step: 4, learning_rate: 1e-3}\n"
                                  "staleness: {max: 1, schedule: fixed}\n"
                                  "checkpoint: {every_steps: 1}\n");
  const std::string rule = "reward: {kind: regex, pattern: '[A-Z]'}\n";
  text.replace(text.find(rule), rule.size(),
               "reward: {kind: command, command: [sh, -c, 'echo started >&2; exec python3 " +
                   std::string(TIDEMILL_TEST_DIR) + "/process/reward_program.py .']}\n");
  return text;
}

// A run in a folder of its own.
class FaultyRun {
public:
  explicit FaultyRun(int processes) : processes_(std::to_string(processes)) {
    folder_.write_rows(kLongAnswer);
    folder_.write("run.yaml", config_with_program());
  }

  [[nodiscard]] RunFolder& folder() { return folder_; }

  // Starts the run, or resumes it if it has a folder. `fault` has no record and no folders yet.
  Ended run(const std::string& fault) {
    const FaultScope scope(fault + " " + record().string() + " " + folder_.path().string() +
                           ":/examples/models/");
    return run();
  }
  Ended run() {
    const std::filesystem::path started = std::filesystem::path("runs") / kRun / "run.yaml";
    std::vector<std::string> command{"resume", "runs/" + std::string(kRun)};
    if (!std::filesystem::exists(folder_.path() / started)) {
      command = {"run",
                 "run.yaml",
                 "placement.rollout.processes=" + processes_,
                 "placement.rollout.transport=shm",
                 "placement.reward.processes=" + processes_,
                 "placement.reward.workers=2",
                 "placement.reward.transport=shm"};
    }
    const auto ended = folder_.run(command);
    EXPECT_TRUE(ended.has_value()) << "hangs";
    return ended.value_or(Ended{});
  }

  // Returns the lines of the record; see fault_injector.cpp.
  [[nodiscard]] std::vector<std::string> recorded() const {
    std::vector<std::string> lines;
    std::istringstream text(read_file(record()));
    for (std::string line; std::getline(text, line);) {
      lines.push_back(line);
    }
    return lines;
  }

  // Returns whether a process works in the folder, or has its path in the command line, as the
  // processes of its run have.
  [[nodiscard]] bool has_processes() const {
    const std::string path = folder_.path().string();
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      std::error_code gone;
      const std::string works_in = std::filesystem::read_symlink(entry.path() / "cwd", gone);
      if (works_in.starts_with(path) ||
          read_file(entry.path() / "cmdline").find(path) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

private:
  [[nodiscard]] std::filesystem::path record() const { return folder_.path() / "record"; }

  const std::string processes_;
  RunFolder folder_;
};

// What was injected, and how the runs ended.
struct FaultTally {
  int faults = 0;
  int went_on = 0;
  int ended = 0;
};

class ResourceFaultsTest : public ::testing::TestWithParam<std::string> {
protected:
  ResourceFaultsTest()
      : seed_(number_from_environment("TIDEMILL_FAULT_SEED", kDefaultSeed)), random_(seed_) {
    std::cout << "seed " << seed_ << '\n';
  }

  // Carries out a run without worker processes, and one in which the calls are counted.
  void run_undisturbed(int processes) {
    RunFolder one;
    one.write_rows(kLongAnswer);
    one.write("run.yaml", config_with_program());
    const auto ended = one.run({"run", "run.yaml"});
    ASSERT_TRUE(ended.has_value()) << "hangs";
    ASSERT_EQ(ended->code, 0) << ended->describe();
    expected_ = run_output(one, kRun);
    FaultyRun counted(processes);
    const Ended placed = counted.run(GetParam() + " none 0 0");
    ASSERT_EQ(placed.code, 0) << placed.describe();
    ASSERT_EQ(difference(expected_, run_output(counted.folder(), kRun)), "");
    count_calls(counted.recorded());
  }

  // Injects a fault, and carries the run out to its end.
  void inject(const FaultKind& kind, FaultTimes fault_times, int processes) {
    const bool waits = GetParam() == "run" && std::string(kind.name) == "shared_memory";
    const int all = waits ? kSomeCalls : 0;
    const int times = fault_times == FaultTimes::kOnce ? 1 : all;
    const std::uint64_t calls = calls_[kind.name];
    // Fewer than in the run that counted: their number varies a little with the times.
    const std::uint64_t after = calls == 0 ? 0 : random_.below(calls - calls / 8);
    const std::string fault =
        GetParam() + " " + kind.name + " " + std::to_string(after) + " " + std::to_string(times);
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", fault " + fault);
    FaultyRun run(processes);
    const Ended ended = run.run(fault);
    const std::vector<std::string> record = run.recorded();
    std::cout << fault << ": exit " << ended.code << ", "
              << (record.empty() ? "no such call" : record.front()) << ", "
              << ended.last_error_line() << '\n';
    EXPECT_EQ(record.empty(), calls == 0) << "the fault was not injected, or its calls not counted";
    EXPECT_TRUE(wait_until([&] { return !run.has_processes(); }, kOrphanTime)) << "orphans";
    expect_clear_end(kind, ended, calls);
    if (ended.code != 0) {
      const Ended resumed = run.run();
      EXPECT_EQ(resumed.code, 0) << resumed.describe();
    }
    EXPECT_EQ(difference(expected_, run_output(run.folder(), kRun)), "") << ended.describe();
    EXPECT_FALSE(run.folder().commits(kRun).leftovers);
    if (HasFailure()) {
      run.folder().keep();
      std::cout << "kept " << run.folder().path() << '\n';
    }
  }

  void expect_clear_end(const FaultKind& kind, const Ended& ended, std::uint64_t calls) {
    EXPECT_EQ(ended.signal, 0) << ended.describe();
    if (ended.code != 0) {
      EXPECT_EQ(ended.code, 1) << ended.describe();
      EXPECT_GT(calls, 0U) << ended.describe();
      EXPECT_THAT(ended.last_error_line(), AllOf(HasSubstr(": "), ContainsRegex(kind.reasons)))
          << ended.describe();
    }
    EXPECT_EQ(ended.err.find("terminate called"), std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find("killed by signal"), std::string::npos) << ended.err;
    tally_.faults += calls > 0 ? 1 : 0;
    (ended.code == 0 ? tally_.went_on : tally_.ended) += 1;
  }

  std::map<std::string, std::uint64_t> calls_;  // of one process of the role, by kind
  FaultTally tally_;
  const std::uint64_t seed_;
  RandomStream random_;

private:
  // Counts the calls of each kind in the process that has the fewest.
  void count_calls(const std::vector<std::string>& record) {
    std::map<std::string, std::map<std::string, std::uint64_t>> by_process;
    for (const std::string& line : record) {
      std::istringstream words(line);
      std::string role;
      std::string kind;
      std::string process;
      words >> role >> kind >> process;
      ++by_process[kind][process];
    }
    for (const auto& [kind, processes] : by_process) {
      calls_[kind] = std::ranges::min_element(processes, {}, [](const auto& one) {
                       return one.second;
                     })->second;
    }
  }

  RunOutput expected_;
};

INSTANTIATE_TEST_SUITE_P(Roles, ResourceFaultsTest, ::testing::Values("run", "rollout", "reward"),
                         [](const auto& test) { return test.param; });

TEST_P(ResourceFaultsTest, ChangeNoBitAndEndWithAReason) {
  const int processes = 1 + static_cast<int>(random_.below(2));
  ASSERT_NO_FATAL_FAILURE(run_undisturbed(processes));
  // Rollout processes start no process and write no file. All other kinds concern every role.
  const bool rollout = GetParam() == "rollout";
  EXPECT_EQ(calls_.size(), rollout ? 3U : 5U);
  EXPECT_EQ(calls_.contains("disk") || calls_.contains("processes"), !rollout);
  const auto rounds = static_cast<int>(number_from_environment("TIDEMILL_FAULT_ROUNDS", 1));
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    for (const FaultKind& kind : kFaultKinds) {
      if (calls_.contains(kind.name)) {
        inject(kind, FaultTimes::kOnce, processes);
      }
      inject(kind, FaultTimes::kLasting, processes);
    }
  }
  std::cout << tally_.faults << " faults: the run went on " << tally_.went_on << ", was resumed "
            << tally_.ended << '\n';
}

}  // namespace
}  // namespace tidemill::test
