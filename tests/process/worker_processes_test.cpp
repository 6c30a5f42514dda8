// SPDX-License-Identifier: Apache-2.0
// Runs whose responses are generated and scored in processes of their own, undisturbed and under
// faults. Their results must be bit-identical to those of a run of one process.
//
// Faults come at random times: a worker process is killed, or stopped for a while, or the process
// of the run is. A run whose process was killed is resumed. No worker process may outlive the
// process of its run by more than two seconds.
//
// TIDEMILL_KILL_SEED=N repeats the faults of another seed, as far as the machine allows, and
// TIDEMILL_KILL_ROUNDS=N injects N times as many.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "tests/process/child_process_list.hpp"
#include "tests/process/run_folder.hpp"
#include "tests/support/wait_until.hpp"

namespace tidemill::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kRun = "victim";
constexpr std::uint64_t kDefaultSeed = 20'261'128;
constexpr seconds kOrphanTime{2};
// Such answers are lent to the processes that score, and not sent.
constexpr std::size_t kLongAnswer = 5000;

std::uint64_t from_environment(const char* name, std::uint64_t fallback) {
  const char* given = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return given != nullptr ? std::strtoull(given, nullptr, 10) : fallback;
}

// A run with a fixed schedule and these other keys of `train`.
std::string fixed_schedule(const std::string& training) {
  return small_rl_run(kRun, "train: {steps: 30, prompts_per_step: 4, " + training +
                                "}\n"
                                "staleness: {max: 1, schedule: fixed}\n"
                                "eval: {every_steps: 10}\n"
                                "checkpoint: {every_steps: 1}\n");
}
std::string with_all_parameters() {
  return fixed_schedule("learning_rate: 1e-3");
}
// Only the first message about weights has the base.
std::string with_adapter() {
  return fixed_schedule("learning_rate: 1e-2, adapter: {rank: 4, alpha: 8}");
}

// Carries out a run of one process.
RunOutput undisturbed(const std::string& text, std::size_t answer_bytes = 0) {
  RunFolder folder;
  folder.write_rows(answer_bytes);
  folder.write("run.yaml", text);
  const auto ended = folder.run({"run", "run.yaml"});
  EXPECT_TRUE(ended.has_value() && ended->code == 0)
      << (ended.has_value() ? ended->describe() : "hangs");
  RunOutput output = run_output(folder, kRun);
  EXPECT_FALSE(output.weights.empty());
  return output;
}

std::vector<std::string> placed(std::vector<std::string> command, const std::string& transport) {
  command.push_back("placement.rollout.processes=2");
  command.push_back("placement.rollout.transport=" + transport);
  command.push_back("placement.reward.processes=2");
  command.push_back("placement.reward.workers=3");
  command.push_back("placement.reward.transport=" + transport);
  return command;
}

// Returns how many steps the run has recorded.
std::int64_t num_steps(const RunFolder& folder) {
  const std::string metrics = read_file(folder.path() / "runs" / kRun / "metrics.jsonl");
  return std::ranges::count(metrics, '\n');
}

class WorkerProcessesTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, WorkerProcessesTest,
                         ::testing::Values("loopback", "shm", "zmq"),
                         [](const auto& test) { return test.param; });

// What the transport "loopback" does without: processes.
class ChildProcessesTest : public WorkerProcessesTest {};

INSTANTIATE_TEST_SUITE_P(Transports, ChildProcessesTest, ::testing::Values("shm", "zmq"),
                         [](const auto& test) { return test.param; });

TEST_P(WorkerProcessesTest, ChangeNoBit) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", with_all_parameters());
  const auto ended = folder.run(placed({"run", "run.yaml"}, GetParam()));
  ASSERT_TRUE(ended.has_value()) << "hangs";
  ASSERT_EQ(ended->code, 0) << ended->describe();
  for (const std::string role : {"rollout", "reward"}) {
    EXPECT_NE(ended->err.find(role + " processes: transport " + GetParam()), std::string::npos)
        << ended->err;
  }
  EXPECT_EQ(difference(undisturbed(with_all_parameters()), run_output(folder, kRun)), "");
  EXPECT_EQ(read_file(folder.path() / "runs" / kRun / "processes.log"), "");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "runs" / kRun / "sockets"));
}

// Returns whether a process has mapped memory that is lent to it.
bool reads_lent_memory(pid_t process) {
  return read_file("/proc/" + std::to_string(process) + "/maps").find("tidemill_segment") !=
         std::string::npos;
}

