// SPDX-License-Identifier: Apache-2.0
// A process that does nothing but commit is killed again and again.
#include <array>
#include <csignal>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"

namespace tidemill::storage {
namespace {

class CheckpointKillTest : public CheckpointTest {
protected:
  using CheckpointTest::CheckpointTest;
  void kill_often(int kills, std::uint64_t longest_ms);
};

/// In memory a commit takes little time, so that kills hit every part of it.
class CheckpointKillInMemoryTest : public CheckpointKillTest {
protected:
  CheckpointKillInMemoryTest() : CheckpointKillTest(test::memory_directory_path()) {}
};

// The child: continues from the last commit, and reports every step that became durable.
[[noreturn]] void commit_for_ever(const std::filesystem::path& run, int report) {
  PosixFileSystem files;
  auto store = CheckpointStore::open({run, "run-1", OnDamage::kRefuse}, files);
  if (!store.ok()) {
    ::_exit(1);
  }
  for (std::uint64_t step = store.value()->last() ? store.value()->last()->step + 1 : 1;; ++step) {
    if (!store.value()->commit(state_at(step)).ok() ||
        ::write(report, &step, sizeof step) != static_cast<ssize_t>(sizeof step)) {
      ::_exit(2);
    }
  }
}

void CheckpointKillTest::kill_often(int kills, std::uint64_t longest_ms) {
  RandomStream random(11);
  std::uint64_t acknowledged = 0;
  std::uint64_t commits_found = 0;
  int beyond = 0;
  int with_leftovers = 0;
  for (int kill = 0; kill < kills; ++kill) {
    std::array<int, 2> report{};
    ASSERT_EQ(::pipe(report.data()), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(report[0]);
      commit_for_ever(run(), report[1]);
    }
    ::close(report[1]);
    // A random moment within the duration of a few commits. No outcome depends on it.
    ::poll(nullptr, 0, static_cast<int>(random.below(longest_ms)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child failed: " << WEXITSTATUS(status);
    std::uint64_t step = 0;
    while (::read(report[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step)) {
      acknowledged = step;
    }
    ::close(report[0]);
    if (std::filesystem::exists(objects())) {
      with_leftovers += names_in(objects(), ".tmp").empty() ? 0 : 1;
    }

    const auto store = try_open();
    ASSERT_TRUE(store.ok()) << "kill " << kill << ": " << store.status().to_string();
    if (!store.value()->last()) {
      ASSERT_EQ(acknowledged, 0U);
      continue;
    }
    const std::uint64_t found = store.value()->last()->step;
    ASSERT_TRUE(found == acknowledged || found == acknowledged + 1)
        << "kill " << kill << ": found " << found << ", acknowledged " << acknowledged;
    beyond += found > acknowledged ? 1 : 0;
    ASSERT_EQ(fingerprint(store.value()->load_last().value()), fingerprint(state_at(found)));
    ASSERT_LE(names_in(objects()).size(), 6U);
    acknowledged = found;
    commits_found = found;
  }
  EXPECT_GT(commits_found, 0U);
  std::cout << "kills: " << kills << " among " << commits_found << " commits, " << with_leftovers
            << " left half a file, " << beyond
            << " fell between a commit and its report; none torn, none lost\n";
}

TEST_F(CheckpointKillInMemoryTest, NoKillTearsOrLosesACommit) {
  kill_often(200, 12);
}

TEST_F(CheckpointKillTest, NoKillTearsOrLosesACommit) {
  kill_often(25, 200);
}

}  // namespace
}  // namespace tidemill::storage
