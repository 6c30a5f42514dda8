// SPDX-License-Identifier: Apache-2.0
// Tests the limits of the service of Tinker's API, and what tenants share.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/tinker/service_fixture.hpp"

namespace tidemill::test {
namespace {

TEST_F(TinkerServiceTest, RequestsBeyondTheLimitAreRefused) {
  limits_.max_waiting = 2;
  limits_.max_models = 1;
  start();
  const std::string session = new_session();
  const std::string model = new_model(session);
  ask(forward(model, 2));
  ask(forward(model, 3));
  ask(forward(model, 4), 429);
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
