// SPDX-License-Identifier: Apache-2.0
// Tests the journal of jobs: states, events, checkpoints, pages and limits.
#include <atomic>
#include <set>
#include <thread>

#include "tests/storage/jobs/job_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobStoreTest : public JobsTest {
protected:
  void SetUp() override { reopen(); }
  std::vector<std::string> messages(const std::string& job) {
    std::vector<std::string> found;
    for (const JobEvent& event : jobs().events({job, "", 1000}).value().entries) {
      found.push_back(event.message);
    }
    return found;
  }
};

TEST_F(JobStoreTest, KeepsAJob) {
  const JobSpec spec = some_spec(put_file("{}\n"));
  const auto created = jobs().create(spec, 40);
  ASSERT_TRUE(created.ok()) << created.status().to_string();
  const JobRecord job = created.value();
  EXPECT_THAT(job.id, ::testing::MatchesRegex("ftjob-[A-Za-z0-9]+"));
  EXPECT_EQ(job.state, JobState::kValidatingFiles);
  EXPECT_EQ(job.created_at, 40);
  EXPECT_GE(job.spec.seed, 0);
  JobSpec expected = spec;
  expected.seed = job.spec.seed;
  EXPECT_EQ(job.spec, expected);
  reopen();
  EXPECT_EQ(jobs().find(job.id).value(), job);
  EXPECT_THAT(messages(job.id), ElementsAre("Created fine-tuning job: " + job.id));
}

TEST_F(JobStoreTest, KeepsEveryChange) {
  const std::string id = create_job();
  const auto step = [&](const JobChange& change) {
    const auto changed = jobs().change(id, change);
    ASSERT_TRUE(changed.ok()) << changed.status().to_string();
    reopen();
    EXPECT_EQ(jobs().find(id).value(), changed.value());
  };
  step(change_to(JobState::kQueued, "queued"));
  JobChange runs = change_to(JobState::kRunning, "runs");
  runs.resolved = JobHyperparameters{4, 2, 1.5, 10, 3};
  runs.estimated_finish = 99;
  step(runs);
  JobChange progress;
  progress.trained_tokens = 1234;
  step(progress);
  JobChange ends = change_to(JobState::kSucceeded, "done");
  ends.now = 77;
  ends.fine_tuned_model = "ft:base:mine";
  ends.result_files = std::vector<std::string>{put_file("r")};
  step(ends);
  const JobRecord job = jobs().find(id).value();
  EXPECT_EQ(job.finished_at, 77);
  EXPECT_EQ(job.estimated_finish, 0);
  EXPECT_EQ(job.trained_tokens, 1234);
  EXPECT_EQ(job.resolved.learning_rate_multiplier, 1.5);
  EXPECT_TRUE(job.is_resolved);
  EXPECT_EQ(job.fine_tuned_model, "ft:base:mine");
  EXPECT_EQ(job.result_files.size(), 1U);
  EXPECT_THAT(messages(id),
              ElementsAre("done", "runs", "queued", StartsWith("Created fine-tuning job")));
}

TEST_F(JobStoreTest, ChecksEveryTransition) {
  using S = JobState;
  const std::set<std::pair<S, S>> allowed = {{S::kValidatingFiles, S::kQueued},
                                             {S::kValidatingFiles, S::kFailed},
                                             {S::kValidatingFiles, S::kCancelled},
                                             {S::kQueued, S::kRunning},
                                             {S::kQueued, S::kPaused},
                                             {S::kQueued, S::kFailed},
                                             {S::kQueued, S::kCancelled},
                                             {S::kRunning, S::kPaused},
                                             {S::kRunning, S::kQueued},
                                             {S::kRunning, S::kSucceeded},
                                             {S::kRunning, S::kFailed},
                                             {S::kRunning, S::kCancelled},
                                             {S::kPaused, S::kQueued},
                                             {S::kPaused, S::kFailed},
                                             {S::kPaused, S::kCancelled}};
  const std::map<S, std::vector<S>> ways = {
      {S::kValidatingFiles, {}},
      {S::kQueued, {S::kQueued}},
      {S::kRunning, {S::kQueued, S::kRunning}},
      {S::kPaused, {S::kQueued, S::kPaused}},
      {S::kSucceeded, {S::kQueued, S::kRunning, S::kSucceeded}},
      {S::kFailed, {S::kFailed}},
      {S::kCancelled, {S::kCancelled}}};
  int tried = 0;
  for (const auto& [from, way] : ways) {
    for (const auto& [to, unused] : ways) {
      const std::string id = create_job();
      for (const S state : way) {
        ASSERT_TRUE(jobs().change(id, change_to(state)).ok());
      }
      const JobRecord before = jobs().find(id).value();
      const std::size_t events = messages(id).size();
      const auto changed = jobs().change(id, change_to(to));
      const bool may = allowed.contains({from, to});
      EXPECT_EQ(changed.ok(), may) << job_state_name(from) << " to " << job_state_name(to);
      EXPECT_EQ(messages(id).size(), events + (may ? 1 : 0));
      if (!may) {
        EXPECT_THAT(changed.status().message(),
                    AllOf(StartsWith(id + ": a job that "), HasSubstr(" cannot ")));
        EXPECT_EQ(jobs().find(id).value(), before);
      }
      ++tried;
    }
  }
  EXPECT_EQ(tried, 49);
}

