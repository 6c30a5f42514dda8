// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/disk_store.hpp"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/tinker/lora_config.hpp"
#include "base/digest.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "tests/support/faulty_file_system.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

namespace fs = std::filesystem;
namespace tinker = actors::tinker;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using tinker::CheckpointKind;

constexpr int kMaxCalls = 500;  // of the file system in one call of the store

class DiskStoreTest : public ::testing::Test {
protected:
  DiskStoreTest()
      : model_(engines::open_model(fs::path(TIDEMILL_SOURCE_DIR) / "examples/models/arithmetic")
                   .value()) {
    open();
  }

  void open() {
    store_.reset();  // its lock
    auto store = tinker::open_disk_store(files_, root(), model_.config);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    store_ = std::move(store).value();
  }
  fs::path root() { return folder_.path() / "checkpoints"; }
  // Runs `action` on a server that has one checkpoint, "a", and ends with its file system call
  // `at`. Opens the store again, as the next server does. Returns whether the action was confirmed.
  template <class Action>
  bool confirmed_before(int at, const Action& action) {
    store_.reset();
    fs::remove_all(root());
    open();
    EXPECT_TRUE(store_->put(info("a"), state(1), {}).ok());
    store_.reset();
    FaultyFileSystem dying({at, EIO, true});
    auto other = tinker::open_disk_store(dying, root(), model_.config);
    const bool confirmed = other.ok() && action(*other.value());
    if (other.ok()) {
      other.value().reset();
    }
    open();
    return confirmed;
  }

  static tinker::CheckpointInfo info(const std::string& name) {
    tinker::CheckpointInfo info;
    info.path = {"abc:train:0", CheckpointKind::kTraining, name};
    info.base_model = "arithmetic";
    info.lora.rank = 2;
    info.lora.train_unembed = false;
    info.has_optimizer = true;
    info.created = 1000;
    info.expires_at = 5000;
    info.user_metadata = {{"k", "v"}};
    return info;
  }
  tinker::JobState state(std::uint64_t seed) {
    tinker::JobState state;
    const auto config = tinker::to_adapter_config(info("a").lora, "arithmetic");
    state.weights.adapter =
        engines::make_adapter(config, model_, DType::kF32, seed).value().tensors;
    state.weights.adapter_digest = digest_tensors(state.weights.adapter);
    state.weights.base_digest = "base";
    state.optimizer = state.weights.adapter;  // any tensors
    return state;
  }

  // Returns the content of a file of checkpoint "a".
  std::string content_of(const std::string& name) {
    return read_text_file(store_->open_file(info("a").path, name).value()->path(), 1U << 30U)
        .value();
  }

  TemporaryDirectory folder_{memory_directory_path()};  // many writes are synced
  PosixFileSystem files_;
  engines::ModelFiles model_;
  std::unique_ptr<tinker::CheckpointStore> store_;
};

TEST_F(DiskStoreTest, ReadsWhatItHasStored) {
  const tinker::JobState saved = state(1);
  const auto size = store_->put(info("a"), saved, {});
  ASSERT_TRUE(size.ok()) << size.status().to_string();
  EXPECT_GT(size.value(), 1000);
  tinker::RunInfo run{"abc:train:0", "arithmetic", info("a").lora, 2000, {{"k", "v"}}};
  ASSERT_TRUE(store_->put_run(run).ok());
  open();  // as a server that starts again
  const auto all = store_->checkpoints();
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  ASSERT_EQ(all.value().entries.size(), 1U);
  const tinker::CheckpointInfo& found = all.value().entries[0];
  EXPECT_EQ(found.path, info("a").path);
  EXPECT_EQ(found.lora, info("a").lora);
  EXPECT_EQ(found.size_bytes, size.value());
  EXPECT_EQ(found.expires_at, 5000);
  EXPECT_EQ(found.user_metadata, info("a").user_metadata);
  EXPECT_TRUE(found.has_optimizer);
  const auto runs = store_->runs();
  ASSERT_TRUE(runs.ok()) << runs.status().to_string();
  ASSERT_EQ(runs.value().entries.size(), 1U);
  EXPECT_EQ(runs.value().entries[0].id, "abc:train:0");
  EXPECT_EQ(runs.value().entries[0].last_request, 2000);
  const auto read = store_->get(info("a").path, true);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(digest_tensors(read.value().weights.adapter), saved.weights.adapter_digest);
  EXPECT_EQ(read.value().weights.adapter_digest, saved.weights.adapter_digest);
  EXPECT_EQ(read.value().weights.base_digest, "base");
  EXPECT_EQ(digest_tensors(*read.value().optimizer), digest_tensors(*saved.optimizer));
  EXPECT_FALSE(store_->get(info("a").path, false).value().optimizer.has_value());
}

