// SPDX-License-Identifier: Apache-2.0
// Tests the actor that serves Tinker's API: what it parses where.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "actors/tinker/spawn.hpp"
#include "tests/actors/gateway/gateway_fixture.hpp"
#include "tests/actors/tinker/fake_tuning.hpp"
#include "tests/support/manual_port.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::HttpRequest;
using actors::kMaxSmallBodyBytes;

class TinkerActorTest : public ActorTest {
protected:
  void SetUp() override { start(std::size_t{1} << 20U); }
  void start(std::size_t max_parsing_bytes) {
    actors::TinkerDeps deps;
    deps.http = &http_;
    deps.device = keep(spawn_fake_device(system(), std::make_shared<FakeDevice>()));
    deps.store = std::make_shared<MemoryStore>();
    deps.parse_ports = {&small_, nullptr, &large_};
    deps.io_port = &port();
    deps.clock = &clock_;
    deps.unix_time = [] { return 17; };
    deps.random = [this] { return ++random_; };
    deps.model_limits = {100, 64, 64, {99}};
    deps.max_parsing_bytes = max_parsing_bytes;
    deps.tenancy = actors::Tenancy::kSeveral;
    tinker_ = keep(actors::spawn_tinker(system(), std::move(deps)));
    drain();
  }
  void TearDown() override {
    tinker_ = nullptr;
    ActorTest::TearDown();
  }
  ExchangeId arrive(const std::string& path, const std::string& body,
                    const std::vector<actors::HttpHeader>& headers = {},
                    const std::string& tenant = "") {
    HttpRequest made;
    made.method = "POST";
    made.target = "/api/v1/" + path;
    made.headers = headers;
    made.headers.push_back({"content-type", path == "forward_backward" ? "application/x-protobuf"
                                                                       : "application/json"});
    made.body = body;
    made.exchange = ++last_exchange_;
    actors::Caller caller;
    caller.tenant = tenant;
    caf::anon_send(tinker_, atom::request_v, std::move(made), caller);
    drain();
    return last_exchange_;
  }
  [[nodiscard]] bool responded(ExchangeId id) const { return http_.sent.contains(id); }

  FakeHttp http_;
  ManualClock clock_;
  ManualPort small_;
  ManualPort large_;
  std::uint64_t random_ = 0;
  actors::TinkerActor tinker_;
  ExchangeId last_exchange_ = 0;
};

TEST_F(TinkerActorTest, SmallRequestsOvertakeLargeOnes) {
  const ExchangeId large = arrive("forward_backward", std::string(kMaxSmallBodyBytes + 1, '\xFF'));
  const ExchangeId compressed =
      arrive("forward_backward", "\x28\xB5\x2F\xFD", {{"content-encoding", "zstd"}});
  const ExchangeId small = arrive("session_heartbeat", R"({"session_id": "none"})");
  EXPECT_EQ(large_.size(), 2U) << "a compressed body may become a large one";
  ASSERT_EQ(small_.size(), 1U);
  small_.run_next();
  drain();
  EXPECT_TRUE(responded(small));
  EXPECT_FALSE(responded(large));
  for (const ExchangeId id : {large, compressed}) {
    large_.run_next();
    drain();
    EXPECT_TRUE(responded(id));
  }
}

TEST_F(TinkerActorTest, QueuedRequestsFollowAsPortsBecomeFree) {
  for (int i = 0; i < 5; ++i) {
    arrive("session_heartbeat", R"({"session_id": "none"})");
  }
  EXPECT_EQ(small_.size(), 2U);
  for (ExchangeId id = 1; id <= 5; ++id) {
    small_.run_next();
    drain();
    EXPECT_TRUE(responded(id));
  }
  EXPECT_EQ(small_.size(), 0U);
}

TEST_F(TinkerActorTest, ATenantLeavesOthersRoomForBodies) {
  const std::string body = R"({"session_id": "none"})";
  start(10 * body.size());
  for (int i = 0; i < 10; ++i) {
    arrive("session_heartbeat", body, {}, "greedy");
  }
  ASSERT_TRUE(responded(last_exchange_));
  EXPECT_EQ(http_.sent.at(last_exchange_).response.status, 429U);
  const ExchangeId other = arrive("session_heartbeat", body, {}, "other");
  EXPECT_FALSE(responded(other)) << "it waits to be parsed";
}

}  // namespace
}  // namespace tidemill::test
