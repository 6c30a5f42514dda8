// SPDX-License-Identifier: Apache-2.0
// The power fails at each system call of a commit. Any part of the unsynced data may survive.
#include <limits>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"
#include "tests/storage/checkpoint/crashing_file_system.hpp"

namespace tidemill::storage {
namespace {

using test::CrashingFileSystem;
using test::UnsyncedBytes;
using test::UnsyncedNames;

constexpr int kNever = std::numeric_limits<int>::max();

struct DiskState {
  UnsyncedNames names;
  UnsyncedBytes bytes;
  std::uint64_t seed;
};

// The disks to check after each crash: all plausible ones, and many that are merely possible.
std::vector<DiskState> disk_states(int call) {
  std::vector<DiskState> all;
  for (const UnsyncedNames names : {UnsyncedNames::kNone, UnsyncedNames::kAll}) {
    for (const UnsyncedBytes bytes :
         {UnsyncedBytes::kNone, UnsyncedBytes::kHalf, UnsyncedBytes::kAll}) {
      all.push_back({names, bytes, 0});
    }
  }
  for (std::uint64_t i = 0; i < 10; ++i) {
    const UnsyncedNames names = i % 2 == 0 ? UnsyncedNames::kFirstOnes : UnsyncedNames::kAnyOnes;
    all.push_back({names, UnsyncedBytes::kAny, static_cast<std::uint64_t>(call) * 100 + i});
  }
  return all;
}

class CheckpointCrashTest : public CheckpointTest {
protected:
  CheckpointCrashTest() : CheckpointTest(test::memory_directory_path()) {}

  // Fills the run directory with `steps` commits.
  void prepare(std::uint64_t steps) {
    std::filesystem::remove_all(run());
    std::filesystem::create_directory(run());
    for (std::uint64_t step = 1; step <= steps; ++step) {
      commit(*open(), step);
    }
    std::filesystem::remove(run() / "lock");
  }

  // Opens a store and commits on a machine that crashes at `call`. Returns whether the commit was
  // reported as done.
  static bool run_until_crash(CrashingFileSystem& files, const std::filesystem::path& run,
                              std::uint64_t step) {
    auto store = CheckpointStore::open({run, "run-1", OnDamage::kRefuse}, files);
    return store.ok() && store.value()->commit(state_at(step)).ok();
  }

  // Commits `step` after all earlier steps, crashing at every call, and checks the remaining disks.
  void sweep(std::uint64_t step) {
    int calls = 0;
    int cases = 0;
    int old_commits = 0;
    int new_commits = 0;
    for (int call = 1;; ++call) {
      prepare(step - 1);
      CrashingFileSystem files(run(), call);
      const bool reported = run_until_crash(files, run(), step);
      for (const DiskState& disk_state : disk_states(call)) {
        files.survive(disk_state.names, disk_state.bytes, disk_state.seed);
        auto store = try_open();
        ASSERT_TRUE(store.ok()) << "call " << call << ": " << store.status().to_string();
        const std::uint64_t found = store.value()->last() ? store.value()->last()->step : 0;
        ASSERT_TRUE(found == step || (!reported && found + 1 == step))
            << "call " << call << ": found step " << found << (reported ? ", reported done" : "");
        if (found > 0) {
          ASSERT_EQ(fingerprint(store.value()->load_last().value()), fingerprint(state_at(found)))
              << "call " << call;
        }
        // The run continues from there.
        commit(*store.value(), step + 1);
        store.value().reset();
        ASSERT_EQ(fingerprint(read_last_checkpoint(run()).value()),
                  fingerprint(state_at(step + 1)));
        ASSERT_LE(names_in(objects()).size(), 6U) << "leftovers are removed";
        ++cases;
        (found == step ? new_commits : old_commits) += 1;
      }
      if (!files.crashed()) {
        calls = files.num_calls();
        break;
      }
    }
    EXPECT_GT(old_commits, 0);
    EXPECT_GT(new_commits, 0);
    std::cout << "crash in commit " << step << ": " << calls << " calls, " << cases << " disks, "
              << old_commits << " with the old commit, " << new_commits
              << " with the new one, none torn\n";
  }
};

TEST_F(CheckpointCrashTest, TheFirstCommit) {
  sweep(1);
}

TEST_F(CheckpointCrashTest, TheSecondCommit) {
  sweep(2);
}

TEST_F(CheckpointCrashTest, ACommitThatAlsoRemovesAnOlderOne) {
  sweep(3);
}

// One or two calls fail, the store commits the same content again, and then the power fails. A file
// whose directory was never synced must not count as durable.
TEST_F(CheckpointCrashTest, ACrashAfterAFailedCommitOfTheSameContent) {
  prepare(1);
  CrashingFileSystem undisturbed(run(), kNever);
  ASSERT_TRUE(run_until_crash(undisturbed, run(), 2));
  int cases = 0;
  for (int first = 1; first <= undisturbed.num_calls(); ++first) {
    for (int second = first;; ++second) {
      prepare(1);
      CrashingFileSystem files(run(), kNever);
      auto store = CheckpointStore::open({run(), "run-1", OnDamage::kRefuse}, files).value();
      files.fail_at({first, second});
      (void)store->commit(state_at(2));
      if (files.num_calls() < second) {
        break;
      }
      ASSERT_TRUE(store->commit(state_at(2)).ok()) << first << "," << second;
      store.reset();
      for (const UnsyncedNames names : {UnsyncedNames::kNone, UnsyncedNames::kAll}) {
        files.survive(names, UnsyncedBytes::kNone, 0);
        auto reopened = try_open();
        ASSERT_TRUE(reopened.ok())
            << first << "," << second << ": " << reopened.status().to_string();
        ASSERT_EQ(fingerprint(reopened.value()->load_last().value()), fingerprint(state_at(2)))
            << first << "," << second;
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 100);
  std::cout << "crash after a failed commit of the same content: " << cases << " disks\n";
}

// Two calls of a commit fail, so that it may be unable to undo its writes. Then the power fails.
TEST_F(CheckpointCrashTest, ACrashAfterTwoFailedCalls) {
  prepare(2);
  CrashingFileSystem undisturbed(run(), kNever);
  ASSERT_TRUE(run_until_crash(undisturbed, run(), 3));
  int cases = 0;
  for (int first = 1; first <= undisturbed.num_calls(); ++first) {
    for (int second = first + 1;; ++second) {
      prepare(2);
      CrashingFileSystem files(run(), kNever);
      auto store = CheckpointStore::open({run(), "run-1", OnDamage::kRefuse}, files).value();
      files.fail_at({first, second});
      const bool reported = store->commit(state_at(3)).ok();
      if (files.num_calls() < second) {
        break;
      }
      store.reset();
      for (const DiskState& disk_state : disk_states(first * 100 + second)) {
        files.survive(disk_state.names, disk_state.bytes, disk_state.seed);
        const auto reopened = try_open();
        ASSERT_TRUE(reopened.ok())
            << first << "," << second << ": " << reopened.status().to_string();
        const std::uint64_t found = reopened.value()->last()->step;
        ASSERT_TRUE(found == 3 || (found == 2 && !reported)) << first << "," << second;
        ASSERT_EQ(fingerprint(reopened.value()->load_last().value()), fingerprint(state_at(found)));
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 1000);
  std::cout << "crash after two failed calls: " << cases << " disks, none torn\n";
}

}  // namespace
}  // namespace tidemill::storage