TEST_F(DiskStoreTest, ForgetsRunsThatHaveNoCheckpoint) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  for (const char* id : {"abc:train:0", "abc:train:1"}) {
    ASSERT_TRUE(store_->put_run({id, "arithmetic", info("a").lora, 2000, {}}).ok());
    EXPECT_TRUE(store_->remove_run(id).ok());
  }
  EXPECT_TRUE(store_->remove_run("abc:train:2").ok());
  EXPECT_FALSE(fs::exists(root() / "abc.train.1"));
  const auto runs = store_->runs();
  ASSERT_EQ(runs.value().entries.size(), 1U);
  EXPECT_EQ(runs.value().entries[0].id, "abc:train:0");
  EXPECT_TRUE(store_->get(info("a").path, true).ok());
}

TEST_F(DiskStoreTest, ADamagedOptimizerIsRefused) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  const fs::path folder = root() / "abc.train.0" / "weights" / "a";
  const auto damage = [&](char byte) {
    std::fstream file(folder / "optimizer.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write(std::string(4, byte).data(), 4);
  };
  damage(1);
  const Status status = store_->get(info("a").path, true).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_EQ(status.message(),
            "abc.train.0/weights/a/optimizer.safetensors: the digest of the state does not match");
  EXPECT_TRUE(store_->get(info("a").path, false).ok());
  // Checkpoints of earlier versions have no digest of the optimizer's state.
  std::string text = read_text_file(folder / "checkpoint.json", 1U << 20U).value();
  const std::size_t at = text.find("\"optimizer_digest\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 18, "\"of_no_meaning___\"");
  std::ofstream(folder / "checkpoint.json") << text;
  EXPECT_TRUE(store_->get(info("a").path, true).ok());
  damage('\xff');
  EXPECT_EQ(store_->get(info("a").path, true).status().message(),
            "abc.train.0/weights/a/optimizer.safetensors: a value is not finite");
}

TEST_F(DiskStoreTest, ADamagedAdapterIsRefused) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  const fs::path file = root() / "abc.train.0" / "weights" / "a" / "adapter_model.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(-4, std::ios::end);
  stream.write("\1\1\1\1", 4);
  stream.close();
  const Status status = store_->get(info("a").path, false).status();
  EXPECT_EQ(status.code(), Errc::kCorruptData);
  EXPECT_EQ(status.message(), "abc.train.0/weights/a: the digest of the adapter does not match");
}

// The root may be a folder that holds other data.
TEST_F(DiskStoreTest, WhatBelongsToNoRunIsLeftAlone) {
  const fs::path outside = folder_.path() / "outside";
  const std::vector<fs::path> others = {root() / "project" / "weights" / "epoch1" / "model.bin",
                                        root() / "downloads" / "incomplete" / "film.bin",
                                        outside / "weights" / "e1" / "model.bin",
                                        outside / "incomplete" / "x"};
  for (const fs::path& file : others) {
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "x";
  }
  fs::create_symlink(outside, root() / "abc.train.7");
  open();
  const auto listed = store_->checkpoints();
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed.value().damaged.size(), 3U);
  ASSERT_TRUE(store_->runs().ok());
  for (const fs::path& file : others) {
    EXPECT_TRUE(fs::exists(file)) << file;
  }
}

