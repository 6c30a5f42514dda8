// SPDX-License-Identifier: Apache-2.0
// Tests actors/commit: commits are converted to checkpoints and back.
#include "actors/commit/checkpoint_commits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::RunCommit;
using ::testing::HasSubstr;

TensorMap tensors(const std::string& name, float value) {
  Tensor tensor;
  tensor.shape = {1};
  tensor.data = Buffer::adopt(std::vector<float>{value}, DType::kF32);
  return {{name, tensor}};
}

RunCommit some_commit() {
  RunCommit commit;
  commit.weights.version = {1, 2, 3};
  commit.weights.base = tensors("w", 0.5F);
  commit.weights.base_digest = digest_tensors(commit.weights.base);
  commit.optimizer = tensors("m", 0.25F);
  commit.stream.bytes = Buffer::adopt(std::vector<std::uint8_t>{1, 0, 2}, DType::kU8);
  commit.records = {100, 200};
  commit.data_position = 17;
  commit.evaluated_step = 2;
  return commit;
}

actors::RunInputs some_inputs() {
  return {"/models/small", false, "0123abcd", "", "tok1"};
}

TEST(CheckpointCommits, ACommitSurvivesTheConversionToACheckpointAndBack) {
  const RunCommit commit = some_commit();
  const auto back = actors::from_checkpoint(actors::to_checkpoint(commit, some_inputs()));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value().weights.version, commit.weights.version);
  EXPECT_EQ(back.value().weights.base_digest, commit.weights.base_digest);
  EXPECT_EQ(digest_tensors(back.value().weights.base), commit.weights.base_digest);
  EXPECT_TRUE(back.value().weights.adapter.empty());
  EXPECT_EQ(digest_tensors(back.value().optimizer), digest_tensors(commit.optimizer));
  EXPECT_EQ(back.value().stream.bytes.as<std::uint8_t>()[2], 2);
  EXPECT_EQ(back.value().stream.bytes.size_bytes(), 3U);
  EXPECT_EQ(back.value().records.metrics_bytes, 100U);
  EXPECT_EQ(back.value().records.samples_bytes, 200U);
  EXPECT_EQ(back.value().data_position, 17U);
  EXPECT_EQ(back.value().evaluated_step, 2U);
  EXPECT_EQ(back.value().data_digest, "0123abcd");
}

TEST(CheckpointCommits, TheConfigAndBaseOfAnAdapterAreStoredWithIt) {
  RunCommit commit = some_commit();
  commit.weights.adapter = tensors("a", 2.0F);
  commit.weights.adapter_digest = digest_tensors(commit.weights.adapter);
  actors::RunInputs inputs = some_inputs();
  inputs.adapter_config = R"({"r": 8})";
  const storage::Checkpoint checkpoint = actors::to_checkpoint(commit, inputs);
  EXPECT_EQ(checkpoint.blobs.at(actors::kAdapterConfigPart), R"({"r": 8})");
  EXPECT_THAT(checkpoint.blobs.at(actors::kMetaPart), HasSubstr("/models/small"));
}

TEST(CheckpointCommits, TheStepOfTheLastCommitIsKnownWithoutReadingIt) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto store = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto commits = actors::make_checkpoint_commits(std::move(store).value());
  EXPECT_FALSE(commits->last_step().has_value());
  ASSERT_TRUE(commits->save(some_commit()).ok());
  EXPECT_EQ(commits->last_step(), 3U);
}

TEST(CheckpointCommits, ACommitOfOtherDataIsRefused) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto store = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto commits = actors::make_checkpoint_commits(std::move(store).value());
  commits->set_inputs(some_inputs());
  ASSERT_TRUE(commits->save(some_commit()).ok());
  ASSERT_TRUE(commits->load().ok());
  actors::RunInputs changed = some_inputs();
  changed.data_digest = "4567";
  commits->set_inputs(changed);
  EXPECT_EQ(commits->load().status().message(),
            "data.train: not the data that the run was started with");
}

TEST(CheckpointCommits, ACommitOfAnotherTokenizerIsRefused) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto store = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto commits = actors::make_checkpoint_commits(std::move(store).value());
  actors::RunInputs inputs = some_inputs();
  inputs.tokenizer_digest = "";  // as an older program committed it
  commits->set_inputs(inputs);
  ASSERT_TRUE(commits->save(some_commit()).ok());
  commits->set_inputs(some_inputs());
  EXPECT_TRUE(commits->load().ok());
  ASSERT_TRUE(commits->save(some_commit()).ok());
  EXPECT_TRUE(commits->load().ok());
  inputs.tokenizer_digest = "tok2";
  commits->set_inputs(inputs);
  EXPECT_EQ(commits->load().status().message(),
            "model.path: the tokenizer or the chat template is not the one that the run was "
            "started with");
}

TEST(CheckpointCommits, ACommitWhoseRecordsAreGoneIsRefused) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto store = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto commits = actors::make_checkpoint_commits(std::move(store).value(), folder.path());
  RunCommit commit = some_commit();
  commit.records = {4, 0};
  EXPECT_EQ(commits->save(commit).message(),
            (folder.path() / "metrics.jsonl").string() + ": was removed during the run");
  EXPECT_FALSE(commits->load().value().has_value());
  ASSERT_TRUE(write_file(files, folder.path() / "metrics.jsonl", std::string_view("one\n")).ok());
  EXPECT_TRUE(commits->save(commit).ok());
}

