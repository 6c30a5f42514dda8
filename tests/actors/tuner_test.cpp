// SPDX-License-Identifier: Apache-2.0
// Tests the contract of actors/tuning/spawn.hpp with runs that the test carries out.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/tuning/spawn.hpp"
#include "actors/tuning/stores.hpp"
#include "tests/support/actor_test.hpp"
#include "tests/support/fake_actors.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::RunReport;
using storage::JobRecord;
using storage::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Duration kStopTime = std::chrono::seconds(20);

// A run that the test reports for.
struct StartedRun {
  JobRecord job;
  std::function<void(RunReport)> report;
  int stops = 0;
  int cancels = 0;
  bool destroyed = false;
};

class FakeRun final : public actors::TuningRun {
public:
  explicit FakeRun(std::shared_ptr<StartedRun> run) : run_(std::move(run)) {}
  ~FakeRun() override { run_->destroyed = true; }
  void request_stop() override { ++run_->stops; }
  void cancel() override { ++run_->cancels; }

private:
  std::shared_ptr<StartedRun> run_;
};

class TunerTest : public ActorTest {
protected:
  void SetUp() override {
    stores_ = actors::open_tuning_stores(folder_.path() / "jobs", machine_).value();
    file_ = stores_.files
                ->put({"rows.jsonl", std::string(storage::kFineTunePurpose), 1},
                      std::as_bytes(std::span(std::string_view("{}\n"))))
                .value()
                .id;
    device_ = keep(spawn_fake_device(system(), fake_));
    spawn();
  }

  void spawn() {
    actors::TunerDeps deps;
    deps.jobs = stores_.jobs;
    deps.port = &port();
    deps.device = device_;
    deps.check = [](const storage::JobSpec& spec) {
      return spec.model == "base" ? Status() : Status(Errc::kNotFound, "model: is not served");
    };
    deps.start_run = [this](const JobRecord& job, std::function<void(RunReport)> report) {
      runs_.push_back(std::make_shared<StartedRun>(StartedRun{job, std::move(report)}));
      return std::make_unique<FakeRun>(runs_.back());
    };
    deps.model_name = [](const JobRecord& job) { return "ft:" + job.id; };
    deps.adapter_path = [](const JobRecord& job) { return "runs/" + job.id; };
    deps.remove_leftovers = [this](storage::JobStore&, const std::set<std::string>& running) {
      removals_.push_back(running);
      return Status();
    };
    deps.stop_time = kStopTime;
    deps.max_running = 2;
    deps.unix_time = [] { return std::int64_t{1000}; };
    deps.log = [this](const std::string& line) { log_.push_back(line); };
    tuner_ = keep(actors::spawn_tuner(system(), std::move(deps)));
    exit_ = exit_of(tuner_);
    caf::anon_send(tuner_, atom::start_v);
    settle();
  }

  // Lets all that is not waiting for the test happen.
  void settle() {
    constexpr int kTrips = 10;  // to the port, one after another
    for (int i = 0; i < kTrips; ++i) {
      advance(std::chrono::milliseconds(1));
    }
  }

  template <class Value, class... Ts>
  Reply<Value> send(Ts... message) {
    auto reply = ask<Value>(tuner_, message...);
    settle();
    return reply;
  }
  std::string create() {
    storage::JobSpec spec;
    spec.model = "base";
    spec.training_file = file_;
    const auto reply = send<JobRecord>(atom::create_v, spec);
    EXPECT_TRUE(reply.ok()) << reply.status().to_string();
    return reply.ok() ? reply.value().id : "";
  }
  JobRecord job(const std::string& id) { return stores_.jobs->find(id).value(); }
  JobState state(const std::string& id) { return job(id).state; }
  void report(std::size_t run, RunReport what) {
    runs_.at(run)->report(std::move(what));
    settle();
  }
  void end(std::size_t run, bool stopped = false) {
    actors::RunEnded ended;
    ended.stopped = stopped;
    ended.adapter = "made by " + runs_.at(run)->job.id;
    ended.steps = 7;
    ended.metrics = R"({"train_loss":0.5})";
    report(run, Result<actors::RunEnded>(ended));
  }
  std::vector<std::string> messages(const std::string& id) {
    storage::PageQuery query;
    query.job = id;
    query.limit = 100;
    std::vector<std::string> all;
    for (const auto& event : stores_.jobs->events(query).value().entries) {
      all.push_back(event.message);
    }
    return all;
  }

