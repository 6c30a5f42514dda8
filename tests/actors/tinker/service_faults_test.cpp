// SPDX-License-Identifier: Apache-2.0
// Tests what the service of Tinker's API does if requests are wrong, sessions end early, or the
// store fails.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/tinker/service_fixture.hpp"

namespace tidemill::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

tinker::CheckpointPath sampler_path(const std::string& model, const std::string& name) {
  return {model, CheckpointKind::kSampler, name};
}

tinker::CreateSamplingSession sampling_of(const std::string& session,
                                          const tinker::CheckpointPath& path,
                                          std::int64_t seq_id = 0) {
  tinker::CreateSamplingSession call;
  call.session_id = session;
  call.sampling_seq_id = seq_id;
  call.path = path;
  return call;
}

TEST_F(TinkerServiceTest, AnAdapterOfASessionThatEndsWhileItSamplesCanBeUnloaded) {
  limits_.max_published = 1;
  start();
  const std::string model = new_model(new_session());
  for (const char* name : {"a", "b"}) {
    ask(save(model, name[0] - 'a' + 1, CheckpointKind::kSampler, name));
  }
  backend_.run();
  for (const char* name : {"a", "b"}) {
    const std::string session = new_session();
    const std::string sampler =
        ask(sampling_of(session, sampler_path(model, name)))["sampling_session_id"];
    ask(sample(sampler, 0));
    backend_.run_one();  // reads the checkpoint
    ask(tinker::FinishSession{session});
    backend_.run();
  }
  EXPECT_THAT(backend_.published, ElementsAre(to_text(sampler_path(model, "b"))));
}

TEST_F(TinkerServiceTest, ACheckpointThatChangesWhileItIsPublishedIsPublishedAgain) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  const tinker::CheckpointPath path = sampler_path(model, "a");
  ask(save(model, 1, CheckpointKind::kSampler, "a"));
  backend_.run();
  const std::string sampler = ask(sampling_of(session, path))["sampling_session_id"];
  const std::string request = ask(sample(sampler, 0))["request_id"];  // begins to read the old one
  ask(tinker::DeleteCheckpoint{path});
  EXPECT_THAT(backend_.published, IsEmpty());
  EXPECT_THAT(std::string(result(request)["error"]), HasSubstr("no such checkpoint"));
}

TEST_F(TinkerServiceTest, ASnapshotWithAUsedNumberFails) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  const std::string sampler = new_sampler(session);  // of the base, with number 0
  tinker::SaveWeights call = snapshot(model, 1);
  call.sampling_seq_id = 0;
  const std::string request = ask(call)["request_id"];
  backend_.run();
  EXPECT_THAT(std::string(result(request)["error"]), HasSubstr("sampling_session_seq_id"));
  EXPECT_EQ(result(request)["category"], "user");
}

TEST_F(TinkerServiceTest, ACheckpointThatCannotBeRemovedCanBeRemovedAgain) {
  const std::string model = new_model(new_session());
  ask(save(model, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  const tinker::CheckpointPath path{model, CheckpointKind::kTraining, "a"};
  store_.next_remove_failure = Status(Errc::kInvalidArgument, "cannot remove: Is a directory");
  EXPECT_THAT(std::string(ask(tinker::DeleteCheckpoint{path}, 500)["error"]["message"]),
              HasSubstr("Is a directory"));
  EXPECT_EQ(ask(tinker::ListCheckpoints{})["checkpoints"].size(), 1U);
  ask(tinker::DeleteCheckpoint{path});
  EXPECT_EQ(ask(tinker::ListCheckpoints{})["checkpoints"].size(), 0U);
}

tinker::SaveWeights overwriting(tinker::SaveWeights call) {
  call.overwrite = true;
  return call;
}

TEST_F(TinkerServiceTest, ACheckpointThatExpiresWhileItIsReplacedIsKept) {
  const std::string model = new_model(new_session());
  tinker::SaveWeights first = overwriting(save(model, 1, CheckpointKind::kTraining, "a"));
  first.ttl_seconds = 5;
  ask(first);
  backend_.run();
  ask(overwriting(save(model, 2, CheckpointKind::kTraining, "a")));
  backend_.run_one();  // writes the new one
  pass(std::chrono::seconds(10));
  backend_.run();
  pass(std::chrono::seconds(10));
  backend_.run();
  EXPECT_EQ(store_.entries.size(), 1U);
  EXPECT_EQ(ask(tinker::ListCheckpoints{})["checkpoints"].size(), 1U);
}

TEST_F(TinkerServiceTest, ACheckpointThatIsDeletedWhileItIsReplacedIsGone) {
  const std::string model = new_model(new_session());
  const tinker::CheckpointPath path{model, CheckpointKind::kTraining, "a"};
  ask(overwriting(save(model, 1, CheckpointKind::kTraining, "a")));
  backend_.run();
  ask(overwriting(save(model, 2, CheckpointKind::kTraining, "a")));
  backend_.run_one();  // writes the new one
  ask(tinker::DeleteCheckpoint{path});
  backend_.run();
  EXPECT_THAT(store_.entries, IsEmpty());
  EXPECT_EQ(ask(tinker::ListCheckpoints{})["checkpoints"].size(), 0U);
}

TEST_F(TinkerServiceTest, ACheckpointOfAnotherBaseSaysSoIfItDoesNotFit) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  const tinker::CheckpointPath path = sampler_path(model, "a");
  ask(save(model, 1, CheckpointKind::kSampler, "a"));
  backend_.run();
  store_.entries.at(path).first.base_model = "other";
  start();  // a server that starts again
  store_.next_get_failure = Status(Errc::kInvalidArgument, "a.safetensors: shape [8, 1024]");
  const std::string sampler = ask(sampling_of(new_session(), path))["sampling_session_id"];
  const std::string request = ask(sample(sampler, 0))["request_id"];
  backend_.run();
  EXPECT_THAT(std::string(result(request)["error"]),
              HasSubstr("the checkpoint is of the base model \"other\", and the server serves "
                        "\"base\": a.safetensors: shape"));
}

TEST_F(TinkerServiceTest, ACheckpointWithoutFilesCanBeDeleted) {
  const std::string model = new_model(new_session());
  ask(overwriting(save(model, 1, CheckpointKind::kTraining, "a")));
  backend_.run();
  store_.entries.clear();
  ask(tinker::DeleteCheckpoint{{model, CheckpointKind::kTraining, "a"}});
  EXPECT_EQ(ask(tinker::ListCheckpoints{})["checkpoints"].size(), 0U);
}

TEST_F(TinkerServiceTest, AnExpiredCheckpointThatCannotBeRemovedIsTriedAgainAfterAMinute) {
  const std::string model = new_model(new_session());
  tinker::SaveWeights call = save(model, 1, CheckpointKind::kTraining, "a");
  call.ttl_seconds = 5;
  ask(call);
  backend_.run();
  store_.next_remove_failure = Status(Errc::kInternal, "read-only file system");
  const auto pass_and_run = [this](int seconds) {
    pass(std::chrono::seconds(seconds));
    backend_.run();
  };
  pass_and_run(10);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("read-only file system")));
  pass_and_run(10);
  EXPECT_EQ(store_.entries.size(), 1U) << "not tried again at once";
  pass_and_run(60);
  EXPECT_THAT(store_.entries, IsEmpty());
  EXPECT_EQ(warnings_.size(), 1U);
}

