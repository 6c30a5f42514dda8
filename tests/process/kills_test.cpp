// SPDX-License-Identifier: Apache-2.0
// Kills runs at random times and resumes them. Their results must be bit-identical to those of an
// undisturbed run.
//
// A run is started, killed after a random time, resumed, perhaps killed again, and finally resumed
// to its end. The times are uniform over the duration of the undisturbed run, including its start.
// A process that ends before its time is not counted as killed. Runs are repeated until the wanted
// number of processes has been killed. The test does not require kills in particular phases; it
// only prints how many there were in each phase.
//
// TIDEMILL_KILL_SEED=N repeats the times of another seed, as far as the machine allows, and
// TIDEMILL_KILL_ROUNDS=N kills N times as often.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/process/run_folder.hpp"

namespace tidemill::test {
namespace {

using std::chrono::microseconds;
using SteadyClock = std::chrono::steady_clock;

/// In which phases processes were killed, and the results of the runs.
struct Tally {
  int kills = 0;
  int before_directory = 0;     // no run to resume, so it was started again
  int before_first_commit = 0;  // resumed from the beginning
  int in_commit = 0;            // while a commit was being written
  int after_last_commit = 0;    // while exporting
  int runs = 0;
  int bit_equal = 0;
  int ended_before_kill = 0;

  [[nodiscard]] std::string to_text() const {
    return "kills " + std::to_string(kills) + " (before the run directory " +
           std::to_string(before_directory) + ", before the first commit " +
           std::to_string(before_first_commit) + ", during a commit " + std::to_string(in_commit) +
           ", after the last commit " + std::to_string(after_last_commit) +
           "); ended before the kill, not counted " + std::to_string(ended_before_kill) +
           "; runs resumed to their end " + std::to_string(runs) + ", bit-equal " +
           std::to_string(bit_equal);
  }
};

constexpr const char* kRun = "victim";
constexpr std::uint64_t kDefaultSeed = 20'260'101;
// One in this many resumed processes is not killed.
constexpr std::uint64_t kSpareOneIn = 2;

std::uint64_t seed() {
  const char* given = std::getenv("TIDEMILL_KILL_SEED");  // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::strtoull(given, nullptr, 10) : kDefaultSeed;
}

// A test kills this many times as often as by default.
int rounds() {
  const char* given = std::getenv("TIDEMILL_KILL_ROUNDS");      // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::max(1, std::atoi(given)) : 1;  // NOLINT(cert-err34-c)
}

class KillsTest : public ::testing::Test {
protected:
  void kill_often(const std::string& config, std::uint64_t steps, int kills);

private:
  void run_undisturbed(const std::string& config, std::uint64_t steps);
  void run_with_kills(const std::string& config, RandomStream& random);
  [[nodiscard]] std::vector<std::string> next_command(const RunFolder& folder) const;
  void count_kill(const RunFolder& folder);

