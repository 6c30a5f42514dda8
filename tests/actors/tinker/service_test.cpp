// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/service.hpp"

#include <map>
#include <memory>
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

// -- training -------------------------------------------------------------------------------------

TEST_F(TinkerServiceTest, RequestsRunInTheOrderOfTheirNumbers) {
  const std::string model = new_model(new_session());
  backend_.log.clear();
  // The package sends the first part of a batch last.
  const std::string second = ask(forward(model, 2))["request_id"];
  const std::string third = ask(step(model, 3))["request_id"];
  EXPECT_THAT(backend_.log, IsEmpty());
  const std::string first = ask(forward(model, 1))["request_id"];
  backend_.run();
  EXPECT_THAT(backend_.log, ElementsAre("backward 1", "backward 2", "step 0.500000"));
  EXPECT_EQ(result(third)["metrics"]["grad_norm"], 2.0);
  const ExchangeId poll = send(tinker::RetrieveFuture{first});
  EXPECT_EQ(sent_[poll].headers[0].value, "application/x-protobuf");
  EXPECT_THAT(sent_[poll].body, HasSubstr("loss:sum"));
}

TEST_F(TinkerServiceTest, ARunThatCouldNotBeStoredIsStoredWithTheNextRequest) {
  store_.next_run_failure = {Errc::kResourceExhausted, "No space left on device"};
  const std::string model = new_model(new_session());
  EXPECT_TRUE(store_.all_runs.empty());
  send(forward(model, 1));
  backend_.run();
  EXPECT_EQ(store_.all_runs.size(), 1U);
}

TEST_F(TinkerServiceTest, OneRequestOfAModelRunsAtATime) {
  const std::string session = new_session();
  const std::string a = new_model(session, 0);
  const std::string b = new_model(session, 1);
  backend_.log.clear();
  ask(forward(a, 1));
  ask(forward(a, 2));
  ask(forward(b, 1));
  EXPECT_THAT(backend_.log, ElementsAre("backward 1", "backward 1"));
  backend_.run();
  EXPECT_EQ(backend_.log.size(), 3U);
}

TEST_F(TinkerServiceTest, ARequestThatIsSentAgainRunsOnce) {
  const std::string model = new_model(new_session());
  const std::string request = ask(forward(model, 1))["request_id"];
  EXPECT_EQ(ask(forward(model, 1))["request_id"], request);
  backend_.run();
  EXPECT_EQ(ask(forward(model, 1))["request_id"], request);
  backend_.run();
  EXPECT_EQ(std::count(backend_.log.begin(), backend_.log.end(), "backward 1"), 1);
}

TEST_F(TinkerServiceTest, AnotherRequestWithAUsedNumberIsRefused) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  tinker::ForwardCall first = forward(model, 1);
  first.turn.digest = "a";
  const std::string request = ask(first)["request_id"];
  tinker::ForwardCall other = forward(model, 1);
  other.turn.digest = "b";
  EXPECT_THAT(std::string(ask(other, 400)["error"]["message"]), HasSubstr("seq_id"));
  backend_.run();
  ask(other, 400);
  EXPECT_EQ(ask(first)["request_id"], request);
  tinker::RefusedCall refused{{400, "loss_fn: no such loss"}, other.turn};
  ask(refused, 400);

  const std::string sampler = new_sampler(session);
  tinker::SampleCall call = sample(sampler, 7);
  call.digest = "a";
  const std::string sampled = ask(call)["request_id"];
  EXPECT_EQ(ask(call)["request_id"], sampled);
  call.digest = "b";
  ask(call, 400);

  tinker::CreateModel create;
  create.session_id = session;
  create.base_model = "base";
  create.digest = "b";
  ask(create, 400);
  EXPECT_EQ(backend_.open_jobs.size(), 1U);

  tinker::SaveWeights saved = save(model, 2, CheckpointKind::kSampler, "a");
  ask(saved);
  backend_.run();
  tinker::CreateSamplingSession created;
  created.session_id = session;
  created.path = tinker::CheckpointPath{model, CheckpointKind::kSampler, "a"};
  ask(created, 400);  // number 0 is that of the base
}

