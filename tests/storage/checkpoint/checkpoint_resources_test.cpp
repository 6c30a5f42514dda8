// SPDX-License-Identifier: Apache-2.0
// What a commit promises besides its result: everything written is read back, a commit after a
// failed one is complete, and no descriptor stays open.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"

namespace tidemill::storage {
namespace {

// Stores a flipped bit in write `at`, counted from 1, and reports success.
class LyingFileSystem final : public FileSystem {
public:
  int at = 0;  // 0: never
  int num_writes = 0;

  int create(const std::filesystem::path& path) override { return real_.create(path); }
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    if (++num_writes != at || bytes.empty()) {
      return real_.write(descriptor, bytes);
    }
    std::vector<std::byte> flipped(bytes.begin(), bytes.end());
    flipped[flipped.size() / 2] ^= std::byte{1};
    return real_.write(descriptor, flipped);
  }
  int sync(int descriptor) override { return real_.sync(descriptor); }
  int close(int descriptor) override { return real_.close(descriptor); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return real_.rename(from, to);
  }
  int make_directory(const std::filesystem::path& path) override {
    return real_.make_directory(path);
  }
  int sync_directory(const std::filesystem::path& path) override {
    return real_.sync_directory(path);
  }
  int remove(int directory, const std::string& name, EntryKind kind) override {
    return real_.remove(directory, name, kind);
  }

private:
  PosixFileSystem real_;
};

class CheckpointResourcesTest : public CheckpointTest {
protected:
  static std::size_t open_files() {
    const std::filesystem::directory_iterator begin("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin, std::filesystem::directory_iterator()));
  }
  std::unique_ptr<CheckpointStore> open_lying() {
    return CheckpointStore::open({run(), "run-1", OnDamage::kRefuse}, lying_).value();
  }
  LyingFileSystem lying_;
};

TEST_F(CheckpointResourcesTest, ACommitWhoseBytesDidNotReachTheDiskFailsAndTheNextOneSucceeds) {
  const auto store = open_lying();
  commit(*store, 1);
  lying_.num_writes = 0;
  commit(*store, 2);
  const int writes = lying_.num_writes;
  ASSERT_GE(writes, 3) << "two objects and the manifest";
  std::uint64_t step = 2;
  for (int at = 1; at <= writes; ++at) {
    lying_.num_writes = 0;
    lying_.at = at;
    const auto report = store->commit(state_at(step + 1));
    EXPECT_FALSE(report.ok()) << "write " << at;
    EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(step)));
    lying_.at = 0;
    commit(*store, ++step);
    EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(step)));
  }
}

// An object that an earlier commit wrote may have been damaged since.
TEST_F(CheckpointResourcesTest, AReusedObjectIsReadBackToo) {
  const auto store = open();
  commit(*store, 1);
  for (const std::string& name : names_in(objects())) {
    const std::string bytes = read_whole(objects() / name);
    if (bytes.empty()) {
      continue;
    }
    std::string damaged = bytes;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    write_whole(objects() / name, damaged);
    commit(*store, 1);
    EXPECT_EQ(read_whole(objects() / name), bytes);
  }
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(1)));
}

TEST_F(CheckpointResourcesTest, NoDescriptorStaysOpen) {
  const std::size_t closed = open_files();
  {
    const auto store = open_lying();
    const std::size_t idle = open_files();
    for (std::uint64_t step = 1; step <= 6; ++step) {
      lying_.at = step % 2 == 0 ? lying_.num_writes + 1 : 0;
      (void)store->commit(state_at(step));
      EXPECT_EQ(open_files(), idle) << step;
    }
    ASSERT_TRUE(store->load_last().ok());
    EXPECT_EQ(open_files(), idle);
  }
  EXPECT_EQ(open_files(), closed);
}

TEST_F(CheckpointResourcesTest, TheSpaceOfOlderCommitsIsFreed) {
  const auto store = open();
  std::size_t files = 0;
  for (std::uint64_t step = 1; step <= 8; ++step) {
    commit(*store, step);
    const std::size_t now = names_in(objects()).size();
    if (step > 2) {
      EXPECT_EQ(now, files) << step;
    }
    files = now;
    EXPECT_EQ(names_in(commits(), "commit-").size(), std::min<std::size_t>(step, 2));
  }
}

}  // namespace
}  // namespace tidemill::storage