TEST_F(DiskStoreTest, ACheckpointThatHasLostItsDescriptionIsLeftToTheUser) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  const fs::path folder = root() / "abc.train.0" / "weights" / "a";
  fs::remove(folder / "checkpoint.json");
  open();
  const auto listed = store_->checkpoints();
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed.value().damaged.size(), 1U);
  EXPECT_EQ(listed.value().damaged[0].id, to_text(info("a").path));
  EXPECT_TRUE(fs::exists(folder / "adapter_model.safetensors"));
  EXPECT_TRUE(store_->remove(info("a").path).ok());
  EXPECT_FALSE(fs::exists(folder));
}

TEST_F(DiskStoreTest, OneProcessAtATimeUsesADirectory) {
  const auto other = tinker::open_disk_store(files_, root(), model_.config);
  EXPECT_EQ(other.status().code(), Errc::kUnavailable);
  EXPECT_THAT(other.status().message(), HasSubstr("in use by process"));
  open();
}

TEST_F(DiskStoreTest, ReplacesAndRemoves) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  ASSERT_TRUE(store_->put(info("a"), state(2), {}).ok());
  EXPECT_EQ(store_->get(info("a").path, false).value().weights.adapter_digest,
            state(2).weights.adapter_digest);
  ASSERT_TRUE(store_->set_expiry(info("a").path, std::nullopt).ok());
  EXPECT_EQ(store_->checkpoints().value().entries[0].expires_at, std::nullopt);
  EXPECT_EQ(store_->get(info("a").path, false).value().weights.adapter_digest,
            state(2).weights.adapter_digest);  // kept
  ASSERT_TRUE(store_->remove(info("a").path).ok());
  EXPECT_EQ(store_->remove(info("a").path).code(), Errc::kNotFound);
  EXPECT_THAT(store_->checkpoints().value().entries, IsEmpty());
  EXPECT_EQ(store_->get(info("a").path, false).status().code(), Errc::kNotFound);
}

TEST_F(DiskStoreTest, FilesAreThoseOfThePeftLayout) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  const auto listed = store_->files(info("a").path);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed.value().size(), 2U);
  for (const tinker::CheckpointFile& file : listed.value()) {
    EXPECT_EQ(store_->open_file(info("a").path, file.name).value()->size_bytes(),
              static_cast<std::uint64_t>(file.size_bytes));
  }
  const std::string config = content_of("adapter_config.json");
  EXPECT_THAT(config, HasSubstr("\"lora_alpha\": 32"));
  EXPECT_THAT(config, HasSubstr("q_proj"));
  EXPECT_EQ(store_->open_file(info("a").path, "checkpoint.json").status().code(), Errc::kNotFound);
  EXPECT_EQ(store_->open_file(info("a").path, "../../run.json").status().code(), Errc::kNotFound);
}

TEST_F(DiskStoreTest, FilesAreEncryptedToRecipients) {
  const std::vector<tinker::AgeRecipient> recipients = {
      tinker::parse_age_recipient("age1anf444dz60eqmxheac8x33nfj5vxt54amu8hfahzpxyq955wdgmq7cu77y")
          .value()};
  ASSERT_TRUE(store_->put(info("a"), state(1), recipients).ok());
  const auto listed = store_->files(info("a").path);
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed.value().size(), 2U);
  for (const tinker::CheckpointFile& file : listed.value()) {
    EXPECT_TRUE(file.name.ends_with(".age")) << file.name;
    EXPECT_EQ(content_of(file.name).substr(0, 22), "age-encryption.org/v1\n");
  }
}

TEST_F(DiskStoreTest, WhatAKilledServerLeftIsCleared) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  fs::create_directories(root() / "abc.train.0" / "incomplete" / "b");
  std::ofstream(root() / "abc.train.0" / "incomplete" / "b" / "adapter_config.json") << "{";
  open();
  EXPECT_EQ(store_->checkpoints().value().entries.size(), 1U);
  ASSERT_TRUE(store_->runs().ok());
  EXPECT_FALSE(fs::exists(root() / "abc.train.0" / "incomplete"));
}