  TemporaryDirectory folder_{memory_directory_path()};
  PosixFileSystem machine_;
  actors::TuningStores stores_;
  std::string file_;
  std::shared_ptr<FakeDevice> fake_ = std::make_shared<FakeDevice>();
  actors::DeviceActor device_;
  std::vector<std::shared_ptr<StartedRun>> runs_;
  std::vector<std::string> log_;
  std::vector<std::set<std::string>> removals_;  // the jobs that ran at each
  actors::TunerActor tuner_;
  std::shared_ptr<std::optional<Status>> exit_;
};

TEST_F(TunerTest, AJobRunsAndItsAdapterIsServedBeforeItHasSucceeded) {
  const std::string id = create();
  ASSERT_EQ(runs_.size(), 1U);
  EXPECT_EQ(state(id), JobState::kRunning);
  report(0, actors::RunBegan{{16, 3, 1.0, 0, 1}, 7, 1 << 20U, "16 sequences"});
  EXPECT_EQ(job(id).resolved.batch_size, 16);
  EXPECT_EQ(messages(id).front(),
            "The files are valid. The job takes 7 steps and at most 1.0 MiB of memory. A step "
            "trains on 16 sequences.");
  report(0, actors::StepNote{"Step 1/7: 4 of 16 sequences trained on", 70.0});
  EXPECT_EQ(messages(id).front(), "Step 1/7: 4 of 16 sequences trained on");
  EXPECT_EQ(job(id).estimated_finish, 1070);
  report(0, actors::StepNote{"Step 1/7: 8 of 16 sequences trained on", std::nullopt});
  EXPECT_EQ(job(id).estimated_finish, 1070);
  report(0, actors::RunProgress{3, 7, 120, 40.0, "Step 3/7", R"({"step":3})"});
  EXPECT_EQ(job(id).trained_tokens, 120);
  EXPECT_EQ(job(id).estimated_finish, 1040);
  end(0);
  EXPECT_EQ(state(id), JobState::kRunning);
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests.front().request.name, "ft:" + id);
  EXPECT_EQ(fake_->adapter_requests.front().request.path, "made by " + id);
  EXPECT_EQ(fake_->adapter_requests.front().request.created, 1000);
  fake_->adapter_requests.front().reply({});
  settle();
  EXPECT_EQ(state(id), JobState::kSucceeded);
  EXPECT_EQ(job(id).fine_tuned_model, "ft:" + id);
  EXPECT_TRUE(runs_[0]->destroyed);
  storage::PageQuery query;
  query.job = id;
  const auto checkpoints = stores_.jobs->checkpoints(query).value();
  ASSERT_EQ(checkpoints.entries.size(), 1U);
  EXPECT_EQ(checkpoints.entries[0].step_number, 7);
  EXPECT_EQ(checkpoints.entries[0].fine_tuned_model_checkpoint, "ft:" + id);
  EXPECT_THAT(log_, ElementsAre());
}

TEST_F(TunerTest, AJobOfOneStepTakesOneStep) {
  const std::string id = create();
  report(0, actors::RunBegan{{}, 1, 1 << 20, "1 sequence"});
  EXPECT_THAT(messages(id).front(), HasSubstr("The job takes 1 step and at most 1.0 MiB"));
}

TEST_F(TunerTest, JobsWaitInOrderForAPlace) {
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    ids.push_back(create());
  }
  ASSERT_EQ(runs_.size(), 2U);
  EXPECT_EQ(state(ids[2]), JobState::kQueued);
  report(1, Result<actors::RunEnded>(Status(Errc::kInvalidArgument, "rows.jsonl:3: no answer")));
  EXPECT_EQ(state(ids[1]), JobState::kFailed);
  EXPECT_EQ(job(ids[1]).error.message, "rows.jsonl:3: no answer");
  ASSERT_EQ(runs_.size(), 3U);
  EXPECT_EQ(runs_[2]->job.id, ids[2]);
  const auto cancelled = send<JobRecord>(atom::cancel_v, ids[3]);
  EXPECT_EQ(cancelled.value().state, JobState::kCancelled);
  end(0, true);
  EXPECT_EQ(runs_.size(), 3U) << "the last one was cancelled";
}