TEST_F(JobStoreTest, SaysWhyAJobCannotChangeItsState) {
  const std::string id = create_job();
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kQueued)).ok());
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kRunning)).ok());
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kSucceeded)).ok());
  EXPECT_EQ(jobs().change(id, change_to(JobState::kPaused)).status().message(),
            id + ": a job that has succeeded cannot be paused");
}

TEST_F(JobStoreTest, RefusesChangesThatSayTooLittleOrTooMuch) {
  const std::string id = create_job();
  JobChange silent;
  silent.state = JobState::kQueued;
  EXPECT_EQ(jobs().change(id, silent).status().message(),
            id + ": a change of the state needs an event");
  const std::string longer(JobStore::kMaxDataBytes + 1, 'x');
  EXPECT_THAT(jobs().change(id, change_to(JobState::kQueued, longer)).status().message(),
              StartsWith("message: has 65537 bytes"));
  EXPECT_EQ(jobs().find(id).value().state, JobState::kValidatingFiles);
  EXPECT_EQ(jobs().change("ftjob-x", change_to(JobState::kQueued)).status().code(),
            Errc::kNotFound);
  EXPECT_EQ(jobs().add_event("ftjob-x", some_event("x")).status().code(), Errc::kNotFound);
  JobSpec large = some_spec(put_file("x"));
  large.overrides = std::string(JobStore::kMaxSpecBytes, 'x');
  EXPECT_EQ(jobs().create(large, 1).status().code(), Errc::kInvalidArgument);
}

TEST_F(JobStoreTest, NamesFilesThatItCannotUse) {
  JobSpec spec = some_spec("file-none");
  EXPECT_EQ(jobs().create(spec, 1).status().message(),
            R"(training_file: "file-none": there is no such file)");
  EXPECT_EQ(jobs().create(spec, 1).status().code(), Errc::kNotFound);
  spec.training_file = put_file("x");
  spec.validation_file = put("x", "r", kResultsPurpose).value().id;
  EXPECT_EQ(jobs().create(spec, 1).status().message(),
            "validation_file: the purpose of the file must be \"fine-tune\", and is "
            "\"fine-tune-results\"");
  EXPECT_EQ(jobs().list({}).value().entries.size(), 0U);
}

TEST_F(JobStoreTest, ListsJobsInPages) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(create_job());
  }
  const auto listed = [&](const PageQuery& query) {
    std::vector<std::string> found;
    for (const JobRecord& job : jobs().list(query).value().entries) {
      found.push_back(job.id);
    }
    return found;
  };
  EXPECT_THAT(listed({"", "", 2}), ElementsAre(ids[4], ids[3]));
  EXPECT_TRUE(jobs().list({"", "", 2}).value().has_more);
  EXPECT_THAT(listed({"", ids[3], 3}), ElementsAre(ids[2], ids[1], ids[0]));
  EXPECT_FALSE(jobs().list({"", ids[3], 3}).value().has_more);
  EXPECT_EQ(jobs().list({"", "ftjob-x", 3}).status().code(), Errc::kNotFound);
  ASSERT_TRUE(jobs().change(ids[1], change_to(JobState::kFailed)).ok());
  const auto rest = jobs().unfinished().value();
  ASSERT_EQ(rest.size(), 4U);
  EXPECT_EQ(rest[0].id, ids[0]);
  EXPECT_EQ(rest[1].id, ids[2]);
}

