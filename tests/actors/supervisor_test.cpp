// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/supervisor/spawn.hpp: every transition of the table in
// supervisor.cpp.
#include <array>
#include <chrono>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/supervisor/spawn.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"

namespace tidemill::test {
namespace {

using actors::RunEnd;
using actors::RunOrigin;
using actors::RunParts;
using actors::RunSummary;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class SupervisorTest : public ActorTest {
protected:
  void start() {
    actors::SupervisorDeps deps;
    deps.commits = commits_;
    deps.prepare = [this](const RunOrigin& origin) -> Result<std::shared_ptr<void>> {
      ++prepared_;
      origin_ = origin;
      if (!prepare_failure_.ok()) {
        return prepare_failure_;
      }
      return std::shared_ptr<void>{};
    };
    deps.spawn = [this](const RunOrigin& origin, const std::shared_ptr<void>& /*prepared*/,
                        actors::RunListenerActor listener) {
      spawned_from_ = origin;
      return spawn_parts(std::move(listener));
    };
    deps.on_end = [this](Result<RunSummary> result) { ends_.push_back(std::move(result)); };
    deps.log = [this](const std::string& line) { log_.push_back(line); };
    deps.port = &port();
    deps.first_incarnation = 4;
    deps.max_restarts = 2;
    deps.max_workers = max_workers_;
    supervisor_ = keep(actors::spawn_supervisor(system(), std::move(deps)));
    exit_ = exit_of(supervisor_);
    caf::anon_send(supervisor_, atom::start_v);
    advance(0s);
  }

  // Spawns an actor that runs until it receives its exit reason.
  caf::actor spawn_part() {
    return keep(system().spawn([](caf::event_based_actor* self) {
      return caf::behavior{[self](const caf::error& why) { self->quit(why); }};
    }));
  }
  RunParts spawn_parts(actors::RunListenerActor listener) {
    ++spawned_;
    listener_ = std::move(listener);
    parts_["trainer"] = spawn_part();
    parts_["stream"] = spawn_part();
    RunParts parts;
    parts.core = {{"trainer", parts_["trainer"]}, {"stream", parts_["stream"]}};
    if (spare_part_) {
      parts_["spare"] = spawn_part();
      parts.core.push_back({"spare", parts_["spare"], actors::FailurePolicy::kDrop});
    }
    parts.workers = {{"worker", [this] {
                        ++workers_spawned_;
                        return parts_["worker"] = spawn_part();
                      }}};
    for (std::uint32_t i = 0; i < num_helpers_; ++i) {
      parts.workers.push_back(helper(i));
    }
    parts.make_worker = [this](const std::string& kind,
                               std::uint32_t number) -> Result<actors::WorkerSpec> {
      if (kind != "helper") {
        return Status(Errc::kNotFound, "no kind " + kind);
      }
      return helper(number);
    };
    parts.start = [this] { ++started_; };
    parts.stop = [this] { ++stopped_; };
    parts.release = [this](const std::string& name) { released_.push_back(name); };
    return parts;
  }
  actors::WorkerSpec helper(std::uint32_t number) {
    const std::string name = "helper-" + std::to_string(number);
    return {name,
            [this, name] {
              helpers_spawned_.push_back(name);
              return parts_[name] = spawn_helper(name);
            },
            "helper", helper_policy_, processes_of_helpers_[number % 2]};
  }
  // Spawns a worker that can be drained.
  caf::actor spawn_helper(const std::string& name) {
    return keep(system().spawn([this, name](caf::event_based_actor* self) {
      return caf::behavior{[self](const caf::error& why) { self->quit(why); },
                           [this, self, name](atom::drain) {
                             drained_.push_back(name);
                             self->quit();
                           }};
    }));
  }
  template <class Verb>
  Reply<actors::WorkerStatus> change(Verb verb, const std::string& what) {
    auto reply = ask<actors::WorkerStatus>(supervisor_, verb, what);
    drain();
    return reply;
  }
  std::vector<std::string> workers() {
    const auto reply = ask<actors::WorkerList>(supervisor_, atom::status_v);
    drain();
    std::vector<std::string> names;
    for (const actors::WorkerStatus& worker : reply.value().workers) {
      names.push_back(worker.name);
    }
    return names;
  }
  void end(const std::string& part, const Status& why) {
    caf::anon_send(parts_[part], why.ok() ? caf::error{} : actors::to_caf_error(why));
    drain();
  }
  void finish(RunEnd how, std::string reason = "") {
    RunSummary summary;
    summary.end = how;
    summary.steps = 7;
    summary.reason = std::move(reason);
    caf::anon_send(listener_, atom::finish_v, summary);
    drain();
    end("trainer", {});
  }
  // Returns whether the actor `part` is running.
  bool is_running(const std::string& part) {
    const auto exit = exit_of(parts_[part]);
    return !exit->has_value();
  }

  std::shared_ptr<MemoryCommits> commits_ = std::make_shared<MemoryCommits>();
  Status prepare_failure_;
  int prepared_ = 0;
  int spawned_ = 0;
  int started_ = 0;
  int stopped_ = 0;
  int workers_spawned_ = 0;
  bool spare_part_ = false;
  std::size_t max_workers_ = 256;
  std::uint32_t num_helpers_ = 0;
  std::array<std::string, 2> processes_of_helpers_;  // of those with even and odd numbers
  actors::FailurePolicy helper_policy_ = actors::FailurePolicy::kRestart;
  std::vector<std::string> helpers_spawned_;
  std::vector<std::string> drained_;
  RunOrigin origin_;        // of the last preparation
  RunOrigin spawned_from_;  // of the last spawn
  std::map<std::string, caf::actor> parts_;
  actors::RunListenerActor listener_;
  std::vector<std::string> released_;
  std::vector<std::string> log_;
  std::vector<Result<RunSummary>> ends_;
  actors::SupervisorActor supervisor_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(SupervisorTest, PreparesSpawnsAndStarts) {
  start();
  EXPECT_EQ(prepared_, 1);
  EXPECT_EQ(origin_.incarnation, 4U);
  EXPECT_FALSE(origin_.commit.has_value());
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(workers_spawned_, 1);
  EXPECT_TRUE(ends_.empty());
}

// These parts are larger than the weights, and a message handler would free them.
TEST_F(SupervisorTest, OnlyThePreparationGetsTheOptimizerAndTheStream) {
  commits_->last.emplace();
  commits_->last->weights.version.step = 5;
  commits_->last->optimizer["m"] = {};
  commits_->last->stream.bytes = Buffer::adopt(std::vector<std::uint8_t>{1}, DType::kU8);
  start();
  EXPECT_EQ(origin_.commit->optimizer.size(), 1U);
  EXPECT_EQ(origin_.commit->stream.bytes.size_bytes(), 1U);
  EXPECT_EQ(spawned_from_.commit->weights.version.step, 5U);
  EXPECT_TRUE(spawned_from_.commit->optimizer.empty());
  EXPECT_EQ(spawned_from_.commit->stream.bytes.size_bytes(), 0U);
}

TEST_F(SupervisorTest, EndsAllOthersWhenTheTrainerIsDoneAndReportsOnce) {
  start();
  finish(RunEnd::kSteps);
  ASSERT_EQ(ends_.size(), 1U);
  ASSERT_TRUE(ends_[0].ok());
  EXPECT_EQ(ends_[0].value().steps, 7U);
  EXPECT_FALSE(is_running("stream"));
  EXPECT_FALSE(is_running("worker"));
  EXPECT_TRUE(exit_->has_value());
  EXPECT_TRUE(log_.empty());
}

TEST_F(SupervisorTest, LogsWhyARunEndedBeforeItsSteps) {
  start();
  finish(RunEnd::kNoSignal, "6 groups left untrained since step 7");
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_TRUE(ends_[0].ok());
  EXPECT_EQ(log_, (std::vector<std::string>{"6 groups left untrained since step 7"}));
}

TEST_F(SupervisorTest, ATerminatedCoreActorRestartsTheRunFromItsLastCommit) {
  start();
  commits_->last.emplace();
  commits_->last->weights.version.step = 5;
  end("stream", {Errc::kInternal, "broken"});
  EXPECT_FALSE(is_running("trainer"));  // all others are ended first
  EXPECT_FALSE(is_running("worker"));
  advance(0s);
  EXPECT_EQ(prepared_, 2);
  EXPECT_EQ(origin_.incarnation, 5U);
  EXPECT_EQ(origin_.commit->weights.version.step, 5U);
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(workers_spawned_, 2);
  EXPECT_TRUE(ends_.empty());
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_EQ(log_[0], "stream: broken; restarting from the last commit incarnation=5");
}

TEST_F(SupervisorTest, FailuresThatWouldOnlyRepeatEndTheRunAtOnce) {
  for (const Errc code : {Errc::kInvalidArgument, Errc::kCorruptData, Errc::kResourceExhausted,
                          Errc::kUnimplemented}) {
    ends_.clear();
    start();
    end("trainer", {code, "no space left"});
    ASSERT_EQ(ends_.size(), 1U);
    EXPECT_EQ(ends_[0].status().code(), code);
    EXPECT_EQ(ends_[0].status().message(), "trainer: no space left");
  }
}

TEST_F(SupervisorTest, FailsAfterTooManyFailuresWithoutACommitInBetween) {
  start();
  for (int i = 0; i < 2; ++i) {
    end("stream", {Errc::kInternal, "broken"});
    advance(0s);
    EXPECT_TRUE(ends_.empty());
  }
  end("stream", {Errc::kInternal, "broken"});
  advance(0s);
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status().message(), "stream: broken");
  EXPECT_EQ(spawned_, 3);
}

TEST_F(SupervisorTest, ACommitResetsTheCountOfFailures) {
  start();
  for (std::uint64_t step = 1; step <= 10; ++step) {
    commits_->last.emplace();
    commits_->last->weights.version.step = step;
    end("stream", {Errc::kInternal, "broken"});
    advance(0s);
  }
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(spawned_, 11);
}

TEST_F(SupervisorTest, ATrainerThatEndsWithoutASummaryHasFailed) {
  start();
  end("trainer", {});
  advance(0s);
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(spawned_, 2);
}

TEST_F(SupervisorTest, ATerminatedWorkerIsRestartedAndItsLeasesAreReleased) {
  start();
  end("worker", {Errc::kInternal, "broken"});
  EXPECT_EQ(released_, (std::vector<std::string>{"worker"}));
  EXPECT_EQ(workers_spawned_, 1);
  advance(200ms);
  EXPECT_EQ(workers_spawned_, 2);
  EXPECT_EQ(spawned_, 1);  // the run continues
  ASSERT_EQ(log_.size(), 1U);
  EXPECT_EQ(log_[0], "worker died and will be restarted: broken");
}

TEST_F(SupervisorTest, TheEndOfAProcessGetsOneLine) {
  num_helpers_ = 5;
  processes_of_helpers_ = {"process 0", "process 1"};
  start();
  const Status killed(Errc::kUnavailable, "process 0: killed by signal 9 (Killed)");
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    log_.clear();
    end("helper-4", killed);
    end("helper-0", killed);
    end("helper-1", {Errc::kInternal, "process 1: broken"});
    end("helper-2", {Errc::kInternal, "no memory"});  // a reason of its own
    EXPECT_EQ(log_, (std::vector<std::string>{
                        "process 0: killed by signal 9 (Killed); its 3 workers will be restarted",
                        "process 1: broken; its 2 workers will be restarted",
                        "helper-2 died and will be restarted: no memory"}));
    advance(200ms);
    advance(200ms);
  }
  log_.clear();
  end("helper-3", {Errc::kInternal, "broken"});
  EXPECT_EQ(log_, (std::vector<std::string>{"helper-3 died and will be restarted: broken"}));
}

TEST_F(SupervisorTest, TheDelayDoublesWithEachTerminationInARow) {
  start();
  end("worker", {Errc::kInternal, "broken"});
  advance(200ms);
  end("worker", {Errc::kInternal, "broken"});
  advance(200ms);
  EXPECT_EQ(workers_spawned_, 2);
  advance(200ms);
  EXPECT_EQ(workers_spawned_, 3);
}

TEST_F(SupervisorTest, AWorkerThatKeepsTerminatingFailsTheRun) {
  start();
  for (int i = 0; i < 100 && ends_.empty(); ++i) {
    end("worker", {Errc::kUnavailable, "the program does not start"});
    advance(20s);
  }
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status().message(),
            "worker died 3 times in a row: the program does not start");
}

