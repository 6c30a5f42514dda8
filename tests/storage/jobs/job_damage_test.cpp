// SPDX-License-Identifier: Apache-2.0
// Databases that are damaged, or that another program has made.
#include <iostream>

#include "tests/storage/jobs/job_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobDamageTest : public JobsTest {
protected:
  void SetUp() override {
    reopen();
    for (int i = 0; i < 20; ++i) {
      job_ = create_job();
    }
    stores_ = {};
  }
  [[nodiscard]] std::filesystem::path database() const { return root() / "jobs.db"; }
  std::string content() {
    std::ostringstream text;
    text << std::ifstream(database(), std::ios::binary).rdbuf();
    return text.str();
  }
  void write(const std::string& bytes) {
    std::ofstream(database(), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::string job_;
};

TEST_F(JobDamageTest, RefusesWhatIsNoDatabase) {
  write(std::string(5000, 'x'));
  const auto opened = try_open(machine_);
  EXPECT_EQ(opened.status().code(), Errc::kCorruptData);
  EXPECT_EQ(opened.status().message(), database().string() + ": file is not a database");
}

TEST_F(JobDamageTest, RefusesToLoseFilesWithTheDatabase) {
  std::filesystem::remove(database());
  const auto opened = try_open(machine_);
  EXPECT_EQ(opened.status().code(), Errc::kCorruptData);
  EXPECT_THAT(opened.status().message(), HasSubstr("jobs.db: is missing, but there are files"));
  // A second attempt must not take the empty database for a good one.
  EXPECT_EQ(try_open(machine_).status().code(), Errc::kCorruptData);
  EXPECT_EQ(names().size(), 20U);
}

TEST_F(JobDamageTest, RefusesToLoseRunsWithTheDatabase) {
  std::filesystem::remove_all(root() / "files");
  std::filesystem::create_directories(root() / "runs" / "ftjob-of-another-program");
  std::filesystem::rename(database(), root() / "elsewhere");
  EXPECT_TRUE(try_open(machine_).ok());  // nothing is lost
  for (const bool is_empty : {false, true}) {
    std::filesystem::create_directories(root() / "runs" / job_);
    std::filesystem::remove(database());
    if (is_empty) {
      write("");
    }
    const auto opened = try_open(machine_);
    EXPECT_EQ(opened.status().code(), Errc::kCorruptData);
    EXPECT_EQ(opened.status().message(), database().string() +
                                             ": is missing, but there are runs; restore it, or "
                                             "move the directory away");
  }
  std::filesystem::rename(root() / "elsewhere", database());
  EXPECT_TRUE(try_open(machine_).ok());
}

TEST_F(JobDamageTest, RefusesOtherVersionsAndPrograms) {
  const std::string whole = content();
  std::string other = whole;
  other[68] = 'Z';  // application id
  write(other);
  EXPECT_EQ(try_open(machine_).status().message(),
            database().string() + ": is the database of another program");
  other = whole;
  other[63] = 2;  // user version
  write(other);
  EXPECT_EQ(try_open(machine_).status().message(),
            database().string() + ": has version 2, and this program reads version 1");
  other = whole;
  const std::size_t at = other.find("events_by_job");
  ASSERT_NE(at, std::string::npos);
  other.replace(at, 6, "ovents");
  write(other);
  EXPECT_EQ(try_open(machine_).status().code(), Errc::kCorruptData);
}

// Damages the file at random places. Every call either works or fails with a status.
TEST_F(JobDamageTest, RefusesToWriteADatabaseThatWasRemoved) {
  reopen();
  const std::string file = put_file("abc");
  std::filesystem::rename(root() / "jobs.db", root() / "elsewhere");
  const Status status = jobs().create(some_spec(file), 1).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_THAT(status.message(), HasSubstr("was removed or replaced while it was open"));
  std::ofstream(root() / "jobs.db") << "another";
  EXPECT_EQ(jobs().create(some_spec(file), 1).status().code(), Errc::kCorruptData);
}

TEST_F(JobDamageTest, SurvivesDamageAnywhere) {
  const std::string whole = content();
  RandomStream random(3);
  int refused = 0;
  int opened_anyway = 0;
  for (int round = 0; round < 300; ++round) {
    std::string damaged = whole;
    if (round % 3 == 0) {
      damaged.resize(random.below(damaged.size()));
    } else {
      for (std::uint64_t i = 0; i <= random.below(30); ++i) {
        damaged[random.below(damaged.size())] = static_cast<char>(random.bits());
      }
    }
    write(damaged);
    auto opened = try_open(machine_);
    if (!opened.ok()) {
      EXPECT_THAT(opened.status().message(), StartsWith(root().string()));
      ++refused;
      continue;
    }
    ++opened_anyway;
    stores_ = std::move(opened).value();
    for (const Status& status :
         {jobs().list({"", "", 100}).status(), jobs().find(job_).status(),
          jobs().events({job_, "", 100}).status(), jobs().unfinished().status(),
          files().list({}).status(), jobs().change(job_, change_to(JobState::kQueued)).status()}) {
      EXPECT_EQ(status.message().find('\n'), std::string::npos);
    }
    stores_ = {};
  }
  EXPECT_GT(refused, 100);
  std::cout << refused << " damaged databases were refused, " << opened_anyway << " were not\n";
}

}  // namespace
}  // namespace tidemill::storage