TEST(CheckpointCommits, LostRecordsAreAcceptedInANewCommitOfTheSameState) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto opened = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const std::shared_ptr<storage::CheckpointStore> store = std::move(opened).value();
  const auto commits = actors::make_checkpoint_commits(store);
  commits->set_inputs(some_inputs());
  ASSERT_TRUE(commits->save(some_commit()).ok());
  const std::string line = "{\"kind\":\"train\",\"step\":1}\n";
  ASSERT_TRUE(write_file(files, folder.path() / "metrics.jsonl", line + "{\"kind\"").ok());
  ASSERT_TRUE(actors::accept_lost_records(*store, files, folder.path()).ok());
  const auto back = commits->load();
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value()->records.metrics_bytes, line.size());
  EXPECT_EQ(back.value()->records.samples_bytes, 0U);
  EXPECT_EQ(back.value()->weights.version, some_commit().weights.version);
  EXPECT_EQ(back.value()->data_digest, some_inputs().data_digest);
  EXPECT_EQ(back.value()->data_position, some_commit().data_position);
  EXPECT_EQ(digest_tensors(back.value()->weights.base), some_commit().weights.base_digest);
}

TEST(CheckpointCommits, ACommitOfAnotherAdapterIsRefused) {
  const TemporaryDirectory folder;
  PosixFileSystem files;
  auto store = storage::CheckpointStore::open({folder.path(), "run"}, files);
  ASSERT_TRUE(store.ok()) << store.status().message();
  const auto commits = actors::make_checkpoint_commits(std::move(store).value());
  actors::RunInputs inputs = some_inputs();
  inputs.adapter_config = R"({"lora_alpha": 8})";
  commits->set_inputs(inputs);
  ASSERT_TRUE(commits->save(some_commit()).ok());
  ASSERT_TRUE(commits->load().ok());
  inputs.adapter_config = R"({"lora_alpha": 400})";
  commits->set_inputs(inputs);
  EXPECT_EQ(commits->load().status().message(),
            "train.adapter: not the adapter that the run was started with");
}

TEST(CheckpointCommits, OnlyTheAdapterIsStoredAndItsBaseByDigest) {
  RunCommit commit = some_commit();
  commit.weights.adapter = tensors("a", 2.0F);
  commit.weights.adapter_digest = digest_tensors(commit.weights.adapter);
  const storage::Checkpoint checkpoint = actors::to_checkpoint(commit, some_inputs());
  EXPECT_TRUE(checkpoint.tensors.at(actors::kWeightsPart).contains("a"));
  EXPECT_FALSE(checkpoint.tensors.at(actors::kWeightsPart).contains("w"));
  const auto back = actors::from_checkpoint(checkpoint);
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(back.value().weights.base.empty());
  EXPECT_EQ(back.value().weights.base_digest, commit.weights.base_digest);
  EXPECT_EQ(digest_tensors(back.value().weights.adapter), commit.weights.adapter_digest);
}

TEST(CheckpointCommits, TheBestWeightsAreRestoredToo) {
  RunCommit commit = some_commit();
  EXPECT_FALSE(actors::from_checkpoint(actors::to_checkpoint(commit, {})).value().best.has_value());
  commit.best = actors::BestSoFar{0.1, 2, 5, {}};
  auto back = actors::from_checkpoint(actors::to_checkpoint(commit, {}));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  ASSERT_TRUE(back.value().best.has_value());
  EXPECT_EQ(back.value().best->value, 0.1);
  EXPECT_EQ(back.value().best->step, 2U);
  EXPECT_EQ(back.value().best->num_worse, 5U);
  EXPECT_TRUE(back.value().best->weights.base.empty());

  commit.best->weights.base = tensors("w", 0.75F);
  commit.best->weights.base_digest = digest_tensors(commit.best->weights.base);
  storage::Checkpoint checkpoint = actors::to_checkpoint(commit, {});
  back = actors::from_checkpoint(checkpoint);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value().best->weights.base_digest, commit.best->weights.base_digest);
  EXPECT_EQ(digest_tensors(back.value().best->weights.base), commit.best->weights.base_digest);
  EXPECT_EQ(digest_tensors(back.value().weights.base), commit.weights.base_digest);

  checkpoint.blobs[actors::kMetaPart] =
      actors::to_checkpoint(some_commit(), {}).blobs[actors::kMetaPart];
  EXPECT_THAT(actors::from_checkpoint(checkpoint).status().message(), HasSubstr("\"best\""));
}

TEST(CheckpointCommits, AMissingPartIsNamedInTheError) {
  const storage::Checkpoint whole = actors::to_checkpoint(some_commit(), some_inputs());
  for (const char* part :
       {actors::kWeightsPart, actors::kOptimizerPart, actors::kStreamPart, actors::kMetaPart}) {
    storage::Checkpoint incomplete = whole;
    incomplete.tensors.erase(part);
    incomplete.blobs.erase(part);
    const auto back = actors::from_checkpoint(incomplete);
    ASSERT_FALSE(back.ok()) << part;
    EXPECT_EQ(back.status().code(), Errc::kCorruptData);
    EXPECT_THAT(back.status().message(), HasSubstr(std::string("\"") + part + "\""));
  }
}

TEST(CheckpointCommits, UnreadableMetaIsNamedInTheError) {
  for (const char* text : {"", "[]", "{\"format\": 1}", "{\"format\": 99}", "{\"format\": -1}"}) {
    storage::Checkpoint checkpoint = actors::to_checkpoint(some_commit(), some_inputs());
    checkpoint.blobs[actors::kMetaPart] = text;
    const auto back = actors::from_checkpoint(checkpoint);
    ASSERT_FALSE(back.ok()) << text;
    EXPECT_EQ(back.status().code(), Errc::kCorruptData);
    EXPECT_THAT(back.status().message(), HasSubstr("commit")) << text;
  }
}

}  // namespace
}  // namespace tidemill::test