TEST_F(SupervisorTest, AWorkerThatRanForAWhileResetsTheCount) {
  start();
  for (int i = 0; i < 20; ++i) {
    end("worker", {Errc::kUnavailable, "killed"});
    advance(1s);
    advance(5min);
  }
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(spawned_, 1);
  EXPECT_EQ(workers_spawned_, 21);
}

TEST_F(SupervisorTest, AWorkerIsNotRestartedInARunThatEnds) {
  start();
  end("worker", {Errc::kInternal, "broken"});
  end("stream", {Errc::kInternal, "broken"});
  advance(0s);
  EXPECT_EQ(workers_spawned_, 2);  // the worker of the next incarnation
  advance(1s);
  EXPECT_EQ(workers_spawned_, 2);
}

// -- changes of the workers -----------------------------------------------------------------------

TEST_F(SupervisorTest, AddSpawnsAWorkerThatLaterIncarnationsHaveToo) {
  num_helpers_ = 1;
  start();
  const auto added = change(atom::add_v, "helper");
  ASSERT_TRUE(added.ok()) << added.status().to_string();
  EXPECT_EQ(added.value().name, "helper-1");
  EXPECT_EQ(added.value().kind, "helper");
  EXPECT_EQ(helpers_spawned_, (std::vector<std::string>{"helper-0", "helper-1"}));
  end("helper-1", {Errc::kInternal, "broken"});
  advance(200ms);
  EXPECT_EQ(helpers_spawned_.size(), 3U) << "it is supervised like the others";
  end("stream", {Errc::kInternal, "broken"});
  advance(0s);
  EXPECT_EQ(spawned_, 2);
  EXPECT_EQ(workers(), (std::vector<std::string>{"helper-0", "helper-1", "worker"}));
  EXPECT_EQ(change(atom::add_v, "helper").value().name, "helper-2");
}

