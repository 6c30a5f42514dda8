// SPDX-License-Identifier: Apache-2.0
// A checkpoint store on a disk that works.
#include "storage/checkpoint/checkpoint_store.hpp"

#include <atomic>
#include <sys/stat.h>
#include <thread>

#include <gmock/gmock.h>

#include "tests/storage/checkpoint/checkpoint_fixture.hpp"

namespace tidemill::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

using CheckpointStoreTest = CheckpointTest;

TEST_F(CheckpointStoreTest, IsEmptyAtFirst) {
  const auto store = open();
  EXPECT_EQ(store->last(), std::nullopt);
  EXPECT_EQ(store->load_last().status().code(), Errc::kNotFound);
  EXPECT_EQ(read_last_checkpoint(run()).status().code(), Errc::kNotFound);
  EXPECT_EQ(store->run_id(), "run-1");
}

TEST_F(CheckpointStoreTest, ReturnsTheLastCommitAfterReopening) {
  {
    const auto store = open();
    for (std::uint64_t step = 1; step <= 5; ++step) {
      commit(*store, step);
      ASSERT_EQ(store->last()->step, step);
      ASSERT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(step)));
    }
  }
  const auto store = open();
  EXPECT_EQ(store->last()->step, 5U);
  EXPECT_EQ(store->last()->sequence, 5U);
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state_at(5)));
  EXPECT_EQ(fingerprint(read_last_checkpoint(run()).value()), fingerprint(state_at(5)));
}

TEST_F(CheckpointStoreTest, TheSameStepMayBeCommittedTwice) {
  const auto store = open();
  commit(*store, 5);
  const CommitInfo first = *store->last();
  commit(*store, 5);
  EXPECT_GT(store->last()->sequence, first.sequence);
  EXPECT_NE(store->last()->digest, first.digest);
}

TEST_F(CheckpointStoreTest, WritesUnchangedPartsOnce) {
  const auto store = open();
  const CommitReport first = store->commit(state_at(1)).value();
  EXPECT_EQ(first.objects_written, 4U);
  EXPECT_EQ(first.objects_reused, 0U);
  const CommitReport second = store->commit(state_at(2)).value();
  EXPECT_EQ(second.objects_written, 2U);
  EXPECT_EQ(second.objects_reused, 2U);
  EXPECT_LT(second.bytes_written, first.bytes_written);
}

TEST_F(CheckpointStoreTest, PartsOfEqualContentAreOneFile) {
  const auto store = open();
  Checkpoint state;
  state.tensors["a"] = {{"w", random_tensor(1, 2)}};
  state.tensors["b"] = state.tensors["a"];
  state.blobs["c"] = "same";
  state.blobs["d"] = "same";
  ASSERT_TRUE(store->commit(state).ok());
  EXPECT_THAT(names_in(objects()), SizeIs(2));
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state));
}

TEST_F(CheckpointStoreTest, KeepsTheLastTwoCommits) {
  const auto store = open();
  for (std::uint64_t step = 1; step <= 6; ++step) {
    commit(*store, step);
    EXPECT_THAT(names_in(commits(), "commit-"), SizeIs(step == 1 ? 1 : 2));
    // Two parts that change, two that do not.
    EXPECT_THAT(names_in(objects()), SizeIs(step == 1 ? 4 : 6));
  }
}

TEST_F(CheckpointStoreTest, StoresStatesOfAnyShape) {
  const auto store = open();
  Checkpoint state;
  ASSERT_TRUE(store->commit(state).ok());
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state));
  state.step = std::numeric_limits<std::int64_t>::max();
  state.tensors["none"] = {};
  state.tensors["scalar"] = {
      {"s", {DType::kBF16, {}, Buffer::adopt(std::vector<std::uint16_t>{7}, DType::kBF16)}}};
  state.blobs["binary"] = std::string("\0\xFF\n", 3);
  state.blobs["large"] = std::string(3'000'000, 'x');
  ASSERT_TRUE(store->commit(state).ok());
  EXPECT_EQ(fingerprint(store->load_last().value()), fingerprint(state));
}