TEST_F(TunerTest, APausedJobRunsAgainOnceItsRunHasEnded) {
  const std::string id = create();
  const auto paused = send<JobRecord>(atom::pause_v, id);
  EXPECT_EQ(paused.value().state, JobState::kPaused);
  EXPECT_EQ(runs_[0]->stops, 1);
  const auto resumed = send<JobRecord>(atom::resume_v, id);
  EXPECT_EQ(resumed.value().state, JobState::kQueued);
  EXPECT_EQ(runs_.size(), 1U) << "two runs of one job at a time";
  EXPECT_THAT(messages(id).front(), HasSubstr("continues once its last run has ended"));
  end(0, true);
  ASSERT_EQ(runs_.size(), 2U);
  EXPECT_EQ(runs_[1]->job.id, id);
  EXPECT_EQ(state(id), JobState::kRunning);
}

TEST_F(TunerTest, AResumedJobHasNoEstimateOfTheRunBefore) {
  const std::string id = create();
  report(0, actors::RunProgress{3, 7, 120, 40.0, "Step 3/7", R"({"step":3})"});
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, id).ok());
  report(0, actors::RunProgress{4, 7, 160, 30.0, "Step 4/7", R"({"step":4})"});
  end(0, true);
  EXPECT_TRUE(send<JobRecord>(atom::resume_v, id).ok());
  EXPECT_EQ(state(id), JobState::kRunning);
  EXPECT_EQ(job(id).estimated_finish, 0);
  report(1, actors::RunProgress{5, 7, 200, 20.0, "Step 5/7", R"({"step":5})"});
  EXPECT_EQ(job(id).estimated_finish, 1020);
}

TEST_F(TunerTest, ARepeatedCancelOrPauseChangesNothing) {
  const std::string id = create();
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, id).ok());
  EXPECT_EQ(send<JobRecord>(atom::pause_v, id).value().state, JobState::kPaused);
  end(0, true);
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  const auto events = messages(id);
  EXPECT_EQ(send<JobRecord>(atom::cancel_v, id).value().state, JobState::kCancelled);
  EXPECT_EQ(messages(id), events);
}

TEST_F(TunerTest, ACancelledRunEndsAtOnceAndLeavesItsPlace) {
  const std::string id = create();
  create();
  const std::string waiting = create();
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  EXPECT_EQ(runs_[0]->cancels, 1);
  EXPECT_EQ(runs_[1]->cancels, 0);
  end(0, true);
  EXPECT_EQ(state(id), JobState::kCancelled);
  ASSERT_EQ(runs_.size(), 3U);
  EXPECT_EQ(runs_[2]->job.id, waiting);
}

TEST_F(TunerTest, WhatACancelledOrFailedJobHasPublishedIsUnloaded) {
  const std::string cancelled = create();
  const std::string failed = create();
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, cancelled).ok());
  EXPECT_TRUE(fake_->adapter_requests.empty()) << "its run has not ended";
  end(0, true);
  report(1, Result<actors::RunEnded>(Status(Errc::kInvalidArgument, "rows.jsonl:3: no answer")));
  ASSERT_EQ(fake_->adapter_requests.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& request = fake_->adapter_requests[i].request;
    EXPECT_EQ(request.action, actors::AdapterAction::kUnload);
    EXPECT_EQ(request.name, "ft:" + (i == 0 ? cancelled : failed));
  }
}

TEST_F(TunerTest, WhatAPausedJobHasPublishedIsUnloadedWhenItIsCancelled) {
  const std::string id = create();
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, id).ok());
  end(0, true);
  EXPECT_TRUE(fake_->adapter_requests.empty());
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests[0].request.action, actors::AdapterAction::kUnload);
  EXPECT_EQ(fake_->adapter_requests[0].request.name, "ft:" + id);
}

TEST_F(TunerTest, ARunThatDoesNotStopInTimeIsCancelled) {
  const std::string id = create();
  const std::string other = create();
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, id).ok());
  advance(kStopTime / 2);
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, other).ok());
  EXPECT_EQ(runs_[0]->cancels, 0);
  advance(kStopTime / 2);
  settle();
  EXPECT_EQ(runs_[0]->cancels, 1);
  EXPECT_EQ(runs_[1]->cancels, 0) << "it has half of its time left";
  EXPECT_THAT(messages(id).front(), HasSubstr("ended within a step"));
  end(0, true);
  EXPECT_EQ(state(id), JobState::kPaused);
  advance(kStopTime / 2);
  settle();
  EXPECT_EQ(runs_[1]->cancels, 1);
  EXPECT_TRUE(send<JobRecord>(atom::resume_v, id).ok());
  EXPECT_EQ(state(id), JobState::kRunning);
}