TEST_F(SupervisorTest, AddRefusesUnknownRolesAndTooManyWorkers) {
  max_workers_ = 2;
  num_helpers_ = 1;
  start();
  EXPECT_EQ(change(atom::add_v, "helper").status().code(), Errc::kResourceExhausted);
  EXPECT_EQ(workers().size(), 2U);
  max_workers_ = 100;
  start();
  EXPECT_EQ(change(atom::add_v, "baker").status().code(), Errc::kNotFound);
}

TEST_F(SupervisorTest, ADrainedWorkerEndsForGood) {
  num_helpers_ = 2;
  start();
  const auto draining = change(atom::drain_v, "helper-1");
  ASSERT_TRUE(draining.ok()) << draining.status().to_string();
  EXPECT_EQ(draining.value().state, actors::WorkerState::kDraining);
  EXPECT_EQ(drained_, std::vector<std::string>{"helper-1"});
  EXPECT_THAT(log_, ::testing::Contains("helper-1 was drained"));
  EXPECT_EQ(released_, std::vector<std::string>{"helper-1"});
  advance(10s);
  EXPECT_EQ(helpers_spawned_.size(), 2U) << "it is not restarted";
  EXPECT_EQ(change(atom::drain_v, "helper-0").status().code(), Errc::kInvalidArgument);
  end("stream", {Errc::kInternal, "broken"});
  advance(0s);
  EXPECT_EQ(workers(), (std::vector<std::string>{"helper-0", "worker"}));
}

