// SPDX-License-Identifier: Apache-2.0
// Tests how a device sends the tokens of responses, on a replayed engine.
#include <chrono>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "actors/device/spawn.hpp"
#include "engines/replay/factory.hpp"
#include "tests/support/actor_test.hpp"

namespace tidemill::test {
namespace {

using engines::RolloutResult;

// What an actor that streams a response has received.
struct StreamLog {
  std::vector<actors::TokenEvent> events;
  std::size_t num_batches = 0;
  std::optional<RolloutResult> result;
  std::size_t events_before_result = 0;
};

actors::TokenListenerActor::behavior_type stream_requester(
    actors::TokenListenerActor::pointer self, const actors::StreamingActor& device,
    const std::vector<engines::RolloutRequest>& requests, std::vector<StreamLog>* logs) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    self->request(device, std::chrono::seconds(3600), atom::stream_v, requests[i])
        .then(
            [logs, i](const RolloutResult& result) {
              (*logs)[i].result = result;
              (*logs)[i].events_before_result = (*logs)[i].events.size();
            },
            [](const caf::error&) {});
  }
  return {[logs, requests](atom::tokens, const actors::TokenBatch& batch) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const actors::TokenEvent& event : batch.events) {
        if (event.id == requests[i].id) {
          (*logs)[i].events.push_back(event);
        }
      }
    }
    ++(*logs)[0].num_batches;
  }};
}

class DeviceStreamTest : public ActorTest {
protected:
  void SetUp() override {
    options_.length_of = [](SampleId id) { return static_cast<std::uint32_t>(1 + id.value % 4); };
    rollout_ = engines::make_replay_rollout_engine(options_, engines::replay_initial_snapshot(1));
    actors::DeviceDeps deps;
    deps.rollout = rollout_.get();
    deps.port = &port();
    device_ = keep(actors::spawn_device(system(), std::move(deps)));
  }
  static engines::RolloutRequest request(std::uint64_t id) {
    engines::RolloutRequest request;
    request.id = {id};
    request.prompt_ids = {1, 2};
    request.max_new_tokens = 8;
    return request;
  }
  Reply<RolloutResult> generate(const engines::RolloutRequest& request) {
    auto reply = ask<RolloutResult>(device_, atom::generate_v, request);
    drain();
    return reply;
  }

  engines::ReplayOptions options_;
  std::unique_ptr<engines::RolloutEngine> rollout_;
  actors::DeviceActor device_;
};

TEST_F(DeviceStreamTest, StreamSendsTokensBeforeTheReply) {
  std::vector<StreamLog> logs(2);
  const std::vector<engines::RolloutRequest> requests{request(2), request(3)};
  const auto whole = generate(request(7));  // asks for no tokens
  // The device is busy, so it takes both at once.
  keep(system().spawn(stream_requester, caf::actor_cast<actors::StreamingActor>(device_), requests,
                      &logs));
  ASSERT_TRUE(run_until([&] { return logs[0].result && logs[1].result && whole.arrived(); }));
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<std::int32_t> ids;
    for (const actors::TokenEvent& event : logs[i].events) {
      EXPECT_EQ(event.first, ids.size());
      EXPECT_EQ(event.behavior_logprobs.size(), event.ids.size());
      ids.insert(ids.end(), event.ids.begin(), event.ids.end());
    }
    EXPECT_EQ(ids, logs[i].result->response_ids);
    EXPECT_EQ(logs[i].events_before_result, logs[i].events.size());
  }
  // The tokens of one iteration arrive in one message.
  EXPECT_LT(logs[0].num_batches, logs[0].events.size() + logs[1].events.size());
}

TEST_F(DeviceStreamTest, AStreamThatIsRefusedSendsNoTokens) {
  std::vector<StreamLog> logs(2);
  engines::RolloutRequest empty = request(2);
  empty.prompt_ids.clear();
  keep(system().spawn(stream_requester, caf::actor_cast<actors::StreamingActor>(device_),
                      std::vector{empty, request(3)}, &logs));
  ASSERT_TRUE(run_until([&] { return logs[1].result.has_value(); }));
  EXPECT_TRUE(logs[0].events.empty());
  EXPECT_FALSE(logs[0].result.has_value());
}

}  // namespace
}  // namespace tidemill::test