TEST_F(TunerTest, ARunThatStopsInTimeIsNotCancelled) {
  const std::string id = create();
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, id).ok());
  end(0, true);
  EXPECT_TRUE(send<JobRecord>(atom::resume_v, id).ok());
  advance(kStopTime * 2);
  settle();
  EXPECT_EQ(runs_.at(0)->cancels, 0);
  EXPECT_EQ(runs_.at(1)->cancels, 0);
  EXPECT_EQ(state(id), JobState::kRunning);
}

TEST_F(TunerTest, AStoppedTunerCancelsRunsThatDoNotStopInTime) {
  const std::string id = create();
  caf::anon_send(tuner_, atom::stop_v);
  settle();
  EXPECT_EQ(runs_[0]->cancels, 0);
  advance(kStopTime);
  settle();
  EXPECT_EQ(runs_[0]->cancels, 1);
  end(0, true);
  EXPECT_TRUE(exit_->has_value());
  EXPECT_EQ(state(id), JobState::kRunning) << "the next server continues it";
}

TEST_F(TunerTest, AJobThatIsCancelledWhileItsAdapterIsLoadedIsNotServed) {
  const std::string id = create();
  end(0);
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  fake_->adapter_requests.front().reply({});
  settle();
  EXPECT_EQ(state(id), JobState::kCancelled);
  ASSERT_EQ(fake_->adapter_requests.size(), 2U);
  EXPECT_EQ(fake_->adapter_requests.back().request.action, actors::AdapterAction::kUnload);
  EXPECT_EQ(fake_->adapter_requests.back().request.name, "ft:" + id);
  EXPECT_TRUE(log_.empty()) << log_.front();
}

TEST_F(TunerTest, AnAdapterThatCannotBeServedFailsItsJob) {
  const std::string id = create();
  end(0);
  fake_->adapter_requests.front().fail({Errc::kInvalidArgument, "no tensors"});
  settle();
  EXPECT_EQ(state(id), JobState::kFailed);
  EXPECT_THAT(job(id).error.message, HasSubstr("no tensors"));
}

TEST_F(TunerTest, AJobWhoseAdapterHasNoRoomHasSucceededAndIsServedByTheNextServer) {
  const std::string id = create();
  end(0);
  fake_->adapter_requests.back().fail({Errc::kResourceExhausted, "no memory in /jobs"});
  settle();
  ASSERT_EQ(fake_->adapter_requests.size(), 3U);
  EXPECT_EQ(fake_->adapter_requests[1].request.action, actors::AdapterAction::kUnload)
      << "an older version that the run has published";
  EXPECT_EQ(fake_->adapter_requests[1].request.name, "ft:" + id);
  EXPECT_EQ(fake_->adapter_requests[2].request.path, "made by " + id);
  fake_->adapter_requests[2].fail({Errc::kResourceExhausted, "no memory in /jobs"});
  settle();
  EXPECT_EQ(state(id), JobState::kSucceeded);
  EXPECT_EQ(job(id).fine_tuned_model, "ft:" + id);
  EXPECT_EQ(job(id).error, storage::JobError());
  storage::PageQuery query;
  query.job = id;
  const storage::JobEvent event = stores_.jobs->events(query).value().entries.at(0);
  EXPECT_EQ(event.level, storage::EventLevel::kWarn);
  EXPECT_THAT(event.message, ::testing::AllOf(HasSubstr("serve.adapter_bytes"), HasSubstr(id),
                                              HasSubstr("DELETE /v1/models/ID"),
                                              HasSubstr("POST /v1/load_lora_adapter"),
                                              ::testing::Not(HasSubstr("/jobs"))));
  EXPECT_THAT(log_, ElementsAre(::testing::AllOf(HasSubstr("no memory in /jobs"),
                                                 HasSubstr("made by " + id))));
  fake_->adapter_requests.clear();
  spawn();
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests.back().request.path, "runs/" + id);
}

