// SPDX-License-Identifier: Apache-2.0
// Tests that what takes long to parse does not delay what does not.
#include "actors/gateway/parse_lanes.hpp"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/actors/gateway/gateway_fixture.hpp"
#include "tests/support/manual_port.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::HttpRequest;
using actors::kMaxSmallBodyBytes;
using actors::lane_of_json;
using actors::ParseLane;
using actors::TenantTurns;
using ::testing::ElementsAre;

TEST(ParseLaneTest, FollowsSizeAndFields) {
  EXPECT_EQ(lane_of_json(R"({"prompt": "hi"})"), ParseLane::kSmall);
  EXPECT_EQ(lane_of_json(""), ParseLane::kSmall);
  EXPECT_EQ(lane_of_json(std::string(kMaxSmallBodyBytes, 'x')), ParseLane::kSmall);
  EXPECT_EQ(lane_of_json(std::string(kMaxSmallBodyBytes + 1, 'x')), ParseLane::kLarge);
  EXPECT_EQ(lane_of_json(R"({"response_format" : {}})"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"tool_choice":"required"})"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"prompt": "the \"response_format\" of"})"), ParseLane::kSmall);
  EXPECT_EQ(lane_of_json(R"({"response_format" : {}})" + std::string(kMaxSmallBodyBytes, ' ')),
            ParseLane::kLarge);
}

// A field may be spelled with escapes, which no encoder of the usual ones writes for letters.
TEST(ParseLaneTest, EscapesHideNoField) {
  EXPECT_EQ(lane_of_json(R"({"response\u005fformat": {}})"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"\u0074ool_choice": {}})"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"\u0074)"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"prompt": "\u00e9\u0000\u007F"})"), ParseLane::kConstrained);
  EXPECT_EQ(lane_of_json(R"({"prompt": "\u00e9\u0000\u2581\u00)"), ParseLane::kSmall);
}

// An item of cost 3 lets two items of the other tenant pass before it, and none of its own.
TEST(TenantTurnsTest, CostsAreFair) {
  TenantTurns<std::string> turns;
  turns.push("big", "b1", 3);
  turns.push("big", "b2", 3);
  for (int i = 0; i < 7; ++i) {
    turns.push("little", "l" + std::to_string(i));
  }
  std::vector<std::string> order;
  while (!turns.empty()) {
    order.push_back(turns.pop());
  }
  EXPECT_THAT(order, ElementsAre("l0", "l1", "b1", "l2", "l3", "l4", "b2", "l5", "l6"));
}

// A tenant that sends one large item after another, and never has two waiting, gets no more.
TEST(TenantTurnsTest, AnEmptyQueueSavesNothingUp) {
  TenantTurns<std::string> turns;
  std::map<char, std::size_t> costs;
  turns.push("big", "b", 16);
  turns.push("little", "l", 2);
  turns.push("little", "l", 2);
  for (int i = 0; i < 1000; ++i) {
    const std::string item = turns.pop();
    const std::size_t cost = item == "b" ? 16 : 2;
    costs[item[0]] += cost;
    turns.push(item == "b" ? "big" : "little", item, cost);
  }
  EXPECT_NEAR(static_cast<double>(costs['b']), static_cast<double>(costs['l']), 16.0);
}

TEST(TenantTurnsTest, OneTenantKeepsItsOrder) {
  TenantTurns<int> turns;
  turns.push("", 1, 1000);
  turns.push("", 2, 1);
  turns.push("", 3, 500);
  EXPECT_EQ(turns.pop(), 1);
  EXPECT_EQ(turns.pop(), 2);
  EXPECT_EQ(turns.pop(), 3);
  EXPECT_TRUE(turns.empty());
}

class ParseLanesTest : public GatewayTest {
protected:
  void complete_deps(actors::GatewayDeps& deps) override {
    deps.parse_ports = {&small_, &constrained_, &large_};
    deps.limits.max_pending_body_bytes = std::size_t{8} << 20U;
  }
  ExchangeId arrive(const std::string& members) {
    HttpRequest made =
        request("POST", "/v1/completions", R"({"model": "base", "prompt": "hi")" + members + "}");
    made.exchange = ++last_exchange_;
    caf::anon_send(gateway_, atom::request_v, std::move(made));
    drain();
    return last_exchange_;
  }
  void run(ManualPort& port) {
    port.run_next();
    drain();
  }

  ManualPort small_;
  ManualPort constrained_;
  ManualPort large_;
  const std::string schema_ =
      R"(, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}})";
  const std::string padding_ = std::string(kMaxSmallBodyBytes, ' ');
};

TEST_F(ParseLanesTest, SmallRequestsOvertakeLargeOnesAndSchemas) {
  arrive(R"(, "seed": 1)" + padding_);
  arrive(R"(, "seed": 2)" + schema_);
  arrive(R"(, "seed": 3)");
  ASSERT_EQ(large_.size(), 1U);
  ASSERT_EQ(constrained_.size(), 1U);
  ASSERT_EQ(small_.size(), 1U);
  run(small_);
  ASSERT_EQ(fake_->generations.size(), 1U);
  EXPECT_EQ(asked(0).seed, 3U);
  run(constrained_);
  ASSERT_EQ(fake_->generations.size(), 2U);
  EXPECT_EQ(asked(1).seed, 2U);
  EXPECT_TRUE(asked(1).constraint.is_set);
  run(large_);
  ASSERT_EQ(fake_->generations.size(), 3U);
  EXPECT_EQ(asked(2).seed, 1U);
}

// Two bodies are at the port of a lane, and the others wait in the gateway.
TEST_F(ParseLanesTest, EachLaneHasItsOwnQueue) {
  for (int i = 0; i < 4; ++i) {
    arrive(padding_);
    arrive("");
  }
  EXPECT_EQ(large_.size(), 2U);
  EXPECT_EQ(small_.size(), 2U);
  EXPECT_EQ(constrained_.size(), 0U);
  for (int i = 0; i < 4; ++i) {
    run(small_);
  }
  EXPECT_EQ(small_.size(), 0U);
  EXPECT_EQ(large_.size(), 2U);
  EXPECT_EQ(fake_->generations.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    run(large_);
  }
  EXPECT_EQ(large_.size(), 0U);
  EXPECT_EQ(fake_->generations.size(), 8U);
}

}  // namespace
}  // namespace tidemill::test