// Whenever a server ends, the next one finds the checkpoint that was confirmed, or its replacement.
TEST_F(DiskStoreTest, AServerThatEndsWhileItReplacesLosesNoCheckpoint) {
  const std::string old_digest = state(1).weights.adapter_digest;
  const std::string new_digest = state(2).weights.adapter_digest;
  int replaced = 0;
  int at = 0;
  for (bool confirmed = false; !confirmed && at < kMaxCalls;) {
    ++at;
    confirmed =
        confirmed_before(at, [&](auto& store) { return store.put(info("a"), state(2), {}).ok(); });
    const auto listed = store_->checkpoints();
    ASSERT_TRUE(listed.ok()) << at << ": " << listed.status().to_string();
    ASSERT_EQ(listed.value().entries.size(), 1U) << at;
    ASSERT_TRUE(store_->runs().ok()) << at;
    const auto kept = store_->get(info("a").path, true);
    ASSERT_TRUE(kept.ok()) << at << ": " << kept.status().to_string();
    const std::string digest = digest_tensors(kept.value().weights.adapter);
    EXPECT_EQ(digest, kept.value().weights.adapter_digest) << at;
    EXPECT_TRUE(digest == new_digest || (!confirmed && digest == old_digest)) << at;
    replaced += digest == new_digest ? 1 : 0;
    EXPECT_TRUE(store_->put(info("a"), state(2), {}).ok()) << at;
  }
  EXPECT_GT(at, 20);
  EXPECT_LT(at, kMaxCalls);
  EXPECT_GT(replaced, 1);
  EXPECT_LT(replaced, at);
}

TEST_F(DiskStoreTest, AServerThatEndsWhileItRemovesLeavesAllOrNothing) {
  int at = 0;
  for (bool confirmed = false; !confirmed && at < kMaxCalls;) {
    ++at;
    confirmed =
        confirmed_before(at, [&](auto& store) { return store.remove(info("a").path).ok(); });
    const auto listed = store_->checkpoints();
    ASSERT_TRUE(listed.ok()) << at << ": " << listed.status().to_string();
    if (!listed.value().entries.empty()) {
      EXPECT_FALSE(confirmed) << at;
      EXPECT_TRUE(store_->get(info("a").path, true).ok()) << at;
    }
    EXPECT_TRUE(store_->runs().ok()) << at;
    EXPECT_FALSE(fs::exists(root() / "abc.train.0" / "removed")) << at;
    EXPECT_TRUE(store_->put(info("a"), state(2), {}).ok()) << at;
  }
  EXPECT_GT(at, 2) << "the checkpoint has been renamed and its folder synced";
  EXPECT_LT(at, kMaxCalls);
}

TEST_F(DiskStoreTest, AFullDiskKeepsWhatItHasAndGivesBackTheRest) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  int failures = 0;
  for (int at = 1; at <= 60; ++at) {
    store_.reset();
    FaultyFileSystem full({at, ENOSPC, false});
    auto other = tinker::open_disk_store(full, root(), model_.config);
    const bool opened = other.ok();
    const auto put =
        opened ? other.value()->put(info("b"), state(2), {}) : Result<std::int64_t>(other.status());
    other = Status(Errc::kUnavailable, "closed");
    open();
    if (put.ok()) {
      continue;  // only the removal of what was replaced has failed
    }
    ++failures;
    EXPECT_EQ(put.status().code(), Errc::kResourceExhausted) << at;
    EXPECT_TRUE(!opened || put.status().message().find(root().string()) == std::string::npos)
        << put.status().message();
    EXPECT_FALSE(fs::exists(root() / "abc.train.0" / "incomplete" / "b")) << at;
    EXPECT_EQ(store_->get(info("a").path, true).value().weights.adapter_digest,
              state(1).weights.adapter_digest);
  }
  EXPECT_GT(failures, 10);
}