TEST_F(TunerTest, AJobThatTheDiskHasNoRoomForPauses) {
  const std::string id = create();
  const std::string other = create();
  report(0, Result<actors::RunEnded>(Status(Errc::kResourceExhausted, "No space left on device")));
  EXPECT_EQ(state(id), JobState::kPaused);
  EXPECT_EQ(job(id).error.message, "No space left on device");
  EXPECT_THAT(messages(id).front(), HasSubstr("paused: No space left on device"));
  EXPECT_EQ(state(other), JobState::kRunning);
  EXPECT_TRUE(send<JobRecord>(atom::resume_v, id).ok());
  EXPECT_EQ(state(id), JobState::kRunning);
  EXPECT_EQ(job(id).error, storage::JobError());
  ASSERT_EQ(runs_.size(), 3U);
  EXPECT_EQ(runs_[2]->job.id, id);
}

TEST_F(TunerTest, ACancelledJobTakesNoMoreReports) {
  const std::string id = create();
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  const JobRecord cancelled = job(id);
  report(0, actors::RunBegan{{8, 1, 1.0, 0, 1}, 30, 0, "8 sequences"});
  report(0, actors::RunProgress{1, 30, 100, 1.0, "Step 1/30", R"({"step":1})"});
  EXPECT_EQ(job(id), cancelled);
  EXPECT_EQ(messages(id).front(), "The job was cancelled.");
}

TEST_F(TunerTest, WarningsOfARunAreEvents) {
  const std::string id = create();
  report(0, actors::RunWarning{"data.train: rows skipped: 1"});
  storage::PageQuery query;
  query.job = id;
  const storage::JobEvent event = stores_.jobs->events(query).value().entries.at(0);
  EXPECT_EQ(event.message, "data.train: rows skipped: 1");
  EXPECT_EQ(event.level, storage::EventLevel::kWarn);
  EXPECT_EQ(state(id), JobState::kRunning);
}

TEST_F(TunerTest, WhatRunsLeaveIsRemovedOnceTheyHaveEnded) {
  ASSERT_THAT(removals_, ElementsAre(::testing::IsEmpty())) << "at the start";
  const std::string id = create();
  const std::string other = create();
  end(0);
  fake_->adapter_requests.front().reply({});
  settle();
  EXPECT_THAT(removals_.back(), ElementsAre(other));
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, other).ok());
  EXPECT_EQ(removals_.size(), 2U) << "the run of a cancelled job may still write";
  end(1, true);
  EXPECT_THAT(removals_.back(), ::testing::IsEmpty());
}

TEST_F(TunerTest, RequestsThatCannotBeMetAreRefused) {
  storage::JobSpec spec;
  spec.model = "other";
  spec.training_file = file_;
  EXPECT_EQ(send<JobRecord>(atom::create_v, spec).status().code(), Errc::kNotFound);
  EXPECT_EQ(send<JobRecord>(atom::get_v, std::string("ftjob-1")).status().code(), Errc::kNotFound);
  const std::string id = create();
  const Status resumed = send<JobRecord>(atom::resume_v, id).status();
  EXPECT_EQ(resumed.code(), Errc::kInvalidArgument);
  EXPECT_THAT(resumed.message(), HasSubstr(": only a paused job can be resumed; the state of this "
                                           "one is "));
  EXPECT_EQ(state(id), JobState::kRunning);
  EXPECT_EQ(runs_.size(), 1U);
}

TEST_F(TunerTest, AStoppedTunerEndsAfterItsRunsAndTheNextOneContinues) {
  const std::string running = create();
  const std::string other = create();
  const std::string waiting = create();
  const std::string paused = create();
  EXPECT_TRUE(send<JobRecord>(atom::pause_v, paused).ok());
  caf::anon_send(tuner_, atom::stop_v);
  settle();
  EXPECT_EQ(runs_[0]->stops, 1);
  EXPECT_FALSE(exit_->has_value());
  EXPECT_EQ(send<JobRecord>(atom::resume_v, paused).status().code(), Errc::kUnavailable);
  end(0, true);
  report(1, Result<actors::RunEnded>(Status(Errc::kUnavailable, "the device has ended")));
  EXPECT_TRUE(exit_->has_value());
  EXPECT_EQ(state(running), JobState::kRunning);
  EXPECT_EQ(state(other), JobState::kRunning) << "a failure of the end of the server";
  EXPECT_EQ(state(waiting), JobState::kQueued);

  spawn();
  ASSERT_EQ(runs_.size(), 4U);
  EXPECT_EQ(runs_[2]->job.id, running);
  EXPECT_EQ(runs_[3]->job.id, other);
  EXPECT_EQ(state(paused), JobState::kPaused);
  end(2);
  fake_->adapter_requests.front().reply({});
  settle();
  EXPECT_EQ(runs_.back()->job.id, waiting);
  EXPECT_THAT(messages(running), ::testing::Contains("The server has started again."));
}