TEST_P(ChildProcessesTest, ReadLargeColumnsInPlace) {
  RunFolder folder;
  folder.write_rows(kLongAnswer);
  folder.write("run.yaml", small_rl_run(kRun, "train: {steps: 100000, prompts_per_step: 4}\n"));
  const std::vector<std::string> command{"run", "run.yaml", "placement.reward.processes=2",
                                         "placement.reward.workers=2",
                                         "placement.reward.transport=" + GetParam()};
  ProgramRun run(folder.path(), tidemill(command));
  ASSERT_TRUE(run.wait_for_error_text("reward processes:"));
  EXPECT_TRUE(wait_until(
      [&] {
        const std::vector<pid_t> children = children_of(run.pid());
        return children.size() == 2 && std::ranges::all_of(children, reads_lent_memory);
      },
      kHang));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
}

TEST_P(ChildProcessesTest, EndWithTheRunAndNoneIsLeft) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", small_rl_run(kRun, "train: {steps: 100000, prompts_per_step: 4}\n"));
  ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 1 has joined"));
  std::vector<pid_t> children;
  ASSERT_TRUE(wait_until(
      [&] {
        children = children_of(run.pid());
        return children.size() == 4;
      },
      kHang));
  ASSERT_TRUE(
      run.wait_for_error_text("\nprocesses: reward 2 of 2 connected, rollout 2 of 2 connected\n"));
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  for (const pid_t child : children) {
    EXPECT_FALSE(is_alive(child));
  }
}

// Returns what `tidemill top` says of the run, or nothing.
std::string top(const RunFolder& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> command{"top", kRun};
  command.insert(command.end(), more.begin(), more.end());
  const auto shown = folder.run(command);
  return shown.has_value() && shown->code == 0 ? shown->out : "";
}

TEST_P(WorkerProcessesTest, CanBeAddedAndDrainedWhileTheRunGoesOn) {
  RunFolder folder;
  folder.write_rows();
  const std::string text = small_rl_run(kRun,
                                        "train: {steps: 200, prompts_per_step: 4}\n"
                                        "staleness: {max: 1, schedule: fixed}\n");
  folder.write("run.yaml", text);
  ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 1 has joined"));
  for (const char* wanted : {"rollout=3", "rollout=1", "reward=1", "rollout=2"}) {
    const auto scaled = folder.run({"scale", kRun, wanted});
    ASSERT_TRUE(scaled.has_value()) << "hangs";
    ASSERT_EQ(scaled->code, 0) << wanted << ": " << scaled->describe();
    if (wanted == std::string("rollout=3")) {
      ASSERT_TRUE(wait_until(
          [&] {
            return run.ended_within(milliseconds(0)) ||
                   top(folder, {"--json"}).find("rollout process 2") != std::string::npos;
          },
          kHang));
      ASSERT_FALSE(run.ended_within(milliseconds(0))) << "too early";
    }
  }
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  ASSERT_EQ(ended->code, 0) << ended->describe();
  EXPECT_NE(ended->err.find("info: rollout-4 was added"), std::string::npos) << ended->err;
  EXPECT_EQ(difference(undisturbed(text), run_output(folder, kRun)), "");
}

TEST_P(WorkerProcessesTest, JoinARunThatHasTrainedAnAdapter) {
  RunFolder folder;
  folder.write_rows();
  const std::string text =
      small_rl_run(kRun,
                   "train: {steps: 120, prompts_per_step: 4, adapter: {rank: 4, alpha: 8}}\n"
                   "staleness: {max: 1, schedule: fixed}\n");
  folder.write("run.yaml", text);
  {
    ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
    ASSERT_TRUE(wait_until([&] { return num_steps(folder) >= 3; }, kHang));
    const auto scaled = folder.run({"scale", kRun, "rollout=3"});
    ASSERT_TRUE(scaled.has_value()) << "hangs";
    ASSERT_EQ(scaled->code, 0) << scaled->describe();
    EXPECT_TRUE(run.wait_for_error_text("rollout process 2 has joined"));
    run.send(SIGINT);
    const auto stopped = run.finish();
    ASSERT_TRUE(stopped.has_value()) << "hangs";
    ASSERT_EQ(stopped->code, 0) << stopped->describe();
  }
  const auto ended =
      folder.run({"resume", "runs/" + std::string(kRun), "placement.rollout.processes=1",
                  "placement.reward.processes=0", "placement.reward.workers=1"});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  ASSERT_EQ(ended->code, 0) << ended->describe();
  EXPECT_EQ(ended->err.find("quarantined"), std::string::npos) << ended->err;
  EXPECT_EQ(difference(undisturbed(text), run_output(folder, kRun)), "");
}

// The workers of a process that `tidemill top` shows.
int workers_of(const std::string& shown, const std::string& process) {
  const std::size_t found = shown.find("\"name\":\"" + process + "\"");
  const std::string key = "\"workers\":";
  const std::size_t at = found == std::string::npos ? found : shown.find(key, found);
  return at == std::string::npos ? 0 : std::stoi(shown.substr(at + key.size()));
}

