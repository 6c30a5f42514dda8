// SPDX-License-Identifier: Apache-2.0
// Each system call of a commit fails once, in every way that a disk can fail.
#include <cerrno>
#include <cstring>

#include <gmock/gmock.h>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"
#include "tests/support/faulty_file_system.hpp"

namespace tidemill::storage {
namespace {

using test::FaultyFileSystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// A disk with space for a number of bytes, which never frees any.
class SmallDisk final : public FaultyFileSystem {
public:
  explicit SmallDisk(std::size_t bytes) : FaultyFileSystem({}), free_(bytes) {}
  void add_room(std::size_t bytes) { free_ += bytes; }
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    if (free_ == 0) {
      return -ENOSPC;
    }
    const std::int64_t written =
        FaultyFileSystem::write(descriptor, bytes.first(std::min(bytes.size(), free_)));
    free_ -= static_cast<std::size_t>(std::max<std::int64_t>(written, 0));
    return written;
  }

private:
  std::size_t free_;
};

class CheckpointFaultTest : public CheckpointTest {
protected:
  CheckpointFaultTest() : CheckpointTest(test::memory_directory_path()) {}

  // Makes two commits, so that the third one writes, reuses and removes objects.
  void prepare() {
    std::filesystem::remove_all(run());
    std::filesystem::create_directory(run());
    const auto store = open();
    commit(*store, 1);
    commit(*store, 2);
  }
  [[nodiscard]] static std::unique_ptr<CheckpointStore> open_on(FileSystem& files,
                                                                const std::filesystem::path& run) {
    auto store = CheckpointStore::open({run, "run-1", OnDamage::kRefuse}, files);
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return std::move(store).value();
  }
  // The state that a fresh process finds.
  [[nodiscard]] std::string reopened() {
    auto store = try_open();
    if (!store.ok()) {
      return store.status().to_string();
    }
    auto state = store.value()->load_last();
    return state.ok() ? fingerprint(state.value()) : state.status().to_string();
  }
};

TEST_F(CheckpointFaultTest, AnyCallMayFailOnce) {
  const std::string before = fingerprint(state_at(2));
  const std::string after = fingerprint(state_at(3));
  int points = 0;
  int refused = 0;
  int committed = 0;
  for (const int error : {EIO, ENOSPC, EINTR}) {
    for (const std::size_t max_write : {SIZE_MAX, std::size_t{7}}) {
      for (int at = 1;; ++at) {
        prepare();
        // Opening needs no call on a clean store: call 1 is the commit's first.
        FaultyFileSystem files({.at = at, .error = error});
        files.max_write_bytes = max_write;
        auto store = open_on(files, run());
        ASSERT_EQ(files.num_calls(), 0);
        const auto report = store->commit(state_at(3));
        if (files.num_calls() < at) {
          EXPECT_TRUE(report.ok() && report.value().cleanup.ok());
          break;  // the fault is after the last call
        }
        ++points;
        (report.ok() ? committed : refused) += 1;
        ASSERT_EQ(store->last()->step, report.ok() ? 3U : 2U) << at;
        ASSERT_EQ(fingerprint(store->load_last().value()), report.ok() ? after : before) << at;
        // The state that another process would find now, while this store stays open.
        ASSERT_EQ(fingerprint(read_last_checkpoint(run()).value()), report.ok() ? after : before)
            << "call " << at << ": " << std::strerror(error);
        // The fault is over. The same store continues to work, and so does a new one.
        const auto next = store->commit(state_at(4));
        ASSERT_TRUE(next.ok()) << next.status().to_string();
        ASSERT_TRUE(next.value().cleanup.ok());
        store.reset();
        ASSERT_EQ(reopened(), fingerprint(state_at(4))) << at;
        ASSERT_THAT(names_in(objects(), ".tmp"), IsEmpty());
        ASSERT_THAT(names_in(commits(), "commit-"), SizeIs(2)) << at;
      }
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(committed, 0) << "faults after the manifest's rename, and interrupted calls";
  std::cout << "faults: " << points << " points, " << refused << " commits refused, " << committed
            << " done, none torn\n";
}

TEST_F(CheckpointFaultTest, TheDiskMayFailForGoodAtAnyCall) {
  const std::string before = fingerprint(state_at(2));
  const std::string after = fingerprint(state_at(3));
  int points = 0;
  for (int at = 1;; ++at) {
    prepare();
    FaultyFileSystem files({.at = at, .error = EIO, .dead = true});
    auto store = open_on(files, run());
    const auto report = store->commit(state_at(3));
    if (files.num_calls() < at) {
      break;
    }
    ++points;
    store.reset();
    const std::string found = reopened();
    if (report.ok()) {
      ASSERT_EQ(found, after) << at;
    } else {
      ASSERT_TRUE(found == before || found == after) << at << ": " << found;
    }
  }
  std::cout << "dead disk: " << points << " points, none torn\n";
}

TEST_F(CheckpointFaultTest, CreatingTheStoreMayFailAtAnyCall) {
  int points = 0;
  for (int at = 1;; ++at) {
    std::filesystem::remove_all(run());
    std::filesystem::create_directory(run());
    FaultyFileSystem files({.at = at, .error = EIO});
    const bool opened = CheckpointStore::open({run(), "run-1", OnDamage::kRefuse}, files).ok();
    if (files.num_calls() < at) {
      EXPECT_TRUE(opened);
      break;
    }
    ++points;
    const auto store = open();
    EXPECT_EQ(store->last(), std::nullopt);
    commit(*store, 1);
  }
  std::cout << "creating a store: " << points << " points\n";
}

TEST_F(CheckpointFaultTest, AFullDiskKeepsThePreviousCommitAndItsSpace) {
  const std::string before = fingerprint(state_at(2));
  int refused = 0;
  for (std::size_t space = 0;; space += 29) {
    prepare();
    const std::vector<std::string> objects_before = names_in(objects());
    SmallDisk disk(space);
    auto store = open_on(disk, run());
    const auto report = store->commit(state_at(3));
    if (report.ok()) {
      break;
    }
    ++refused;
    EXPECT_EQ(report.status().code(), Errc::kResourceExhausted);
    EXPECT_THAT(report.status().message(), HasSubstr("No space left on device"));
    EXPECT_THAT(report.status().message(), HasSubstr(commits().string()));
    EXPECT_EQ(names_in(objects()), objects_before) << "the written bytes are freed again";
    EXPECT_EQ(fingerprint(read_last_checkpoint(run()).value()), before);
    disk.add_room(1U << 20U);
    EXPECT_TRUE(store->commit(state_at(3)).ok());
  }
  EXPECT_GT(refused, 20);
  std::cout << "full disk: " << refused << " sizes, the previous commit remained each time\n";
}

}  // namespace
}  // namespace tidemill::storage
