// SPDX-License-Identifier: Apache-2.0
// Tests what a server removes of the directories of runs, and what it moves aside.
#include "workflows/serve/run_folders.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/jobs/job_store.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::workflows {
namespace {

namespace fs = std::filesystem;
using storage::JobState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A job directory with a job in its database.
class RunFoldersTest : public ::testing::Test {
protected:
  void SetUp() override {
    server_.serve.jobs_path = (folder_.path() / "jobs").string();
    auto opened = actors::open_tuning_stores(root(), machine_);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    stores_ = std::move(opened).value();
    const std::string text = "{}\n";
    const auto file = stores_.files->put({"a.jsonl", std::string(storage::kFineTunePurpose), 1},
                                         std::as_bytes(std::span(text)));
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    storage::JobSpec spec;
    spec.model = "base";
    spec.training_file = file.value().id;
    const auto job = stores_.jobs->create(spec, 2);
    ASSERT_TRUE(job.ok()) << job.status().to_string();
    job_ = job.value().id;
    make_run(job_);
  }

  [[nodiscard]] fs::path root() const { return *server_.serve.jobs_path; }
  // Makes the directory of a run that has a commit and an adapter.
  void make_run(const std::string& job) {
    for (const char* folder : {"checkpoints", "export"}) {
      fs::create_directories(root() / "runs" / job / folder);
      std::ofstream(root() / "runs" / job / folder / "file") << job;
    }
  }
  void change(JobState state, const std::string& model = "") {
    storage::JobChange change;
    change.now = 3;
    change.state = state;
    change.event.emplace();
    change.event->message = "changed";
    change.fine_tuned_model = model;
    const auto changed = stores_.jobs->change(job_, change);
    ASSERT_TRUE(changed.ok()) << changed.status().to_string();
  }
  Status remove(const std::set<std::string>& running = {}) {
    return remove_old_runs({server_, machine_, *stores_.jobs,
                            [this](const std::string& line) { warnings_.push_back(line); }},
                           running);
  }
  // The names in a folder of the job directory.
  std::vector<std::string> names(const fs::path& folder) {
    const auto listed = list_directory(root() / folder);
    EXPECT_TRUE(listed.ok()) << listed.status().to_string();
    return listed.ok() ? listed.value() : std::vector<std::string>();
  }

  test::TemporaryDirectory folder_{test::memory_directory_path()};
  PosixFileSystem machine_;
  ServeOptions server_;
  actors::TuningStores stores_;
  std::string job_;
  std::vector<std::string> warnings_;
  const std::string lost_ = "ftjob-" + std::string(24, 'x');
};

TEST_F(RunFoldersTest, KeepsWhatAJobStillNeeds) {
  const auto check = [this](const std::vector<std::string>& kept) {
    EXPECT_TRUE(remove().ok());
    EXPECT_EQ(names(fs::path("runs") / job_), kept) << job_;
  };
  check({"checkpoints", "export"});
  change(JobState::kQueued);
  change(JobState::kRunning);
  check({"checkpoints", "export"});
  change(JobState::kSucceeded, "model");
  check({"export"});
  ASSERT_TRUE(stores_.jobs->remove_model("model", 4).ok());
  check({});
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(RunFoldersTest, KeepsNoAdapterOfAJobThatWasPausedAndCancelled) {
  for (const JobState state : {JobState::kQueued, JobState::kRunning, JobState::kPaused}) {
    change(state);
    EXPECT_TRUE(remove().ok());
    EXPECT_EQ(names(fs::path("runs") / job_).size(), 2U);
  }
  change(JobState::kCancelled);
  EXPECT_TRUE(remove().ok());
  EXPECT_THAT(names(fs::path("runs") / job_), IsEmpty());
}

TEST_F(RunFoldersTest, MovesTheDirectoriesOfUnknownJobsAside) {
  make_run(lost_);
  make_run("ftjob-copy");  // not an id
  ASSERT_TRUE(remove({lost_}).ok());
  EXPECT_THAT(names("runs"), ::testing::UnorderedElementsAre(job_, "ftjob-copy", lost_));
  EXPECT_THAT(warnings_, IsEmpty());
  ASSERT_TRUE(remove().ok());
  EXPECT_THAT(names("runs"), ::testing::UnorderedElementsAre(job_, "ftjob-copy"));
  EXPECT_THAT(names("unlisted"), ElementsAre(lost_));
  EXPECT_THAT(names(fs::path("unlisted") / lost_ / "export"), ElementsAre("file"));
  EXPECT_THAT(warnings_, ElementsAre((root() / "runs").string() +
                                     ": runs that jobs.db does not name: 1; they were moved to " +
                                     (root() / "unlisted").string()));
}

TEST_F(RunFoldersTest, NeverReplacesADirectoryThatWasMovedAside) {
  make_run(lost_);
  ASSERT_TRUE(remove().ok());
  make_run(lost_);
  std::ofstream(root() / "runs" / lost_ / "newer") << "x";
  const std::string other = "ftjob-" + std::string(24, 'y');
  make_run(other);
  const Status status = remove();
  EXPECT_EQ(status.message(),
            (root() / "runs" / lost_).string() + ": cannot move: Directory not empty");
  EXPECT_THAT(names(fs::path("runs") / lost_), ElementsAre("checkpoints", "export", "newer"));
  EXPECT_THAT(names(fs::path("unlisted") / lost_), ElementsAre("checkpoints", "export"));
  EXPECT_THAT(names("unlisted"), ElementsAre(lost_, other));
}

}  // namespace
}  // namespace tidemill::workflows
