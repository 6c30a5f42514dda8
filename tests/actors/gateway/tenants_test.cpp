// SPDX-License-Identifier: Apache-2.0
// Tests what a gateway makes of the tenants and priorities of keys.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "tests/actors/gateway/gateway_fixture.hpp"

namespace tidemill::test {
namespace {

using actors::ExchangeId;
using actors::hash_api_key;
using actors::HttpRequest;
using actors::KeyScope;
using engines::Priority;
using ::testing::HasSubstr;
using ::testing::Not;

class TenantsTest : public GatewayTest {
protected:
  void SetUp() override {
    auto keys = std::make_shared<actors::ApiKeys>();
    const auto add = [&](const std::string& name, const std::string& tenant, Priority priority,
                         KeyScope scope = KeyScope::kInfer) {
      ASSERT_TRUE(
          keys->add({name, {KeyScope::kInfer, scope}, hash_api_key(name), tenant, priority}).ok());
    };
    add("red", "red", Priority::kHigh);
    add("blue", "blue", Priority::kLow);
    add("blue-2", "blue", Priority::kNormal);
    add("plain", "", Priority::kNormal);
    add("boss", "", Priority::kNormal, KeyScope::kAdmin);
    start(std::move(keys));
  }
  ExchangeId complete_as(const std::string& key, const std::string& members = "") {
    HttpRequest made =
        request("POST", "/v1/completions", R"({"model": "base", "prompt": "hi")" + members + "}");
    made.headers.push_back({"authorization", "Bearer " + key});
    return send(std::move(made));
  }
  std::string metrics_for(const std::string& key) {
    HttpRequest made = request("GET", "/metrics");
    made.headers.push_back({"authorization", "Bearer " + key});
    return sent(send(std::move(made))).response.body;
  }
  [[nodiscard]] bool refused(ExchangeId id) { return sent(id).response.status == 429; }
};

TEST_F(TenantsTest, RequestsHaveThePriorityAndTheTenantOfTheirKey) {
  complete_as("red");
  complete_as("blue");
  complete_as("plain");
  ASSERT_EQ(fake_->generations.size(), 3U);
  EXPECT_EQ(asked(0).priority, Priority::kHigh);
  EXPECT_EQ(asked(0).tenant, "red");
  EXPECT_EQ(asked(1).priority, Priority::kLow);
  EXPECT_EQ(asked(1).tenant, "blue");
  EXPECT_EQ(asked(2).priority, Priority::kNormal);
  EXPECT_EQ(asked(2).tenant, "");
}

// Only requests of one tenant and with the same `cache_salt` have the same salt.
TEST_F(TenantsTest, SaltsSeparateTenants) {
  const std::vector<std::pair<std::string, std::string>> requests = {
      {"red", ""},
      {"blue", ""},
      {"blue-2", ""},
      {"plain", ""},
      {"boss", ""},
      {"blue", R"(, "cache_salt": "red")"},
      {"red", R"(, "cache_salt": "blue")"},
      {"plain", R"(, "cache_salt": "red")"},
      {"plain", R"(, "cache_salt": "red\n")"},
      {"blue-2", R"(, "cache_salt": "red")"},
  };
  const std::vector<std::size_t> group{0, 1, 1, 2, 2, 3, 4, 5, 6, 3};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    complete_as(requests[i].first, requests[i].second);
    ASSERT_EQ(fake_->generations.size(), i + 1);
    finish(i, "x");
  }
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::size_t k = 0; k < group.size(); ++k) {
      EXPECT_EQ(asked(i).cache_salt == asked(k).cache_salt, group[i] == group[k]) << i << ' ' << k;
    }
  }
  EXPECT_EQ(asked(3).cache_salt, "") << "everything is shared without tenants";
}