TEST_F(TunerTest, CancelledJobsKeepNoModelFromBeingServedAgain) {
  const std::string id = create();
  end(0);
  fake_->adapter_requests.back().reply({});
  settle();
  for (int i = 0; i < 101; ++i) {
    const std::string other = create();
    EXPECT_TRUE(send<JobRecord>(atom::cancel_v, other).ok());
    end(runs_.size() - 1, true);
  }
  fake_->adapter_requests.clear();
  spawn();
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests.back().request.path, "runs/" + id);
}

TEST_F(TunerTest, AdaptersOfEarlierJobsAreServedUntilOneDoesNotFit) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < 3; ++i) {
    ids.push_back(create());
    end(i);
    fake_->adapter_requests.back().reply({});
    settle();
  }
  fake_->adapter_requests.clear();
  spawn();
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests.back().request.path, "runs/" + ids[2]) << "the newest first";
  fake_->adapter_requests.back().reply({});
  settle();
  ASSERT_EQ(fake_->adapter_requests.size(), 2U);
  fake_->adapter_requests.back().fail({Errc::kResourceExhausted, "no memory"});
  settle();
  EXPECT_EQ(fake_->adapter_requests.size(), 2U);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("no memory"), HasSubstr("no memory")));
  for (const std::string& id : {ids[0], ids[1]}) {
    EXPECT_THAT(messages(id), ::testing::Contains(HasSubstr("The model is not served")));
  }
}

TEST_F(TunerTest, TheModelOfAJobThatHasNotEndedIsNotDeleted) {
  const std::string id = create();
  EXPECT_EQ(send<JobRecord>(atom::remove_v, "ft:" + id).status().message(),
            "model: \"ft:" + id + "\" is trained by the job " + id +
                ", which is running; cancel the job first");
  EXPECT_TRUE(send<JobRecord>(atom::cancel_v, id).ok());
  EXPECT_EQ(send<JobRecord>(atom::remove_v, "ft:" + id).status().code(), Errc::kNotFound);
}

TEST_F(TunerTest, ADeletedModelIsUnloadedAndNotServedAgain) {
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < 3; ++i) {
    ids.push_back(create());
    end(i);
    fake_->adapter_requests.back().reply({});
    settle();
  }
  fake_->adapter_requests.clear();
  const auto reply = send<JobRecord>(atom::remove_v, "ft:" + ids[0]);
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests.back().request.action, actors::AdapterAction::kUnload);
  EXPECT_EQ(fake_->adapter_requests.back().request.name, "ft:" + ids[0]);
  fake_->adapter_requests.back().fail({Errc::kNotFound, "is not loaded"});
  settle();
  EXPECT_EQ(reply.value().id, ids[0]);
  EXPECT_EQ(reply.value().fine_tuned_model, "");
  EXPECT_EQ(send<JobRecord>(atom::remove_v, "ft:" + ids[0]).status().code(), Errc::kNotFound);

  fake_->adapter_requests.clear();
  spawn();
  ASSERT_EQ(fake_->adapter_requests.size(), 1U);
  EXPECT_EQ(fake_->adapter_requests[0].request.name, "ft:" + ids[2]);
  // One that is deleted while it is being loaded is unloaded afterwards.
  send<JobRecord>(atom::remove_v, "ft:" + ids[2]);
  ASSERT_EQ(fake_->adapter_requests.size(), 2U);
  fake_->adapter_requests[1].fail({Errc::kNotFound, "is not loaded"});
  fake_->adapter_requests[0].reply({});
  settle();
  ASSERT_EQ(fake_->adapter_requests.size(), 4U);
  EXPECT_EQ(fake_->adapter_requests[2].request.action, actors::AdapterAction::kUnload);
  EXPECT_EQ(fake_->adapter_requests[2].request.name, "ft:" + ids[2]);
  EXPECT_EQ(fake_->adapter_requests[3].request.name, "ft:" + ids[1]);
  fake_->adapter_requests[3].reply({});
  settle();
  EXPECT_EQ(fake_->adapter_requests.size(), 4U);
}

}  // namespace
}  // namespace tidemill::test
