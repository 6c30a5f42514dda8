// SPDX-License-Identifier: Apache-2.0
// A process that stores files and jobs is killed again and again, and every call of the file system
// is the last one.
#include <algorithm>
#include <array>
#include <csignal>
#include <iostream>
#include <map>
#include <poll.h>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/storage/checkpoint/crashing_file_system.hpp"
#include "tests/storage/jobs/job_fixture.hpp"

namespace tidemill::storage {
namespace {

// What a child reports after a call has returned.
struct Report {
  char kind = 0;  // f: a file was stored, d: deleted, j: a job was made, q: queued, e: an event
  std::array<char, 40> id{};
};

class JobKillTest : public JobsTest {
protected:
  // The child: works until it is killed, or fails.
  [[noreturn]] void work(int report, std::uint64_t seed) {
    random_ = RandomStream(seed);
    auto opened = try_open(machine_);
    if (!opened.ok()) {
      ::_exit(1);
    }
    stores_ = std::move(opened).value();
    const auto tell = [&](char kind, const std::string& id) {
      Report one;
      one.kind = kind;
      std::copy(id.begin(), id.end(), one.id.begin());
      if (::write(report, &one, sizeof(one)) != static_cast<ssize_t>(sizeof(one))) {
        ::_exit(2);
      }
    };
    for (;;) {
      const std::string file = put_file(std::string(3000, 'x'));
      tell('f', file);
      const auto job = jobs().create(some_spec(file), 1);
      if (!job.ok()) {
        ::_exit(3);
      }
      const std::string id = job.value().id;
      tell('j', id);
      if (!jobs().change(id, change_to(JobState::kQueued)).ok()) {
        ::_exit(4);
      }
      tell('q', id);
      if (!jobs().add_event(id, some_event("x", EventType::kMetrics)).ok()) {
        ::_exit(5);
      }
      tell('e', id);
      const std::string unused = put_file("y");
      tell('f', unused);
      if (!files().remove(unused).ok()) {
        ::_exit(6);
      }
      tell('d', unused);
    }
  }
};

TEST_F(JobKillTest, NoKillLosesOrDoublesAnything) {
  RandomStream random(19);
  std::set<std::string> stored;
  std::set<std::string> deleted;
  std::map<std::string, int> events;  // at least, of each job
  std::size_t beyond = 0;
  constexpr int kKills = 100;
  for (int kill = 0; kill < kKills; ++kill) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(pipe[0]);
      work(pipe[1], 1000 + static_cast<std::uint64_t>(kill));
    }
    ::close(pipe[1]);
    // A random moment. No outcome depends on it.
    ::poll(nullptr, 0, static_cast<int>(random.below(40)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed: " << WEXITSTATUS(status);
    Report report;
    while (::read(pipe[0], &report, sizeof(report)) == static_cast<ssize_t>(sizeof(report))) {
      const std::string id = report.id.data();
      switch (report.kind) {
        case 'f': stored.insert(id); break;
        case 'd': deleted.insert(id); break;
        case 'j': events[id] = 1; break;
        default: ++events[id];
      }
    }
    ::close(pipe[0]);

    reopen();
    const auto files_found = files().list({}).value().entries;
    std::set<std::string> found;
    for (const StoredFile& file : files_found) {
      ASSERT_TRUE(found.insert(file.id).second);
      ASSERT_EQ(read(file.id, 0, file.bytes).value(),
                file.bytes == 1 ? "y" : std::string(3000, 'x'));
    }
    // The last file that was to be deleted may be gone without a report.
    const auto lost = std::count_if(stored.begin(), stored.end(), [&](const std::string& id) {
      return !found.contains(id) && !deleted.contains(id);
    });
    ASSERT_LE(lost, 1) << "a stored file is lost";
    for (const std::string& id : deleted) {
      ASSERT_FALSE(found.contains(id)) << id << " is back";
    }
    ASSERT_EQ(names().size(), found.size());
    const auto jobs_found = jobs().list({"", "", 100'000}).value().entries;
    std::set<std::string> ids;
    for (const JobRecord& job : jobs_found) {
      ASSERT_TRUE(ids.insert(job.id).second);
      const auto page = jobs().events({job.id, "", 100}).value();
      const int at_least = events.contains(job.id) ? events[job.id] : 0;
      const int count = static_cast<int>(page.entries.size());
      ASSERT_TRUE(count >= at_least && count <= at_least + 1) << count << " of " << at_least;
      ASSERT_EQ(job.state == JobState::kQueued, count >= 2);  // the state with its event
      beyond += count > at_least ? 1 : 0;
      events[job.id] = count;
    }
    for (const auto& [id, count] : events) {
      ASSERT_TRUE(ids.contains(id)) << id << " is lost";
    }
    for (auto it = stored.begin(); it != stored.end();) {
      it = found.contains(*it) ? std::next(it) : stored.erase(it);
    }
    stored.insert(found.begin(), found.end());
    stores_ = {};
  }
  EXPECT_GT(events.size(), 0U);
  std::cout << "kills: " << kKills << " among " << events.size() << " jobs and " << stored.size()
            << " files, " << beyond << " fell between a change and its report; none lost\n";
}

// The bytes of files, on a disk that loses power at each call.
TEST_F(JobKillTest, NoPowerFailureLeavesHalfAFile) {
  reopen();
  const std::string kept = put_file("kept");
  int disks = 0;
  for (int crash_at = 1; crash_at < 60; ++crash_at) {
    for (const auto names_lost :
         {test::UnsyncedNames::kNone, test::UnsyncedNames::kAll, test::UnsyncedNames::kAnyOnes}) {
      stores_ = {};
      test::CrashingFileSystem disk(root() / "files", crash_at);
      auto opened = try_open(disk);
      bool crashed = disk.crashed();
      Result<StoredFile> stored = Status(Errc::kUnavailable, "not opened");
      if (opened.ok()) {
        stores_ = std::move(opened).value();
        stored = put("new bytes");
        crashed = disk.crashed();
        stores_ = {};
      }
      disk.survive(names_lost, test::UnsyncedBytes::kAny, static_cast<std::uint64_t>(crash_at));
      ++disks;
      reopen();
      ASSERT_EQ(read(kept, 0, 4).value(), "kept");
      std::size_t expected = 1;
      if (stored.ok()) {
        ASSERT_EQ(read(stored.value().id, 0, 9).value(), "new bytes") << crash_at;
        expected = 2;
      }
      ASSERT_EQ(names().size(), expected) << crash_at;
      ASSERT_EQ(files().list({}).value().entries.size(), expected) << crash_at;
      if (stored.ok()) {
        ASSERT_TRUE(files().remove(stored.value().id).ok());
        ASSERT_FALSE(crashed);
      }
    }
  }
  EXPECT_EQ(disks, 177);
}

}  // namespace
}  // namespace tidemill::storage