TEST_F(DiskStoreTest, DamagedEntriesAreNamedAndHideNoOthers) {
  ASSERT_TRUE(store_->put(info("a"), state(1), {}).ok());
  ASSERT_TRUE(store_->put(info("b"), state(1), {}).ok());
  ASSERT_TRUE(store_->put(info("c"), state(1), {}).ok());
  const fs::path weights = root() / "abc.train.0" / "weights";
  std::ofstream(weights / "b" / "checkpoint.json") << "{";
  std::ofstream(weights / "c" / "checkpoint.json") << R"({"path": "tinker://x"})";
  std::ofstream(weights / "file") << "stray";
  std::ofstream(root() / "abc.train.0" / "run.json") << "[";
  fs::create_directories(root() / "junk" / "weights" / "..x");
  fs::create_symlink(root() / "loop", root() / "loop");
  const auto listed = store_->checkpoints();
  ASSERT_TRUE(listed.ok()) << listed.status().to_string();
  ASSERT_EQ(listed.value().entries.size(), 1U);
  EXPECT_EQ(listed.value().entries[0].path.name, "a");
  const auto& damaged = listed.value().damaged;
  ASSERT_EQ(damaged.size(), 5U);
  EXPECT_EQ(damaged[0].id, to_text(info("b").path));
  EXPECT_THAT(damaged[0].reason, StartsWith("abc.train.0/weights/b/checkpoint.json: not JSON"));
  EXPECT_EQ(damaged[1].id, to_text(info("c").path));
  EXPECT_THAT(damaged[1].reason,
              StartsWith("abc.train.0/weights/c/checkpoint.json: path: must be"));
  EXPECT_THAT(damaged[2].reason, HasSubstr("abc.train.0/weights/file"));
  EXPECT_EQ(damaged[3].reason, "junk: is not the folder of a training run");
  EXPECT_THAT(damaged[4].reason, HasSubstr("loop"));
  const auto runs = store_->runs();
  ASSERT_TRUE(runs.ok()) << runs.status().to_string();
  ASSERT_EQ(runs.value().damaged.size(), 1U);
  EXPECT_EQ(runs.value().damaged[0].id, "abc:train:0");
  EXPECT_EQ(store_->get(info("b").path, true).status().code(), Errc::kCorruptData);
  EXPECT_TRUE(store_->remove(info("b").path).ok());
}

TEST_F(DiskStoreTest, ErrorsNameNoPathOfTheServer) {
  const tinker::CheckpointInfo a = info("a");
  ASSERT_TRUE(store_->put(a, state(1), {}).ok());
  const auto errors = [&] {
    return std::vector<Status>{store_->get(a.path, true).status(), store_->set_expiry(a.path, 6000),
                               store_->files(a.path).status(),
                               store_->open_file(a.path, "adapter_config.json").status(),
                               store_->remove(a.path)};
  };
  fs::remove_all(root() / "abc.train.0" / "weights" / "a");
  for (const Status& error : errors()) {
    EXPECT_EQ(error.code(), Errc::kNotFound);
    EXPECT_EQ(error.message(),
              "tinker://abc:train:0/weights/a: the server no longer has its files");
  }
  ASSERT_TRUE(store_->put(a, state(1), {}).ok());
  std::ofstream(root() / "abc.train.0" / "weights" / "a" / "checkpoint.json") << "{";
  std::ofstream(root() / "abc.train.0" / "run.json") << "[]";
  for (const std::string& message :
       {store_->get(a.path, true).status().message(), store_->set_expiry(a.path, 6000).message(),
        store_->checkpoints().value().damaged.at(0).reason,
        store_->runs().value().damaged.at(0).reason}) {
    EXPECT_THAT(message, Not(HasSubstr(folder_.path().string())));
  }
  fs::remove_all(root());
  EXPECT_FALSE(store_->checkpoints().ok());
  EXPECT_THAT(store_->checkpoints().status().message(), Not(HasSubstr(folder_.path().string())));
}

}  // namespace
}  // namespace tidemill::test