TEST_P(WorkerProcessesTest, KeepTheirNumberOfWorkersWhenScaledUpAndDown) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", small_rl_run(kRun, "train: {steps: 100000, prompts_per_step: 4}\n"));
  ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 1 has joined"));
  for (int i = 0; i < 4; ++i) {
    for (const char* wanted : {"rollout=4", "reward=3", "rollout=1", "reward=1", "reward=2"}) {
      const auto scaled = folder.run({"scale", kRun, wanted});
      ASSERT_TRUE(scaled.has_value() && scaled->code == 0) << wanted;
    }
  }
  std::string shown;
  EXPECT_TRUE(wait_until(
      [&] {
        shown = top(folder, {"--json"});
        return workers_of(shown, "rollout process 0") == 2 &&
               workers_of(shown, "reward process 0") == 2 &&
               workers_of(shown, "reward process 1") == 2 &&
               shown.find("rollout process 1") == std::string::npos;
      },
      kHang))
      << shown;
  run.send(SIGINT);
  const auto ended = run.finish();
  ASSERT_TRUE(ended.has_value()) << "hangs";
  EXPECT_EQ(ended->code, 0) << ended->describe();
  EXPECT_EQ(ended->err.find("times in a row"), std::string::npos) << ended->err;
}

TEST_P(WorkerProcessesTest, AreShownAndWrongNumbersAreRefused) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", small_rl_run(kRun, "train: {steps: 100000, prompts_per_step: 4}\n"));
  EXPECT_EQ(top(folder), "");
  ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
  ASSERT_TRUE(run.wait_for_error_text("rollout process 1 has joined"));
  const std::string shown = top(folder);
  for (const char* process : {"process of the run", "rollout process 0", "rollout process 1",
                              "reward process 0", "reward process 1"}) {
    EXPECT_NE(shown.find(process), std::string::npos) << shown;
  }
  EXPECT_NE(shown.find(GetParam()), std::string::npos) << shown;
  const struct {
    const char* wanted;
    const char* why;
  } cases[] = {
      {"rollout=0", "rollout=0: must be from 1 to 32"},
      {"reward=65", "reward=65: must be from 1 to 64"},
      {"trainer=2", "trainer: this run has no such processes"},
      {"rollout", "rollout: must be ROLE=PROCESSES"},
      {"rollout=2x", "rollout=2x: must be ROLE=PROCESSES"},
  };
  for (const auto& [wanted, why] : cases) {
    const auto refused = folder.run({"scale", kRun, wanted});
    ASSERT_TRUE(refused.has_value()) << "hangs";
    EXPECT_NE(refused->code, 0) << wanted;
    EXPECT_NE(refused->err.find(why), std::string::npos) << refused->err;
  }
  run.send(SIGINT);
  ASSERT_TRUE(run.finish().has_value()) << "hangs";
  const auto over = folder.run({"top", kRun});
  ASSERT_TRUE(over.has_value()) << "hangs";
  EXPECT_NE(over->err.find("no run with several processes is in progress here"), std::string::npos)
      << over->err;
}

// A process that is killed leaves its sockets, and perhaps one that has no final name yet.
TEST_P(ChildProcessesTest, ARunThatWasKilledLeavesNoSocketsBehindItsResume) {
  RunFolder folder;
  folder.write_rows();
  folder.write("run.yaml", with_all_parameters());
  const std::filesystem::path sockets = folder.path() / "runs" / kRun / "sockets";
  {
    ProgramRun run(folder.path(), tidemill(placed({"run", "run.yaml"}, GetParam())));
    ASSERT_TRUE(run.wait_for_error_text("reward processes:"));
    ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(sockets / GetParam()); }, kHang));
    run.send(SIGKILL);
    ASSERT_TRUE(run.finish().has_value()) << "hangs";
  }
  ASSERT_TRUE(std::filesystem::exists(sockets / GetParam()));
  std::ofstream(sockets / ".zmq-0123456789abcdef").close();
  const auto ended = folder.run({"resume", "runs/" + std::string(kRun)});
  ASSERT_TRUE(ended.has_value()) << "hangs";
  ASSERT_EQ(ended->code, 0) << ended->describe();
  EXPECT_FALSE(std::filesystem::exists(sockets));
}

// What was done to the processes of the runs.
struct Faults {
  int worker_kills = 0;
  int worker_stops = 0;
  int owner_kills = 0;
  int owner_stops = 0;
  int orphans = 0;

  [[nodiscard]] int total() const {
    return worker_kills + worker_stops + owner_kills + owner_stops;
  }
  [[nodiscard]] std::string to_text() const {
    return std::to_string(total()) + " faults: worker killed " + std::to_string(worker_kills) +
           ", worker stopped " + std::to_string(worker_stops) + ", run killed " +
           std::to_string(owner_kills) + ", run stopped " + std::to_string(owner_stops);
  }
};