TEST_F(TinkerServiceTest, AModelThatIsCreatedAgainIsTheSame) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  EXPECT_EQ(new_model(session), model);
  EXPECT_EQ(backend_.open_jobs.size(), 1U);
}

TEST_F(TinkerServiceTest, AnOptimizerStepAfterAFailedBackwardPassFails) {
  const std::string model = new_model(new_session());
  backend_.log.clear();
  backend_.next_failure = invalid_argument("data[0]: bad");
  const std::string failed = ask(forward(model, 1))["request_id"];
  const std::string step_2 = ask(step(model, 2))["request_id"];
  backend_.run();
  EXPECT_EQ(result(failed)["error"], "data[0]: bad");
  EXPECT_EQ(result(failed)["category"], "user");
  EXPECT_THAT(std::string(result(step_2)["error"]),
              HasSubstr("forward_backward with seq_id 1 has failed"));
  const std::string step_4 = ask(step(model, 4))["request_id"];
  ask(forward(model, 3));
  backend_.run();
  EXPECT_EQ(result(step_4)["metrics"]["optimizer_step"], 1.0);
  EXPECT_THAT(backend_.log, ElementsAre("backward 1", "discard", "backward 3", "step 0.500000"));
}

TEST_F(TinkerServiceTest, ARefusedRequestUsesUpItsTurn) {
  const std::string model = new_model(new_session());
  const tinker::RefusedCall refused{{400, "loss_fn: no such loss"}, tinker::QueueTurn{model, 1}};
  const std::string first = ask(refused)["request_id"];
  const std::string second = ask(forward(model, 2, true))["request_id"];
  backend_.run();
  EXPECT_EQ(result(first)["error"], "loss_fn: no such loss");
  EXPECT_EQ(send(tinker::RetrieveFuture{second}), exchange_);
  EXPECT_EQ(sent_[exchange_].status, 200U);
  // Without a turn, or of an unknown model, the request itself fails.
  ask(tinker::RefusedCall{{400, "bad"}, std::nullopt}, 400);
  ask(tinker::RefusedCall{{400, "bad"}, tinker::QueueTurn{"x", 1}}, 400);
  ask(forward("x", 1), 404);
}

TEST_F(TinkerServiceTest, RequestsDoNotWaitForeverForOneThatIsMissing) {
  const std::string model = new_model(new_session());
  const std::string second = ask(forward(model, 2))["request_id"];
  for (int minute = 0; minute < 11; ++minute) {
    ask(tinker::Heartbeat{model.substr(0, model.find(':'))});
    pass(std::chrono::minutes(1));
  }
  EXPECT_THAT(std::string(result(second)["error"]), HasSubstr("with seq_id 1, has not arrived"));
  // Later requests run.
  ask(forward(model, 3));
  backend_.run();
  EXPECT_EQ(backend_.log.back(), "backward 3");
}

TEST_F(TinkerServiceTest, AModelThatCannotBeOpenedFailsItsFuture) {
  backend_.next_failure = Status(Errc::kResourceExhausted, "too little memory");
  tinker::CreateModel call;
  call.session_id = new_session();
  call.base_model = "base";
  const std::string request = ask(call)["request_id"];
  backend_.run();
  EXPECT_EQ(result(request)["error"], "too little memory");
  ask(tinker::GetInfo{call.session_id + ":train:0"}, 404);
}

TEST_F(TinkerServiceTest, UnloadingAModelEndsItsRequests) {
  const std::string model = new_model(new_session(), 0, 8);
  EXPECT_EQ(ask(tinker::GetInfo{model})["lora_rank"], 8);
  EXPECT_EQ(ask(tinker::GetInfo{model})["model_data"]["tokenizer_id"], "/models/base");
  const std::string running = ask(forward(model, 1))["request_id"];
  const std::string waiting = ask(forward(model, 2))["request_id"];
  EXPECT_EQ(result(ask(tinker::UnloadModel{model})["request_id"])["model_id"], model);
  backend_.run();
  EXPECT_THAT(std::string(result(running)["error"]), HasSubstr("unloaded"));
  EXPECT_THAT(std::string(result(waiting)["error"]), HasSubstr("unloaded"));
  EXPECT_THAT(backend_.open_jobs, IsEmpty());
  ask(tinker::GetInfo{model}, 404);
}