TEST_F(TinkerServiceTest, OnlyARefusedBackwardPassLosesGradients) {
  const std::string model = new_model(new_session());
  ask(forward(model, 1));
  ask(tinker::RefusedCall{{400, "path: bad name"}, tinker::QueueTurn{model, 2}});
  const std::string good = ask(step(model, 3))["request_id"];
  tinker::RefusedCall backward{{400, "data: none"}, tinker::QueueTurn{model, 4}};
  backward.backward = true;
  ask(backward);
  const std::string bad = ask(step(model, 5))["request_id"];
  backend_.run();
  EXPECT_EQ(result(good)["metrics"]["optimizer_step"], 1.0);
  EXPECT_THAT(std::string(result(bad)["error"]), HasSubstr("forward_backward with seq_id 4"));
}

TEST_F(TinkerServiceTest, APollWaitsNoLongerThanTheClientAsks) {
  const std::string sampler = new_sampler(new_session());
  tinker::RetrieveFutures poll;
  poll.sampling_session_id = sampler;
  poll.timeout_seconds = 2.0;
  const ExchangeId short_one = send(poll);
  poll.timeout_seconds = 3600.0;
  const ExchangeId long_one = send(poll);
  pass(std::chrono::seconds(3));
  EXPECT_TRUE(sent_.contains(short_one));
  EXPECT_FALSE(sent_.contains(long_one));
  pass(std::chrono::seconds(30));
  EXPECT_TRUE(sent_.contains(long_one));
}

TEST_F(TinkerServiceTest, ASamplerHasABoundedNumberOfClones) {
  const std::string sampler = new_sampler(new_session());
  for (std::int64_t clone = 0; clone < 1024; ++clone) {
    ask(sample(sampler, clone * 1'000'000'000));
    backend_.run();
  }
  const json refused = ask(sample(sampler, 1024 * std::int64_t{1'000'000'000}), 400);
  EXPECT_THAT(std::string(refused["error"]["message"]), HasSubstr("too many clones"));
  ask(sample(sampler, 1));
}

TEST_F(TinkerServiceTest, OldRunsWithoutACheckpointAreForgotten) {
  limits_.max_unused_runs = 1;
  start();
  const std::string session = new_session();
  std::vector<std::string> models;
  for (std::int64_t i = 0; i < 6; ++i) {
    pass(std::chrono::seconds(1));
    models.push_back(new_model(session, i));
    if (i == 1) {
      ask(save(models[1], 1, CheckpointKind::kTraining, "kept"));
      backend_.run();
    }
    if (i != 0) {  // the first model stays open
      ask(tinker::UnloadModel{models.back()});
      backend_.run();
    }
  }
  // When the last one was created, those of models 3 and 4 were left, and one of them was kept.
  EXPECT_EQ(ask(tinker::ListRuns{})["cursor"]["total_count"], 4);
  ask(tinker::GetRun{models[0]});
  ask(tinker::GetRun{models[1]});
  ask(tinker::GetRun{models[2]}, 404);
  ask(tinker::GetRun{models[3]}, 404);
  ask(tinker::GetRun{models[4]});
  ask(tinker::GetRun{models[5]});
  EXPECT_EQ(store_.all_runs.size(), 4U);
}

}  // namespace
}  // namespace tidemill::test