TEST_F(CheckpointStoreTest, RefusesBadNamesAndSteps) {
  const auto store = open();
  for (const char* name : {"", "..", "a/b", ".hidden", "a b"}) {
    Checkpoint state;
    state.blobs[name] = "x";
    EXPECT_EQ(store->commit(state).status().code(), Errc::kInvalidArgument) << name;
    Checkpoint tensors;
    tensors.tensors[name] = {};
    EXPECT_EQ(store->commit(tensors).status().code(), Errc::kInvalidArgument) << name;
  }
  Checkpoint twice;
  twice.blobs["x"] = "";
  twice.tensors["x"] = {};
  EXPECT_EQ(store->commit(twice).status().message(), "\"x\" names both tensors and a blob");
  Checkpoint late;
  late.step = ~std::uint64_t{0};
  EXPECT_FALSE(store->commit(late).ok());
  EXPECT_EQ(store->last(), std::nullopt);
}

TEST_F(CheckpointStoreTest, RemovesLeftoversAtOpenAndNothingElse) {
  commit(*open(), 1);
  const std::string digest(32, 'f');
  write_whole(objects() / (digest + ".safetensors"), "an object of an unfinished commit");
  write_whole(objects() / ".tmp-1-0", "half");
  write_whole(commits() / ".tmp-1-0", "half");
  write_whole(objects() / "notes.txt", "a user's");
  write_whole(commits() / "README", "a user's");
  const auto store = open();
  EXPECT_THAT(names_in(objects()), SizeIs(5));
  EXPECT_TRUE(std::filesystem::exists(objects() / "notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(commits() / "README"));
  EXPECT_FALSE(std::filesystem::exists(commits() / ".tmp-1-0"));
}

TEST_F(CheckpointStoreTest, NeedsARunIdToBeCreatedAndKeepsIt) {
  EXPECT_EQ(CheckpointStore::open({run(), "", OnDamage::kRefuse}, files_).status().message(),
            commits().string() + ": no checkpoints here");
  EXPECT_EQ(CheckpointStore::open({run(), "a/b", OnDamage::kRefuse}, files_).status().code(),
            Errc::kInvalidArgument);
  commit(*open(), 1);
  EXPECT_EQ(CheckpointStore::open({run(), "run-2", OnDamage::kRefuse}, files_).status().message(),
            commits().string() + ": holds the run run-1, not run-2");
  const auto store = CheckpointStore::open({run(), "", OnDamage::kRefuse}, files_).value();
  EXPECT_EQ(store->run_id(), "run-1");
  EXPECT_EQ(store->last()->step, 1U);
}

TEST_F(CheckpointStoreTest, RefusesASecondProcess) {
  const auto store = open();
  const Status second = try_open().status();
  EXPECT_EQ(second.code(), Errc::kUnavailable);
  EXPECT_THAT(second.message(), HasSubstr("in use by process "));
}

TEST_F(CheckpointStoreTest, ANewerFormatIsRefused) {
  commit(*open(), 1);
  write_whole(commits() / "store.json", "{\"format\": 2, \"run\": \"run-1\", \"more\": 1}\n");
  const Status refused = try_open(OnDamage::kUseNewestIntact).status();
  EXPECT_EQ(refused.code(), Errc::kInvalidArgument);
  EXPECT_EQ(refused.message(), (commits() / "store.json").string() +
                                   ": made by a newer version of tidemill (format 2; this one "
                                   "reads up to 1)");
}

TEST_F(CheckpointStoreTest, ANewerFormatIsRefusedEvenIfAnOlderCommitExists) {
  commit(*open(), 1);
  const std::string text = "{\"format\": 2}";
  const std::string digest = digest_bytes(std::as_bytes(std::span(text)));
  write_whole(commits() / manifest_file_name({9, digest}), text);
  for (const OnDamage on_damage : {OnDamage::kRefuse, OnDamage::kUseNewestIntact}) {
    EXPECT_THAT(try_open(on_damage).status().message(),
                HasSubstr("made by a newer version of tidemill (format 2"));
  }
}

TEST_F(CheckpointStoreTest, CanBeReadWhileTheRunCommits) {
  const auto store = open();
  commit(*store, 1);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (std::uint64_t step = 2; step <= 150; ++step) {
      commit(*store, step);
    }
    done = true;
  });
  std::uint64_t reads = 0;
  std::uint64_t last = 0;
  while (!done) {
    const auto state = read_last_checkpoint(run());
    ASSERT_TRUE(state.ok()) << state.status().to_string();
    ASSERT_EQ(fingerprint(state.value()), fingerprint(state_at(state.value().step)));
    ASSERT_GE(state.value().step, last);
    last = state.value().step;
    ++reads;
  }
  writer.join();
  EXPECT_EQ(read_last_checkpoint(run()).value().step, 150U);
  std::cout << "reads during 149 commits: " << reads << "\n";
}

}  // namespace
}  // namespace tidemill::storage