// -- futures --------------------------------------------------------------------------------------

TEST_F(TinkerServiceTest, PollsWaitForTheResult) {
  const std::string model = new_model(new_session());
  const std::string request = ask(step(model, 1))["request_id"];
  const ExchangeId first = send(tinker::RetrieveFuture{request});
  EXPECT_FALSE(sent_.contains(first));
  pass(std::chrono::seconds(30));
  ASSERT_TRUE(sent_.contains(first));
  EXPECT_EQ(sent_[first].status, 408U);
  EXPECT_EQ(json::parse(sent_[first].body)["type"], "try_again");
  const ExchangeId second = send(tinker::RetrieveFuture{request});
  const ExchangeId closed = send(tinker::RetrieveFuture{request});
  service_->forget(closed);
  backend_.run();
  EXPECT_EQ(sent_[second].status, 200U);
  EXPECT_FALSE(sent_.contains(closed));
}

TEST_F(TinkerServiceTest, ResultsAreKeptForATime) {
  limits_.heartbeat_timeout = std::chrono::hours(24);
  start();
  const std::string model = new_model(new_session());
  const std::string read = ask(step(model, 1))["request_id"];
  const std::string unread = ask(step(model, 2))["request_id"];
  backend_.run();
  result(read);
  pass(std::chrono::seconds(59));
  result(read);  // the response may have been lost
  pass(std::chrono::seconds(1));
  EXPECT_EQ(ask(tinker::RetrieveFuture{read}, 410)["error"]["param"], "request_id");
  result(unread);
  const std::string never = ask(step(model, 3))["request_id"];
  backend_.run();
  pass(std::chrono::hours(1));
  ask(tinker::RetrieveFuture{never}, 410);
  ask(tinker::RetrieveFuture{"unknown"}, 410);
}

TEST_F(TinkerServiceTest, OldResultsMakeRoomForNewOnes) {
  limits_.futures.max_bytes = 3 * tinker::kResultOverheadBytes + 250;
  start();
  const std::string model = new_model(new_session());
  std::vector<std::string> requests;
  for (std::int64_t i = 1; i <= 5; ++i) {
    requests.push_back(ask(step(model, i))["request_id"]);
    backend_.run();
  }
  ask(tinker::RetrieveFuture{requests[0]}, 410);
  result(requests[4]);
}

// -- sessions -------------------------------------------------------------------------------------

