// SPDX-License-Identifier: Apache-2.0
// Tests the limits of the service of Tinker's API, and what tenants share.
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/tinker/service_fixture.hpp"

namespace tidemill::test {
namespace {

using ::testing::HasSubstr;

TEST_F(TinkerServiceTest, RequestsBeyondTheLimitAreRefused) {
  limits_.max_waiting = 2;
  limits_.max_models = 1;
  start();
  const std::string session = new_session();
  const std::string model = new_model(session);
  ask(forward(model, 2));
  ask(forward(model, 3));
  ask(forward(model, 4), 429);
  ask(forward(model, 1));  // it is next: the others wait for it
  tinker::CreateModel call;
  call.session_id = session;
  call.model_seq_id = 5;
  call.base_model = "base";
  ask(call, 429);
  call.base_model = "other";
  ask(call, 400);
}

TEST_F(TinkerServiceTest, TheMemoryOfAllModelsIsBounded) {
  limits_.max_model_bytes = 1000;
  start();
  const std::string session = new_session();
  const std::string large = new_model(session, 0, 7);
  tinker::CreateModel call;
  call.session_id = session;
  call.model_seq_id = 1;
  call.base_model = "base";
  call.lora.rank = 4;
  ask(call, 429);
  new_model(session, 1, 3);  // the number of a refused request is free
  ask(tinker::UnloadModel{large});
  backend_.run();
  new_model(session, 2, 7);
}

TEST_F(TinkerServiceTest, BytesThatWaitAreBounded) {
  limits_.max_waiting_bytes = 20;  // a request of these tests has 12
  start();
  const std::string session = new_session();
  const std::string model = new_model(session);
  ask(forward(model, 2));
  ask(forward(model, 3), 429);
  ask(forward(model, 1));  // it is next: the others wait for it
  backend_.run();
  ask(forward(model, 3));
  backend_.run();
  ask(forward(model, 5));
  ask(tinker::UnloadModel{model});
  const std::string other = new_model(session, 1);
  ask(forward(other, 2));  // what waited has made room
  ask(forward(other, 3), 429);
}

TEST_F(TinkerServiceTest, SamplesBeyondTheLimitAreRefused) {
  limits_.max_samples = 4;
  start();
  const std::string sampler = new_sampler(new_session());
  ask(sample(sampler, 0, 3));
  ask(sample(sampler, 1, 2), 429);
  backend_.run();
  ask(sample(sampler, 1, 2));
}

TEST_F(TinkerServiceTest, SamplesBelongToTheCallerAndTenantsShareTheLimit) {
  limits_.max_samples = 6;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_ = {"a", engines::Priority::kLow};
  const std::string sampler = new_sampler(new_session());
  ask(sample(sampler, 0, 3));
  ask(sample(sampler, 1, 1), 429);  // half of the room is the most that one tenant gets
  const engines::RolloutRequest& request = backend_.requests.at(0);
  EXPECT_EQ(request.tenant, "a");
  EXPECT_EQ(request.priority, engines::Priority::kLow);
  EXPECT_EQ(request.cache_salt, "a\n");
  caller_ = {"b", engines::Priority::kNormal};
  ask(sample(new_sampler(new_session()), 0, 1));
  EXPECT_EQ(backend_.requests.back().cache_salt, "b\n");
  backend_.run();
  caller_.tenant = "a";
  ask(sample(sampler, 3, 3));
}

TEST_F(TinkerServiceTest, TenantsShareSessionsAndModels) {
  limits_.max_sessions = 4;
  limits_.max_models = 4;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "a";
  const std::string session = new_session();
  const std::string other = new_session();
  ask(tinker::CreateSession{}, 429);
  new_model(session, 0);
  new_model(session, 1);
  tinker::CreateModel third;
  third.session_id = session;
  third.model_seq_id = 2;
  third.base_model = "base";
  ask(third, 429);
  caller_.tenant = "b";
  new_model(new_session());
  caller_.tenant = "a";
  ask(tinker::FinishSession{session});
  ask(tinker::FinishSession{other});
  new_model(new_session());
}

TEST_F(TinkerServiceTest, ATenantDoesNotSeeTheSessionsOfOthers) {
  caller_.tenant = "a";
  const std::string session = new_session();
  const std::string sampler = new_sampler(session);
  const std::string model = new_model(session);
  const std::string request = ask(sample(sampler, 0))["request_id"];
  caller_.tenant = "b";
  EXPECT_TRUE(ask(tinker::ListSessions{})["sessions"].empty());
  ask(tinker::GetSession{session}, 404);
  ask(tinker::FinishSession{session}, 404);
  ask(tinker::RetrieveFuture{request}, 404);
  ask(tinker::CancelFuture{request}, 404);
  ask(sample(sampler, 1), 404);
  ask(forward(model, 1), 404);
  ask(tinker::UnloadModel{model}, 404);
  EXPECT_TRUE(backend_.cancelled.empty());
  caller_ = {"a", engines::Priority::kNormal, false};
  EXPECT_EQ(ask(tinker::ListSessions{})["sessions"].size(), 1U);
  ask(tinker::FinishSession{session}, 403);  // it has a model
  caller_.may_tune = true;
  ask(tinker::FinishSession{session});
}

TEST_F(TinkerServiceTest, ResultsOfATenantAreBounded) {
  limits_.futures.max_results = 3;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "b";
  const std::string other = new_model(new_session());
  const std::string of_other = ask(step(other, 1))["request_id"];
  backend_.run();
  caller_.tenant = "a";
  const std::string model = new_model(new_session());
  std::vector<std::string> requests;
  for (std::int64_t i = 1; i <= 4; ++i) {
    requests.push_back(ask(step(model, i))["request_id"]);
    backend_.run();
  }
  ask(tinker::RetrieveFuture{requests[0]}, 410);
  result(requests[1]);
  result(requests[3]);
  caller_.tenant = "b";
  result(of_other);
}

TEST_F(TinkerServiceTest, TheTenantWithTheLargestResultsMakesRoom) {
  limits_.futures.max_bytes = 6 * tinker::kResultOverheadBytes;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "b";
  const std::string other = new_model(new_session());
  const std::string first = ask(step(other, 1))["request_id"];
  backend_.run();
  caller_.tenant = "a";
  const std::string model = new_model(new_session());
  std::string last;
  for (std::int64_t i = 1; i <= 8; ++i) {
    last = ask(step(model, i))["request_id"];
    backend_.run();
  }
  result(last);
  caller_.tenant = "b";
  result(first);
}

TEST_F(TinkerServiceTest, RequestsOfATenantThatWaitLeaveRoomForOthers) {
  limits_.max_waiting_bytes = 30;  // a request of these tests has 12
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "a";
  const std::string model = new_model(new_session());
  ask(forward(model, 2));
  ask(forward(model, 3), 429);
  caller_.tenant = "b";
  const std::string other = new_model(new_session());
  ask(forward(other, 2));
  caller_.tenant = "a";
  ask(forward(model, 1));  // it is next
  backend_.run();
  ask(forward(model, 4));
}

TEST_F(TinkerServiceTest, SnapshotsTakeTheMemoryOfModels) {
  limits_.max_model_bytes = 490;  // a model of these tests takes 400, and a snapshot 40
  start();
  const std::string session = new_session();
  const std::string model = new_model(session);
  const std::string first = new_snapshot_sampler(model, 1);
  const std::string second = new_snapshot_sampler(model, 2);
  // The first snapshot is used, and the second is not: it makes room.
  ask(sample(first, 0));
  const std::string third = new_snapshot_sampler(model, 3);
  ask(tinker::GetSampler{second}, 404);
  ask(sample(first, 1));
  ask(sample(third, 0));
  const json error = ask(snapshot(model, 4), 429)["error"];
  EXPECT_THAT(std::string(error["message"]), HasSubstr("snapshots"));
  backend_.run();  // the samples end
  new_snapshot_sampler(model, 4);
  ask(tinker::UnloadModel{model});
  backend_.run();
  ask(tinker::GetSampler{third});  // its sampler goes on
  tinker::CreateModel create = creation(session, 1, 5);
  ask(create, 400);
  create.lora.rank = 4;
  ask(create);
  backend_.run();
  ask(tinker::FinishSession{session});
  new_model(new_session());
}

TEST_F(TinkerServiceTest, ASnapshotNeedsNoRoomForAModel) {
  limits_.max_models = 3;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "a";
  const std::string model = new_model(new_session());
  caller_.tenant = "b";
  new_model(new_session());
  caller_.tenant = "a";
  ask(creation(new_session(), 0, 4), 429);
  new_snapshot_sampler(model, 1);
}

TEST_F(TinkerServiceTest, ASnapshotThatIsNotTakenGivesItsMemoryBack) {
  limits_.max_model_bytes = 490;
  start();
  const std::string model = new_model(new_session());
  ask(snapshot(model, 2));
  ask(snapshot(model, 3));
  ask(snapshot(model, 4), 429);
  pass(std::chrono::seconds(200));
  EXPECT_EQ(ask(tinker::Heartbeat{model.substr(0, model.find(':'))})["type"], "session_heartbeat");
  pass(std::chrono::seconds(200));
  ask(tinker::Heartbeat{model.substr(0, model.find(':'))});
  pass(std::chrono::seconds(201));  // requests 2 and 3 have waited too long for the first
  ask(snapshot(model, 5));
  ask(snapshot(model, 6));
  ask(tinker::UnloadModel{model});
  backend_.run();
  new_model(new_session());
}

TEST_F(TinkerServiceTest, AModelThatCanNeverFitIsInvalid) {
  limits_.max_model_bytes = 1000;
  tenancy_ = Tenancy::kSeveral;  // one tenant takes half at most
  start();
  const std::string session = new_session();
  const json error = ask(creation(session, 0, 6), 400)["error"];
  EXPECT_EQ(error["param"], "lora_config");
  ask(creation(session, 0, 5));
}

TEST_F(TinkerServiceTest, ASilentSessionMakesRoom) {
  limits_.max_model_bytes = 1000;
  start();
  const std::string oldest = new_session();
  new_model(oldest);
  ask(save(oldest + ":train:0", 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  pass(std::chrono::seconds(5));
  const std::string silent = new_session();
  new_model(silent);
  pass(std::chrono::seconds(24));
  const std::string session = new_session();
  const ExchangeId early = send(creation(session, 0, 4));
  EXPECT_EQ(sent_[early].status, 429U);
  EXPECT_THAT(sent_[early].body, HasSubstr("30 seconds"));
  EXPECT_EQ(retry_after(early), "1");  // of the session that ends first
  pass(std::chrono::seconds(1));
  new_model(session);
  ask(tinker::Heartbeat{oldest}, 410);
  ask(tinker::Heartbeat{silent});  // one session was enough
  EXPECT_EQ(store_.entries.size(), 1U);
}

TEST_F(TinkerServiceTest, ClientsAreToldWhenASilentSessionMakesRoom) {
  limits_.max_model_bytes = 1000;
  start();
  new_model(new_session(), 0, 10);
  const std::string session = new_session();
  pass(std::chrono::seconds(5));  // the first session has missed no heartbeat
  const ExchangeId first = send(creation(session, 0, 10));
  EXPECT_EQ(retry_after(first), "2");
  pass(std::chrono::seconds(7));
  const ExchangeId second = send(creation(session, 0, 10));
  EXPECT_EQ(retry_after(second), "18");
}

TEST_F(TinkerServiceTest, ASilentSessionStaysIfThatGivesTooLittleOrAnotherTenantAsks) {
  limits_.max_model_bytes = 1000;
  tenancy_ = Tenancy::kSeveral;
  start();
  caller_.tenant = "a";
  const std::string silent = new_session();
  new_model(silent, 0, 2);
  pass(std::chrono::seconds(60));
  new_model(new_session(), 0, 1);
  caller_.tenant = "b";
  const std::string other = new_session();
  ask(creation(other, 0, 5));
  ask(creation(other, 1, 3), 429);
  caller_.tenant = "a";
  ask(creation(new_session(), 0, 5), 429);
  ask(tinker::Heartbeat{silent});
}

// Returns every kind of request about the session, the model, the sampler and the future of the
// arguments. Requests are missing that name none of them.
std::vector<tinker::Call> calls_about(const std::string& session, const std::string& model,
                                      const std::string& sampler, const std::string& future) {
  const tinker::QueueTurn turn{model, 1};
  const tinker::CheckpointPath path{model, CheckpointKind::kTraining, "a"};
  tinker::LoadWeights into_model;
  into_model.turn = turn;
  into_model.path = path;
  tinker::LoadWeights into_session;
  into_session.session_id = session;
  into_session.path = path;
  tinker::CreateModel create;
  create.session_id = session;
  create.model_seq_id = 9;
  create.base_model = "base";
  tinker::CreateSamplingSession sampling;
  sampling.session_id = session;
  sampling.sampling_seq_id = 9;
  tinker::SampleCall sample;
  sample.sampling_session_id = sampler;
  sample.num_samples = 1;
  tinker::RetrieveFutures retrieve;
  retrieve.sampling_session_id = sampler;
  tinker::SaveWeights save;
  save.turn = turn;
  tinker::ForwardCall forward;
  forward.turn = turn;
  tinker::OptimStepCall step;
  step.turn = turn;
  return {tinker::RefusedCall{{400, "refused"}, turn},
          tinker::Heartbeat{session},
          tinker::FinishSession{session},
          tinker::GetSession{session},
          create,
          tinker::UnloadModel{model},
          tinker::GetInfo{model},
          forward,
          step,
          save,
          into_model,
          into_session,
          sampling,
          tinker::JoinSampling{sampler},
          tinker::GetSampler{sampler},
          sample,
          tinker::RetrieveFuture{future},
          retrieve,
          tinker::CancelFuture{future}};
}

TEST_F(TinkerServiceTest, NoRequestReachesTheSessionOfAnotherTenant) {
  // Requests that name no session: about the server, the caller's sessions, or runs and
  // checkpoints.
  constexpr std::size_t kOfNoSession = 15;
  caller_.tenant = "a";
  const std::string session = new_session();
  const std::string model = new_model(session);
  const std::string sampler = new_sampler(session);
  const std::string future = ask(sample(sampler, 0))["request_id"];
  ask(save(model, 1, CheckpointKind::kTraining, "a"));
  backend_.run();
  backend_.log.clear();
  const std::vector<tinker::Call> calls = calls_about(session, model, sampler, future);
  std::set<std::size_t> kinds;
  caller_.tenant = "b";
  const std::string own = new_session();
  for (const tinker::Call& call : calls) {
    SCOPED_TRACE(call.index());
    kinds.insert(call.index());
    ask(call, 404);
  }
  // Names of the caller's own session do not help.
  tinker::LoadWeights both = std::get<tinker::LoadWeights>(calls[10]);
  both.session_id = own;
  ask(both, 404);
  EXPECT_TRUE(backend_.log.empty());
  EXPECT_EQ(kinds.size() + kOfNoSession, std::variant_size_v<tinker::Call>);
}

TEST_F(TinkerServiceTest, ARequestThatNamesNoSessionIsRefused) {
  for (const tinker::Call& call : calls_about("", "", "", "")) {
    SCOPED_TRACE(call.index());
    ask(call, 400);
  }
}

TEST_F(TinkerServiceTest, ModelsThatAreOpenedForEndedSessionsCount) {
  limits_.max_models = 2;
  start();
  const auto open_and_end = [&](std::uint32_t status) {
    tinker::CreateModel call;
    call.session_id = new_session();
    call.base_model = "base";
    call.lora.rank = 4;
    ASSERT_EQ(sent_[send(call)].status, status);
    send(tinker::FinishSession{call.session_id});
  };
  open_and_end(200);
  open_and_end(200);
  open_and_end(429);
  backend_.run();
  open_and_end(200);
}

}  // namespace
}  // namespace tidemill::test