class DisturbedRun {
public:
  DisturbedRun(const std::string& text, std::string transport, RandomStream& random, Faults& faults)
      : transport_(std::move(transport)), random_(random), faults_(faults) {
    folder_.write_rows(kLongAnswer);
    folder_.write("run.yaml", text);
  }

  // Runs to the end, with about one fault in 400 ms. Returns what went wrong, or nothing.
  std::string run() {
    for (int starts = 0; starts < 100; ++starts) {
      ProgramRun process(folder_.path(), tidemill(next_command()));
      disturb(process);
      const auto ended = process.finish();
      if (!ended.has_value()) {
        return "hangs";
      }
      if (ended->signal == SIGKILL) {
        continue;
      }
      if (ended->code == 0) {
        return {};
      }
      // So many deaths in a row that the run gave up, as it should. It goes on from its commit.
      if (ended->err.find("times in a row") == std::string::npos) {
        return ended->describe();
      }
    }
    return "has not ended after 100 starts";
  }

  [[nodiscard]] RunFolder& folder() { return folder_; }

private:
  [[nodiscard]] std::vector<std::string> next_command() const {
    const std::filesystem::path run = std::filesystem::path("runs") / kRun;
    return std::filesystem::exists(folder_.path() / run / "run.yaml")
               ? std::vector<std::string>{"resume", run.string()}
               : placed({"run", "run.yaml"}, transport_);
  }

  void disturb(ProgramRun& process) {
    while (!process.ended_within(milliseconds(1 + random_.below(800)))) {
      const std::vector<pid_t> children = children_of(process.pid());
      const std::uint64_t kind = random_.below(10);
      if (kind == 0) {
        kill_owner(process);
        return;
      }
      if (kind == 1) {
        process.send(SIGSTOP);
        ++faults_.owner_stops;
        // The fault is that the process does nothing for this long. Nothing waits for it.
        std::this_thread::sleep_for(milliseconds(random_.below(1500)));
        process.send(SIGCONT);
      } else if (!children.empty()) {
        disturb_worker(children[random_.below(children.size())], kind < 5);
      }
    }
  }

  void disturb_worker(pid_t worker, bool stop) {
    if (!stop) {
      faults_.worker_kills += ::kill(worker, SIGKILL) == 0 ? 1 : 0;
      return;
    }
    if (::kill(worker, SIGSTOP) == 0) {
      ++faults_.worker_stops;
      std::this_thread::sleep_for(milliseconds(random_.below(1000)));  // this is the fault
      ::kill(worker, SIGCONT);
    }
  }

  // Kills the process of the run. Counts the workers that live too long afterwards.
  void kill_owner(const ProgramRun& process) {
    const std::vector<pid_t> children = children_of(process.pid());
    process.send(SIGKILL);
    ++faults_.owner_kills;
    const bool gone =
        wait_until([&] { return std::ranges::none_of(children, is_alive); }, kOrphanTime);
    faults_.orphans += gone ? 0 : 1;
  }

  const std::string transport_;
  RandomStream& random_;
  Faults& faults_;
  RunFolder folder_;
};

TEST(WorkerProcessFaults, ChangeNoBitAndLeaveNoOrphan) {
  const std::uint64_t seed = from_environment("TIDEMILL_KILL_SEED", kDefaultSeed);
  const auto wanted = static_cast<int>(100 * from_environment("TIDEMILL_KILL_ROUNDS", 1));
  std::cout << "seed " << seed << '\n';
  const std::array texts{with_all_parameters(), with_adapter()};
  const std::array expected{undisturbed(texts[0], kLongAnswer), undisturbed(texts[1], kLongAnswer)};
  RandomStream random(seed);
  Faults faults;
  int runs = 0;
  for (; faults.total() < wanted; ++runs) {
    const std::size_t text = static_cast<std::size_t>(runs) / 2 % texts.size();
    DisturbedRun run(texts[text], runs % 2 == 0 ? "shm" : "zmq", random, faults);
    std::string problem = run.run();
    if (problem.empty()) {
      problem = difference(expected[text], run_output(run.folder(), kRun));
    }
    if (!problem.empty()) {
      run.folder().keep();
      FAIL() << problem << "\nkept " << run.folder().path() << "\n" << faults.to_text();
    }
  }
  std::cout << faults.to_text() << "; runs " << runs << ", bit-equal " << runs << '\n';
  EXPECT_EQ(faults.orphans, 0);
  EXPECT_GT(faults.worker_kills, wanted / 4);
  EXPECT_GT(faults.worker_stops, wanted / 10);
  EXPECT_GT(faults.owner_kills, wanted / 50);
}

}  // namespace
}  // namespace tidemill::test