TEST_F(JobStoreTest, DropsTheOldestMetricsFirst) {
  job_limits_.max_events = 5;
  reopen();
  const std::string other = create_job();
  const std::string id = create_job();
  for (const std::string name : {"m1", "a", "m2", "m3", "b", "m4", "c"}) {
    const bool metrics = name[0] == 'm';
    ASSERT_TRUE(
        jobs()
            .add_event(id, some_event(name, metrics ? EventType::kMetrics : EventType::kMessage))
            .ok());
  }
  const std::string first = "Created fine-tuning job: " + id;
  EXPECT_THAT(messages(id), ElementsAre("c", "m4", "b", "a", first));
  for (const std::string name : {"d", "e", "m5"}) {
    ASSERT_TRUE(jobs()
                    .add_event(id, some_event(name, name[0] == 'm' ? EventType::kMetrics
                                                                   : EventType::kMessage))
                    .ok());
  }
  EXPECT_THAT(messages(id), ElementsAre("m5", "e", "d", "c", "b"));
  EXPECT_EQ(messages(other).size(), 1U);
  job_limits_.max_events = 2;
  reopen();
  ASSERT_TRUE(jobs().add_event(id, some_event("f")).ok());
  EXPECT_THAT(messages(id), ElementsAre("f", "e"));
}

TEST_F(JobStoreTest, ListsEventsInPages) {
  const std::string id = create_job();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    const auto event =
        jobs().add_event(id, some_event("e" + std::to_string(i), EventType::kMetrics));
    ids.push_back(event.value().id);
    reopen();
  }
  const auto page = jobs().events({id, ids[3], 2}).value();
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_TRUE(page.has_more);
  EXPECT_EQ(page.entries[0].id, ids[2]);
  EXPECT_EQ(page.entries[0].data, R"({"step": 1})");
  EXPECT_EQ(page.entries[0].type, EventType::kMetrics);
  EXPECT_EQ(jobs().events({"ftjob-x", "", 2}).status().code(), Errc::kNotFound);
  EXPECT_EQ(jobs().events({create_job(), ids[3], 2}).status().code(), Errc::kNotFound);
}

TEST_F(JobStoreTest, KeepsOneCheckpointOfAStep) {
  job_limits_.max_checkpoints = 3;
  reopen();
  const std::string id = create_job();
  const auto add = [&](std::int64_t step, const std::string& model) {
    return jobs().add_checkpoint(id, {"", 9, step, R"({"train_loss": 1.5})", model});
  };
  const JobCheckpoint first = add(10, "a").value();
  EXPECT_THAT(first.id, StartsWith("ftckpt-"));
  const JobCheckpoint second = add(20, "b").value();
  const JobCheckpoint again = add(10, "c").value();
  EXPECT_EQ(again.id, first.id);
  ASSERT_TRUE(add(30, "d").ok());
  EXPECT_EQ(add(40, "e").status().code(), Errc::kResourceExhausted);
  EXPECT_TRUE(add(30, "f").ok());
  reopen();
  const auto page = jobs().checkpoints({id, "", 2}).value();
  EXPECT_EQ(page.job, id);
  EXPECT_TRUE(page.has_more);
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[0].fine_tuned_model_checkpoint, "f");
  EXPECT_EQ(page.entries[1], second);
  const auto rest = jobs().checkpoints({id, second.id, 2}).value();
  ASSERT_EQ(rest.entries.size(), 1U);
  EXPECT_EQ(rest.entries[0], again);
}

TEST_F(JobStoreTest, AJobSucceedsTogetherWithItsCheckpoint) {
  const std::string id = create_job();
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kQueued)).ok());
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kRunning)).ok());
  JobChange ends = change_to(JobState::kSucceeded);
  ends.checkpoint = JobCheckpoint{"", 9, 10, std::string(JobStore::kMaxDataBytes + 1, 'x'), "a"};
  EXPECT_EQ(jobs().change(id, ends).status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(jobs().find(id).value().state, JobState::kRunning);
  ends.checkpoint->metrics = "{}";
  ASSERT_TRUE(jobs().change(id, ends).ok());
  reopen();
  const auto page = jobs().checkpoints({id, "", 2}).value();
  ASSERT_EQ(page.entries.size(), 1U);
  EXPECT_EQ(page.entries[0].step_number, 10);
}