// The gateway has room for 8 choices.
TEST_F(TenantsTest, ATenantLeavesRoomForOthers) {
  EXPECT_FALSE(refused(complete_as("red", R"(, "n": 3)")));
  EXPECT_FALSE(refused(complete_as("red")));
  const ExchangeId fifth = complete_as("red");
  EXPECT_TRUE(refused(fifth)) << "it would hold 5, and 4 are free";
  EXPECT_EQ(sent(fifth).response.headers.back().name, "retry-after");
  EXPECT_FALSE(refused(complete_as("blue")));
  EXPECT_FALSE(refused(complete_as("blue-2")));
  EXPECT_TRUE(refused(complete_as("blue"))) << "its keys count together: it would hold 3 of 2";
  EXPECT_FALSE(refused(complete_as("plain")));
  finish(0, "x");
  finish(1, "x");
  finish(2, "x");
  EXPECT_FALSE(refused(complete_as("blue")));
  EXPECT_FALSE(refused(complete_as("red")));
}

// The gateway has room for bodies of 1500 bytes. All arrive before one is parsed.
TEST_F(TenantsTest, ATenantLeavesRoomForTheBodiesOfOthers) {
  const auto arrive = [&](const std::string& key, std::size_t bytes) {
    HttpRequest made = request("POST", "/v1/completions", std::string(bytes, 'x'));
    made.headers.push_back({"authorization", "Bearer " + key});
    made.exchange = ++last_exchange_;
    caf::anon_send(gateway_, atom::request_v, std::move(made));
    drain();
    return last_exchange_;
  };
  EXPECT_FALSE(refused(arrive("red", 700)));
  EXPECT_TRUE(refused(arrive("red", 200)));
  EXPECT_FALSE(refused(arrive("blue", 400)));
  EXPECT_FALSE(refused(arrive("plain", 300)));
}

// Two bodies of red are at the port when the others arrive. Other tenants have the next turns.
TEST_F(TenantsTest, TenantsTakeTurnsAtTheParser) {
  const auto arrive = [&](const std::string& key, int number) {
    HttpRequest made =
        request("POST", "/v1/completions",
                R"({"model": "base", "prompt": "x", "seed": )" + std::to_string(number) + "}");
    made.headers.push_back({"authorization", "Bearer " + key});
    made.exchange = ++last_exchange_;
    caf::anon_send(gateway_, atom::request_v, std::move(made));
    drain();
  };
  for (int i = 0; i < 3; ++i) {
    arrive("red", i);
  }
  arrive("blue", 3);
  arrive("plain", 4);
  ASSERT_TRUE(run_until([&] { return fake_->generations.size() == 5; }));
  std::vector<std::uint64_t> order;
  for (std::size_t i = 0; i < 5; ++i) {
    order.push_back(asked(i).seed);
  }
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 4, 3, 2));
}

TEST_F(TenantsTest, OnlyAdministratorsSeeWhatTenantsDo) {
  complete_as("red");
  complete_as("red", R"(, "n": 2)");
  complete_as("blue", R"(, "n": 8)");
  finish(0, "yo!");
  EXPECT_THAT(metrics_for("blue"), Not(HasSubstr("tenant")));
  const std::string text = metrics_for("boss");
  const auto labels = [](const std::string& tenant) {
    return R"({engine="0",model_name="base",tenant=")" + tenant + "\"}";
  };
  for (const std::string& line : {
           "tidemill:tenant_prompt_tokens_total" + labels("red") + " 2",
           "tidemill:tenant_generation_tokens_total" + labels("red") + " 3",
           "tidemill:tenant_responses_pending" + labels("red") + " 2",
           "tidemill:tenant_refused_total" + labels("blue") + " 1",
       }) {
    EXPECT_THAT(text, HasSubstr(line + "\n"));
  }
  finish(1, "x");
  finish(2, "x");
  EXPECT_THAT(metrics_for("boss"),
              HasSubstr("tidemill:tenant_responses_pending" + labels("red") + " 0\n"));
}

}  // namespace
}  // namespace tidemill::test