TEST_F(TinkerServiceTest, ASessionWithoutHeartbeatsEndsButNotItsCheckpoints) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  ask(save(model, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  const std::string pending = ask(forward(model, 2))["request_id"];
  const ExchangeId poll = send(tinker::RetrieveFuture{pending});
  pass(std::chrono::seconds(290));
  ask(tinker::Heartbeat{session});
  pass(std::chrono::seconds(300));
  ask(tinker::GetSession{session});
  pass(std::chrono::seconds(1));
  EXPECT_EQ(sent_[poll].status, 408U);
  ask(tinker::Heartbeat{session}, 410);
  ask(tinker::RetrieveFuture{pending}, 410);
  EXPECT_THAT(backend_.open_jobs, IsEmpty());
  backend_.run();  // the pass that was running ends without a reply
  tinker::LoadWeights load;
  load.session_id = new_session();
  load.path = {model, CheckpointKind::kTraining, "a"};
  load.with_optimizer = true;
  const std::string request = ask(load)["request_id"];
  backend_.run();
  EXPECT_EQ(result(request)["model_id"], load.session_id + ":train:0");
  EXPECT_EQ(backend_.log.back(), "open rank 4 from state with optimizer");
}

TEST_F(TinkerServiceTest, AFinishedSessionIsGone) {
  const std::string session = new_session();
  new_model(session);
  EXPECT_EQ(ask(tinker::ListSessions{{0, 10}})["sessions"].size(), 1U);
  ask(tinker::FinishSession{session});
  ask(tinker::FinishSession{session}, 410);
  EXPECT_EQ(ask(tinker::ListSessions{{0, 10}})["sessions"].size(), 0U);
  EXPECT_THAT(backend_.open_jobs, IsEmpty());
}

TEST_F(TinkerServiceTest, AJobThatOpensAfterItsSessionEndedIsClosed) {
  tinker::CreateModel call;
  call.session_id = new_session();
  call.base_model = "base";
  ask(call);
  ask(tinker::FinishSession{call.session_id});
  backend_.run();
  EXPECT_THAT(backend_.open_jobs, IsEmpty());
}

// -- checkpoints ----------------------------------------------------------------------------------

TEST_F(TinkerServiceTest, CheckpointsAreSavedListedAndRemoved) {
  const std::string model = new_model(new_session());
  tinker::SaveWeights call = save(model, 1, CheckpointKind::kTraining, "a");
  call.user_metadata = {{"k", "v"}};
  const std::string first = ask(call)["request_id"];
  const std::string again = ask(save(model, 2, CheckpointKind::kTraining, "a"))["request_id"];
  call = save(model, 3, CheckpointKind::kTraining, "a");
  call.overwrite = true;
  const std::string replaced = ask(call)["request_id"];
  ask(save(model, 4, CheckpointKind::kSampler, "s"));
  ask(save(model, 5, CheckpointKind::kExternal, "e"));
  backend_.run();
  const std::string path = "tinker://" + model + "/weights/a";
  EXPECT_EQ(result(first)["path"], path);
  EXPECT_THAT(std::string(result(again)["error"]), HasSubstr("exists already"));
  EXPECT_EQ(result(replaced)["path"], path);
  const json list = ask(tinker::ListCheckpoints{model, {0, 100}})["checkpoints"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(ask(tinker::ListCheckpoints{std::nullopt, {1, 1}})["checkpoints"].size(), 1U);
  EXPECT_EQ(ask(tinker::ListCheckpoints{std::nullopt, {1, 1}})["cursor"]["total_count"], 3);
  EXPECT_EQ(list[0]["checkpoint_id"], "weights/a");
  EXPECT_EQ(list[0]["checkpoint_type"], "training");
  EXPECT_EQ(list[0]["size_bytes"], 100);
  EXPECT_EQ(list[0]["time"], "1970-01-12T13:46:40Z");
  const json run = ask(tinker::GetRun{model});
  EXPECT_EQ(run["last_checkpoint"]["tinker_path"], path);
  EXPECT_EQ(run["lora_rank"], 4);
  EXPECT_EQ(ask(tinker::ListRuns{{0, 20}})["cursor"]["total_count"], 1);
  const tinker::CheckpointPath parsed{model, CheckpointKind::kTraining, "a"};
  EXPECT_EQ(ask(tinker::GetWeightsInfo{parsed})["lora_rank"], 4);
  ask(tinker::DeleteCheckpoint{parsed});
  ask(tinker::DeleteCheckpoint{parsed}, 404);
  ask(tinker::GetRun{"other"}, 404);
  EXPECT_FALSE(store_.entries.contains(parsed));
}

TEST_F(TinkerServiceTest, CheckpointsExpire) {
  limits_.heartbeat_timeout = std::chrono::hours(24);
  start();
  const std::string model = new_model(new_session());
  tinker::SaveWeights call = save(model, 1, CheckpointKind::kTraining, "a");
  call.ttl_seconds = 3600;
  ask(call);
  ask(save(model, 2, CheckpointKind::kTraining, "b"));
  backend_.run();
  const tinker::CheckpointPath a{model, CheckpointKind::kTraining, "a"};
  const tinker::CheckpointPath b{model, CheckpointKind::kTraining, "b"};
  ask(tinker::SetTtl{b, 7200});
  pass(std::chrono::seconds(3600));
  backend_.run();
  ask(tinker::GetWeightsInfo{a}, 404);
  EXPECT_FALSE(store_.entries.contains(a));
  ask(tinker::SetTtl{b, std::nullopt});
  pass(std::chrono::seconds(7200));
  EXPECT_EQ(ask(tinker::GetWeightsInfo{b})["is_lora"], true);
}

TEST_F(TinkerServiceTest, AServerThatStartsAgainHasTheCheckpointsOfTheStore) {
  const std::string model = new_model(new_session());
  ask(save(model, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  start();
  EXPECT_EQ(ask(tinker::ListCheckpoints{model, {0, 100}})["checkpoints"].size(), 1U);
  EXPECT_EQ(ask(tinker::GetRun{model})["training_run_id"], model);
}

TEST_F(TinkerServiceTest, ADamagedCheckpointHidesNoOthers) {
  const std::string model = new_model(new_session());
  ask(save(model, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  const tinker::CheckpointPath bad{"abc:train:0", CheckpointKind::kTraining, "b"};
  store_.damaged = {{to_text(bad), "abc.train.0/weights/b/checkpoint.json: not JSON"},
                    {"abc:train:0", "abc.train.0/run.json: not JSON"},
                    {"", "loop: is not a folder"}};
  start();
  ASSERT_EQ(warnings_.size(), 3U);
  EXPECT_THAT(warnings_[2], HasSubstr("loop: is not a folder"));
  EXPECT_EQ(ask(tinker::ListCheckpoints{std::nullopt, {0, 100}})["checkpoints"].size(), 1U);
  EXPECT_EQ(ask(tinker::ListRuns{})["training_runs"].size(), 1U);
  ask(tinker::GetRun{"abc:train:0"}, 500);
  const json error = ask(tinker::GetWeightsInfo{bad}, 500)["error"];
  EXPECT_THAT(std::string(error["message"]), HasSubstr("b/checkpoint.json: not JSON"));
  const std::string session = new_session();
  const std::string other = new_model(session);
  tinker::LoadWeights load;
  load.path = bad;
  load.turn = tinker::QueueTurn{other, 1};
  const std::string request = ask(load)["request_id"];
  backend_.run();
  EXPECT_EQ(result(request)["category"], "server");
  load.path = {model, CheckpointKind::kTraining, "a"};
  load.turn = std::nullopt;
  load.session_id = session;
  load.model_seq_id = 1;
  ask(load);
  ask(tinker::DeleteCheckpoint{bad});
  ask(tinker::GetWeightsInfo{bad}, 404);
}

TEST_F(TinkerServiceTest, LoadsIntoAnOpenModelIfItsModulesFit) {
  const std::string session = new_session();
  const std::string a = new_model(session, 0, 4);
  const std::string b = new_model(session, 1, 8);
  ask(save(a, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  tinker::LoadWeights load;
  load.path = {a, CheckpointKind::kTraining, "a"};
  load.turn = tinker::QueueTurn{a, 2};
  const std::string good = ask(load)["request_id"];
  load.turn = tinker::QueueTurn{b, 1};
  const std::string bad = ask(load)["request_id"];
  load.turn = tinker::QueueTurn{b, 2};
  load.path.name = "none";
  const std::string none = ask(load)["request_id"];
  backend_.run();
  EXPECT_EQ(result(good)["type"], "load_weights");
  EXPECT_EQ(backend_.log.back(), "load");
  EXPECT_THAT(std::string(result(bad)["error"]), HasSubstr("rank or modules"));
  EXPECT_THAT(std::string(result(none)["error"]), HasSubstr("there is no checkpoint"));
}

TEST_F(TinkerServiceTest, FilesAreDownloadedWithATokenOnly) {
  const std::string model = new_model(new_session());
  ask(save(model, 1, CheckpointKind::kExternal, "e"));
  backend_.run();
  const tinker::CheckpointPath path{model, CheckpointKind::kExternal, "e"};
  const json urls = ask(tinker::GetFileUrls{path, "http://host:1"})["urls"];
  const std::string url = urls["adapter_config.json"];
  EXPECT_THAT(url, HasSubstr("http://host:1/api/v1/training_runs/" + model +
                             "/checkpoints/external_weights/e/files/adapter_config.json?token="));
  const std::string token = url.substr(url.find("token=") + 6);
  const ExchangeId file = send(tinker::GetFile{path, "adapter_config.json", token});
  backend_.run();
  EXPECT_EQ(sent_[file].body, "adapter_config.json");
  ask(tinker::GetFile{path, "adapter_config.json", "0" + token}, 403);
  ask(tinker::GetFile{path, "other", token}, 404);
  max_downloads_ = 0;
  ask(tinker::GetFile{path, "adapter_config.json", token}, 429);
  pass(std::chrono::seconds(3600));
  ask(tinker::GetFile{path, "adapter_config.json", token}, 403);
}

TEST_F(TinkerServiceTest, UrlsOfOneTenantLeaveRoomForThoseOfOthers) {
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "a";
  const std::string model = new_model(new_session());
  for (std::int64_t i = 1; i <= 600; ++i) {
    ask(save(model, i, CheckpointKind::kExternal, "e" + std::to_string(i)));
    backend_.run();
  }
  const auto urls_of = [&](std::int64_t i, std::uint32_t status = 200) {
    const tinker::CheckpointPath path{model, CheckpointKind::kExternal, "e" + std::to_string(i)};
    return ask(tinker::GetFileUrls{path, "http://host:1"}, status);
  };
  const json first = urls_of(1);
  pass(std::chrono::seconds(60));
  const json again = urls_of(1);
  EXPECT_EQ(first["urls"], again["urls"]);
  EXPECT_NE(first["expires"], again["expires"]);
  for (std::int64_t i = 2; i <= 512; ++i) {
    urls_of(i);
  }
  urls_of(513, 429);
  caller_.tenant = "b";
  EXPECT_NE(urls_of(1)["urls"], first["urls"]);
}

// -- sampling -------------------------------------------------------------------------------------

TEST_F(TinkerServiceTest, SamplesOfTheBase) {
  tinker::CreateSamplingSession call;
  call.session_id = new_session();
  call.base_model = "base";
  const std::string sampler = ask(call)["sampling_session_id"];
  EXPECT_EQ(ask(tinker::GetSampler{sampler})["base_model"], "base");
  tinker::SampleCall two = sample(sampler, 0, 2);
  two.seed = 9;
  two.settings.prompt_logprobs = true;
  const json promise = ask(two);
  EXPECT_EQ(promise["sample_sequence_ids"].size(), 2U);
  ASSERT_EQ(backend_.requests.size(), 2U);
  EXPECT_EQ(backend_.requests[0].adapter, "");
  EXPECT_EQ(backend_.requests[1].seed, 9U);
  EXPECT_NE(backend_.requests[0].key(), backend_.requests[1].key());
  EXPECT_NE(backend_.requests[0].id, backend_.requests[1].id);
  EXPECT_TRUE(backend_.requests[0].prompt_logprobs);
  EXPECT_FALSE(backend_.requests[1].prompt_logprobs);
  const ExchangeId poll = send(tinker::RetrieveFuture{promise["request_id"]});
  backend_.run();
  EXPECT_EQ(sent_[poll].headers[0].value, "application/x-protobuf");
  // The same seed gives the same requests.
  ask(sample(sampler, 0, 2));  // sent again
  EXPECT_EQ(backend_.requests.size(), 2U);
  call.base_model = "other";
  ask(call, 400);
  ask(sample("none", 0), 404);
}

TEST_F(TinkerServiceTest, AdaptersArePublishedOnceAndUnloadedWhenIdle) {
  limits_.max_published = 2;
  start();
  const std::string session = new_session();
  const std::string model = new_model(session);
  std::vector<std::string> samplers;
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::string name = "s" + std::to_string(i);
    ask(save(model, i + 1, CheckpointKind::kSampler, name));
    backend_.run();
    tinker::CreateSamplingSession call;
    call.session_id = session;
    call.sampling_seq_id = i;
    call.path = tinker::CheckpointPath{model, CheckpointKind::kSampler, name};
    samplers.push_back(ask(call)["sampling_session_id"]);
  }
  EXPECT_THAT(backend_.published, IsEmpty());
  ask(sample(samplers[0], 0));
  ask(sample(samplers[0], 1));
  EXPECT_THAT(backend_.requests, IsEmpty());  // the adapter is not there yet
  backend_.run();
  EXPECT_EQ(backend_.requests.size(), 2U);
  const std::string path = "tinker://" + model + "/sampler_weights/s";
  EXPECT_EQ(backend_.requests[0].adapter, path + "0");
  ask(sample(samplers[1], 0));
  backend_.run();
  ask(sample(samplers[0], 2));
  backend_.run();
  ask(sample(samplers[2], 0));
  backend_.run();
  EXPECT_THAT(backend_.published, ElementsAre(path + "0", path + "2"));
  ask(sample(samplers[1], 1));  // published again
  backend_.run();
  EXPECT_EQ(backend_.requests.size(), 6U);
  EXPECT_EQ(std::count(backend_.log.begin(), backend_.log.end(), "publish " + path + "0"), 1);
  EXPECT_EQ(std::count(backend_.log.begin(), backend_.log.end(), "publish " + path + "1"), 2);
}

TEST_F(TinkerServiceTest, SamplersOfSnapshotsNeedNoCheckpoint) {
  limits_.max_idle_snapshots = 2;
  start();
  const std::string model = new_model(new_session());
  std::vector<std::string> samplers;
  for (std::int64_t i = 0; i < 3; ++i) {
    tinker::SaveWeights call = save(model, i + 1, CheckpointKind::kSampler, "");
    call.name = std::nullopt;
    call.sampling_seq_id = i;
    const std::string request = ask(call)["request_id"];
    backend_.run();
    samplers.push_back(result(request)["sampling_session_id"]);
    ask(sample(samplers.back(), 0));
    backend_.run();
  }
  EXPECT_THAT(store_.entries, IsEmpty());
  ask(sample(samplers[0], 1), 404);  // the oldest has made room
  EXPECT_THAT(backend_.published, ElementsAre(samplers[1], samplers[2]));
}

TEST_F(TinkerServiceTest, AnAdapterThatCannotBePublishedFailsTheSamples) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  tinker::SaveWeights call = save(model, 1, CheckpointKind::kSampler, "");
  call.name = std::nullopt;
  call.sampling_seq_id = 0;
  const std::string request = ask(call)["request_id"];
  backend_.run();
  backend_.next_failure = Status(Errc::kResourceExhausted, "no room for the adapter");
  const std::string sampler = result(request)["sampling_session_id"];
  const std::string failed = ask(sample(sampler, 0))["request_id"];
  backend_.run();
  EXPECT_EQ(result(failed)["error"], "no room for the adapter");
  const std::string good = ask(sample(sampler, 1))["request_id"];
  backend_.run();
  EXPECT_EQ(send(tinker::RetrieveFuture{good}), exchange_);
  EXPECT_EQ(sent_[exchange_].status, 200U);
}

TEST_F(TinkerServiceTest, IdleAdaptersMakeRoomForOneThatDoesNotFit) {
  const std::string session = new_session();
  const std::string model = new_model(session);
  std::vector<std::string> samplers;
  for (std::int64_t i = 0; i < 2; ++i) {
    tinker::SaveWeights call = save(model, i + 1, CheckpointKind::kSampler, "");
    call.name = std::nullopt;
    call.sampling_seq_id = i;
    const std::string request = ask(call)["request_id"];
    backend_.run();
    samplers.push_back(result(request)["sampling_session_id"]);
  }
  ask(sample(samplers[0], 0));
  backend_.run();
  backend_.next_failure = Status(Errc::kResourceExhausted, "no room for the adapter");
  const std::string request = ask(sample(samplers[1], 0))["request_id"];
  backend_.run();
  send(tinker::RetrieveFuture{request});
  EXPECT_EQ(sent_[exchange_].headers[0].value, "application/x-protobuf");
  EXPECT_THAT(backend_.published, ElementsAre(samplers[1]));
}

TEST_F(TinkerServiceTest, PollsOfASamplerTellWhatIsReady) {
  tinker::CreateSamplingSession call;
  call.session_id = new_session();
  call.base_model = "base";
  const std::string sampler = ask(call)["sampling_session_id"];
  EXPECT_EQ(ask(tinker::JoinSampling{sampler})["client_counter"], 1);
  EXPECT_EQ(ask(tinker::JoinSampling{sampler})["client_counter"], 2);
  tinker::RetrieveFutures poll;
  poll.sampling_session_id = sampler;
  const std::string first = ask(sample(sampler, 0))["request_id"];
  const ExchangeId waiting = send(poll);
  EXPECT_FALSE(sent_.contains(waiting));
  poll.cloned_sampler_id = 2;
  const ExchangeId other = send(poll);
  backend_.run();
  ASSERT_TRUE(sent_.contains(waiting));
  const json body = json::parse(sent_[waiting].body);
  EXPECT_EQ(body["completions"][0]["request_id"], first);
  EXPECT_EQ(body["completions"][0]["state"], "finished");
  EXPECT_FALSE(sent_.contains(other));
  poll.cloned_sampler_id = 0;
  EXPECT_EQ(ask(poll)["completions"].size(), 1U);  // until the client says that it has seen it
  poll.previous_cursor = body["cursor"];
  poll.timeout_seconds = 0.0;
  EXPECT_EQ(ask(poll)["completions"].size(), 0U);
  pass(std::chrono::seconds(30));
  EXPECT_EQ(json::parse(sent_[other].body)["completions"].size(), 0U);
  const std::string clone = ask(sample(sampler, 2'000'000'000))["request_id"];
  backend_.run();
  poll.cloned_sampler_id = 2;
  poll.previous_cursor = 0;
  EXPECT_EQ(ask(poll)["completions"][0]["request_id"], clone);
}

TEST_F(TinkerServiceTest, SamplesCanBeCancelled) {
  const std::string session = new_session();
  const std::string sampler = new_sampler(session);
  const std::string request = ask(sample(sampler, 0, 2))["request_id"];
  ask(tinker::CancelFuture{request});
  EXPECT_EQ(backend_.cancelled.size(), 2U);
  EXPECT_EQ(result(request)["error"], "the request was cancelled");
  backend_.run();
  ask(tinker::CancelFuture{request});  // it has ended
  const std::string model = new_model(session);
  ask(tinker::CancelFuture{ask(forward(model, 1))["request_id"]}, 400);
}

TEST_F(TinkerServiceTest, AnEndedSessionCancelsItsSamples) {
  const std::string session = new_session();
  const std::string sampler = new_sampler(session);
  ask(sample(sampler, 0, 3));
  tinker::RetrieveFutures poll;
  poll.sampling_session_id = sampler;
  const ExchangeId waiting = send(poll);
  ask(tinker::FinishSession{session});
  EXPECT_EQ(backend_.cancelled.size(), 3U);
  EXPECT_EQ(sent_[waiting].status, 404U);
  backend_.run();
}

TEST_F(TinkerServiceTest, WhatClientsAskFirst) {
  EXPECT_EQ(ask(tinker::GetClientConfig{})["pjwt_auth_enabled"], false);
  EXPECT_EQ(ask(tinker::GetDynamicConfig{})["sample_cancel_enabled"], true);
  EXPECT_EQ(ask(tinker::GetHealth{})["status"], "ok");
  EXPECT_EQ(ask(tinker::AcceptTelemetry{})["status"], "accepted");
  const json models = ask(tinker::GetCapabilities{})["supported_models"];
  EXPECT_EQ(models[0]["model_name"], "base");
  EXPECT_EQ(models[0]["max_context_length"], 64);
}

}  // namespace
}  // namespace tidemill::test