TEST_F(SupervisorTest, ARemovedWorkerEndsAtOnceAndItsLeasesAreReleased) {
  num_helpers_ = 2;
  start();
  EXPECT_EQ(change(atom::remove_v, "helper-9").status().code(), Errc::kNotFound);
  ASSERT_TRUE(change(atom::remove_v, "helper-0").ok());
  EXPECT_FALSE(is_running("helper-0"));
  EXPECT_TRUE(drained_.empty());
  EXPECT_EQ(released_, std::vector<std::string>{"helper-0"});
  advance(10s);
  EXPECT_EQ(helpers_spawned_.size(), 2U);
  EXPECT_EQ(workers(), (std::vector<std::string>{"helper-1", "worker"}));
  EXPECT_EQ(change(atom::remove_v, "helper-1").status().code(), Errc::kInvalidArgument);
  // A worker that waits for its restart does not come back.
  ASSERT_TRUE(change(atom::add_v, "helper").ok());
  end("helper-1", {Errc::kInternal, "broken"});
  ASSERT_TRUE(change(atom::remove_v, "helper-1").ok());
  advance(10s);
  EXPECT_EQ(helpers_spawned_.size(), 3U);
}

TEST_F(SupervisorTest, WorkersAreNotChangedWhileTheRunStartsOrEnds) {
  num_helpers_ = 2;
  start();
  end("stream", {Errc::kInternal, "broken"});  // the next incarnation is being prepared
  EXPECT_EQ(change(atom::add_v, "helper").status().code(), Errc::kUnavailable);
  EXPECT_EQ(change(atom::drain_v, "helper-0").status().code(), Errc::kUnavailable);
  EXPECT_EQ(change(atom::remove_v, "helper-0").status().code(), Errc::kUnavailable);
}