TEST_F(JobStoreTest, AModelIsDeletedWithItsCheckpoint) {
  const std::string id = create_job();
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kQueued)).ok());
  ASSERT_TRUE(jobs().change(id, change_to(JobState::kRunning)).ok());
  JobChange ends = change_to(JobState::kSucceeded);
  ends.fine_tuned_model = "ft:a";
  ends.checkpoint = JobCheckpoint{"", 9, 10, "{}", "ft:a"};
  ASSERT_TRUE(jobs().change(id, ends).ok());
  EXPECT_EQ(jobs().remove_model("ft:b", 70).status().code(), Errc::kNotFound);
  create_job();
  EXPECT_EQ(jobs().remove_model("", 70).status().code(), Errc::kNotFound);
  const JobRecord changed = jobs().remove_model("ft:a", 70).value();
  EXPECT_EQ(changed.id, id);
  reopen();
  EXPECT_EQ(jobs().find(id).value(), changed);
  EXPECT_EQ(changed.fine_tuned_model, "");
  EXPECT_EQ(changed.state, JobState::kSucceeded);
  EXPECT_TRUE(jobs().checkpoints({id, "", 2}).value().entries.empty());
  EXPECT_EQ(jobs().events({id, "", 1}).value().entries.at(0).message,
            "The model ft:a was deleted.");
  EXPECT_EQ(jobs().remove_model("ft:a", 70).status().code(), Errc::kNotFound);
}

TEST_F(JobStoreTest, ListsJobsByTheirMetadata) {
  std::vector<std::string> ids;
  for (int i = 0; i < 6; ++i) {
    JobSpec spec = some_spec(put_file("{}\n"));
    spec.metadata = {{"team", i % 2 == 0 ? "a" : "b"}, {"index", std::to_string(i)}};
    ids.push_back(jobs().create(spec, 1).value().id);
  }
  PageQuery query;
  query.metadata = {{"team", "a"}};
  query.limit = 2;
  const JobPage page = jobs().list(query).value();
  ASSERT_EQ(page.entries.size(), 2U);
  EXPECT_EQ(page.entries[0].id, ids[4]);
  EXPECT_EQ(page.entries[1].id, ids[2]);
  EXPECT_TRUE(page.has_more);
  query.after = ids[2];
  const JobPage rest = jobs().list(query).value();
  ASSERT_EQ(rest.entries.size(), 1U);
  EXPECT_EQ(rest.entries[0].id, ids[0]);
  EXPECT_FALSE(rest.has_more);
  query = PageQuery();
  query.metadata = {{"team", "a"}, {"index", "1"}};
  EXPECT_TRUE(jobs().list(query).value().entries.empty());
}

TEST_F(JobStoreTest, ANewJobReplacesTheOldestThatHasEnded) {
  job_limits_.max_jobs = 2;
  reopen();
  const std::string a = create_job();
  const std::string b = create_job();
  EXPECT_EQ(jobs().create(some_spec(put_file("x")), 1).status().message(),
            "the server has 2 jobs that have not ended, its limit");
  ASSERT_TRUE(jobs().change(b, change_to(JobState::kCancelled)).ok());
  const std::filesystem::path runs = root() / "runs";
  std::filesystem::create_directories(runs / a);
  std::filesystem::create_directories(runs / b / "export");
  const std::string c = create_job();
  EXPECT_THAT(list_directory(runs).value(), ::testing::ElementsAre(a));
  EXPECT_EQ(jobs().find(b).status().code(), Errc::kNotFound);
  EXPECT_EQ(jobs().events({b, "", 2}).status().code(), Errc::kNotFound);
  EXPECT_TRUE(jobs().find(a).ok());
  EXPECT_TRUE(jobs().find(c).ok());
}

TEST_F(JobStoreTest, ThreadsShareTheStores) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20;
  file_limits_.max_files = kThreads * kRounds;
  reopen();
  const std::string job = jobs().create(some_spec(put_file("{}")), 1).value().id;
  std::vector<std::thread> threads;
  std::atomic<int> refused = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        refused += put("x").ok() ? 0 : 1;
        EXPECT_TRUE(jobs().add_event(job, some_event("e")).ok());
        EXPECT_TRUE(files().list({}).ok());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(refused, 1);  // with the file of the job, one more than the limit
  EXPECT_EQ(names().size(), std::size_t{kThreads * kRounds});
  EXPECT_EQ(messages(job).size(), std::size_t{kThreads * kRounds} + 1);
}

TEST_F(JobStoreTest, OnlyOneProcessOpensADirectory) {
  const auto second = try_open(machine_);
  EXPECT_EQ(second.status().code(), Errc::kUnavailable) << second.status().to_string();
}

}  // namespace
}  // namespace tidemill::storage