  RunOutput undisturbed_;
  microseconds length_{0};
  std::uint64_t steps_ = 0;
  int wanted_ = 0;
  Tally tally_;
};

// Runs twice and uses the shorter duration, since the machine may be busy during one of the runs.
void KillsTest::run_undisturbed(const std::string& config, std::uint64_t steps) {
  length_ = microseconds::max();
  for (int time = 0; time < 2; ++time) {
    RunFolder folder;
    folder.write_rows();
    folder.write("run.yaml", config);
    const auto start = SteadyClock::now();
    const auto ended = folder.run({"run", "run.yaml"});
    length_ =
        std::min(length_, std::chrono::duration_cast<microseconds>(SteadyClock::now() - start));
    ASSERT_TRUE(ended.has_value()) << "hangs";
    ASSERT_EQ(ended->code, 0) << ended->describe();
    const RunOutput seen = run_output(folder, kRun);
    ASSERT_FALSE(seen.weights.empty());
    ASSERT_EQ(seen.steps, steps_up_to(steps));
    ASSERT_EQ(difference(time == 0 ? seen : undisturbed_, seen), "");
    undisturbed_ = seen;
  }
  steps_ = steps;
}

// A run without run.yaml has not begun, so `run` must start it under the same name.
std::vector<std::string> KillsTest::next_command(const RunFolder& folder) const {
  const std::filesystem::path run = std::filesystem::path("runs") / kRun;
  return std::filesystem::exists(folder.path() / run / "run.yaml")
             ? std::vector<std::string>{"resume", run.string()}
             : std::vector<std::string>{"run", "run.yaml"};
}

void KillsTest::count_kill(const RunFolder& folder) {
  ++tally_.kills;
  const CommitState found = folder.commits(kRun);
  if (next_command(folder).front() == "run") {
    ++tally_.before_directory;
  } else if (!found.last_step.has_value()) {
    ++tally_.before_first_commit;
  } else if (*found.last_step == steps_) {
    ++tally_.after_last_commit;
  }
  tally_.in_commit += found.leftovers ? 1 : 0;
}

void KillsTest::run_with_kills(const std::string& config, RandomStream& random) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", config);
  for (bool first = true;; first = false) {
    ProgramRun run(folder.path(), tidemill(next_command(folder)));
    const bool spare = tally_.kills >= wanted_ || (!first && random.below(kSpareOneIn) == 0);
    const microseconds moment(random.below(static_cast<std::uint64_t>(length_.count())));
    if (!spare && !run.ended_within(moment)) {
      run.send(SIGKILL);
    }
    const auto ended = run.finish();
    if (!ended.has_value() || (ended->signal != SIGKILL && ended->code != 0)) {
      folder.keep();
      FAIL() << (ended.has_value() ? ended->describe() : "hangs") << "\nkept " << folder.path();
    }
    if (ended->signal == SIGKILL) {
      count_kill(folder);
      continue;
    }
    tally_.ended_before_kill += spare ? 0 : 1;
    break;
  }
  ++tally_.runs;
  const std::string differs = difference(undisturbed_, run_output(folder, kRun));
  if (!differs.empty()) {
    folder.keep();
    FAIL() << "differs from the undisturbed run: " << differs << "\nkept " << folder.path();
  }
  ++tally_.bit_equal;
}

void KillsTest::kill_often(const std::string& config, std::uint64_t steps, int kills) {
  std::cout << "seed " << seed() << '\n';
  wanted_ = kills * rounds();
  ASSERT_NO_FATAL_FAILURE(run_undisturbed(config, steps));
  RandomStream random(seed());
  const auto start = SteadyClock::now();
  while (tally_.kills < wanted_ && !HasFatalFailure()) {
    run_with_kills(config, random);
  }
  const auto spent = std::chrono::duration_cast<std::chrono::seconds>(SteadyClock::now() - start);
  std::cout << "undisturbed run " << length_.count() / 1000 << " ms; " << tally_.to_text() << "; "
            << spent.count() << " s\n";
  EXPECT_EQ(tally_.kills, wanted_);
  EXPECT_EQ(tally_.bit_equal, tally_.runs);
}

TEST_F(KillsTest, SynchronousRunWithACommitEveryStep) {
  kill_often(small_rl_run(kRun,
                          "train: {steps: 24, prompts_per_step: 4, learning_rate: 1e-3}\n"
                          "checkpoint: {every_steps: 1}\n"),
             24, 15);
}

TEST_F(KillsTest, SynchronousRunWithEvaluations) {
  kill_often(small_rl_run(kRun,
                          "train: {steps: 30, prompts_per_step: 4, learning_rate: 1e-3}\n"
                          "eval: {every_steps: 4}\n"
                          "checkpoint: {every_steps: 2}\n"),
             30, 9);
}

TEST_F(KillsTest, FixedScheduleOfStalenessOne) {
  kill_often(small_rl_run(kRun,
                          "train: {steps: 30, prompts_per_step: 4, learning_rate: 1e-3}\n"
                          "staleness: {max: 1, schedule: fixed}\n"
                          "checkpoint: {every_steps: 2}\n"),
             30, 7);
}

TEST_F(KillsTest, FixedScheduleOfStalenessTwo) {
  kill_often(small_rl_run(kRun,
                          "train: {steps: 24, prompts_per_step: 4, learning_rate: 1e-3}\n"
                          "staleness: {max: 2, schedule: fixed}\n"
                          "checkpoint: {every_steps: 1}\n"),
             24, 7);
}

TEST_F(KillsTest, SynchronousRunThatTrainsAnAdapter) {
  kill_often(small_rl_run(kRun,
                          "train: {steps: 30, prompts_per_step: 4, learning_rate: 1e-2,\n"
                          "        adapter: {kind: lora, rank: 4}}\n"
                          "checkpoint: {every_steps: 2}\n"),
             30, 5);
}

TEST_F(KillsTest, SupervisedRunThatKeepsItsBest) {
  kill_often("workflow: sft\nname: " + std::string(kRun) + "\nseed: 7\n" + random_model() +
                 "data: {train: rows.jsonl, eval: rows.jsonl}\n"
                 "train: {steps: 40, sequences_per_step: 16, learning_rate: 1e-2}\n"
                 "eval: {every_steps: 3, keep_best: true}\n"
                 "checkpoint: {every_steps: 2}\n"
                 "device: {threads: 1}\n",
             40, 9);
}

}  // namespace
}  // namespace tidemill::test