TEST_F(SupervisorTest, APolicyDropsAWorkerAndGoesOn) {
  num_helpers_ = 2;
  helper_policy_ = actors::FailurePolicy::kDrop;
  start();
  end("helper-0", {Errc::kInvalidArgument, "bad"});
  EXPECT_THAT(log_, ::testing::Contains("helper-0 died and is dropped: bad"));
  EXPECT_EQ(released_, std::vector<std::string>{"helper-0"});
  EXPECT_TRUE(ends_.empty());
  end("helper-1", {Errc::kInternal, "broken"});  // the last one: the run cannot go on
  advance(0s);
  EXPECT_EQ(spawned_, 2) << "it returns to its last commit";
  EXPECT_EQ(workers(), (std::vector<std::string>{"helper-1", "worker"}));
}

TEST_F(SupervisorTest, APartOfTheCoreThatMayBeDroppedEndsNoIncarnation) {
  spare_part_ = true;
  start();
  end("spare", {Errc::kInternal, "broken"});
  advance(0s);
  EXPECT_EQ(spawned_, 1);
  EXPECT_TRUE(log_.empty()) << "the parts that use it say so";
  finish(RunEnd::kSteps);
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_TRUE(ends_[0].ok());
}

TEST_F(SupervisorTest, APolicyFailsTheRunWithTheWorker) {
  num_helpers_ = 2;
  helper_policy_ = actors::FailurePolicy::kFailRun;
  start();
  end("helper-0", {Errc::kInternal, "broken"});
  advance(0s);
  EXPECT_EQ(spawned_, 2);
  EXPECT_THAT(log_.back(), HasSubstr("helper-0: broken; restarting from the last commit"));
}

TEST_F(SupervisorTest, StopIsPassedOnToTheTrainer) {
  start();
  caf::anon_send(supervisor_, atom::stop_v);
  drain();
  EXPECT_EQ(stopped_, 1);
  finish(RunEnd::kStopped);
  EXPECT_EQ(ends_.at(0).value().end, RunEnd::kStopped);
}

TEST_F(SupervisorTest, AStopDuringARestartIsPassedOnAfterIt) {
  start();
  end("stream", {Errc::kInternal, "broken"});
  caf::anon_send(supervisor_, atom::stop_v);
  drain();
  EXPECT_EQ(stopped_, 0);
  advance(0s);
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(stopped_, 1);
}

TEST_F(SupervisorTest, ACancelledRunEndsAtOnce) {
  start();
  caf::anon_send(supervisor_, atom::cancel_v);
  drain();
  EXPECT_EQ(stopped_, 0) << "the trainer does not complete its step";
  EXPECT_FALSE(is_running("trainer"));
  EXPECT_FALSE(is_running("worker"));
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status().code(), Errc::kUnavailable);
  EXPECT_EQ(prepared_, 1) << "it does not start again";
}

TEST_F(SupervisorTest, ARunThatIsCancelledWhileItStartsDoesNotBegin) {
  start();
  end("stream", {Errc::kInternal, "broken"});
  caf::anon_send(supervisor_, atom::cancel_v);
  advance(0s);
  EXPECT_EQ(spawned_, 1);
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_THAT(ends_[0].status().message(), HasSubstr("cancelled"));
}

TEST_F(SupervisorTest, ACancelAfterTheSummaryChangesNothing) {
  start();
  RunSummary summary;
  summary.steps = 7;
  caf::anon_send(listener_, atom::finish_v, summary);
  caf::anon_send(supervisor_, atom::cancel_v);
  drain();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_TRUE(ends_[0].ok());
}

TEST_F(SupervisorTest, AFailedPreparationEndsTheRunWithItsError) {
  prepare_failure_ = {Errc::kCorruptData, "model.safetensors: truncated"};
  start();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status().message(), "model.safetensors: truncated");
  EXPECT_EQ(spawned_, 0);
}

TEST_F(SupervisorTest, ACommitThatCannotBeLoadedEndsTheRunWithItsError) {
  commits_->load_failure = {Errc::kCorruptData, "checkpoints/step-4: digest does not match"};
  start();
  ASSERT_EQ(ends_.size(), 1U);
  EXPECT_EQ(ends_[0].status().message(), "checkpoints/step-4: digest does not match");
  EXPECT_EQ(prepared_, 0);
}

}  // namespace
}  // namespace tidemill::test
