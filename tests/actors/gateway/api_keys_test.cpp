// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/api_keys.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using actors::ApiKeys;
using actors::hash_api_key;
using actors::KeyScope;
using actors::make_api_key;
using engines::Priority;
using ::testing::HasSubstr;

TEST(ApiKeysTest, MakesKeysThatAreAllDifferent) {
  const std::string one = make_api_key();
  EXPECT_EQ(one.size(), 3U + 64U);
  EXPECT_TRUE(one.starts_with("tm-"));
  EXPECT_NE(one, make_api_key());
}

// The expected digests are those of Python's hashlib.blake2b(key, digest_size=32).
TEST(ApiKeysTest, HashesWithBlake2b) {
  EXPECT_EQ(hash_api_key(""), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  EXPECT_EQ(hash_api_key("tm-key"),
            "7197aaa4c1e126bf687873feaabea21d3e16f93581e3412e1b0a92673a9e33d6");
}

TEST(ApiKeysTest, FindsOnlyKeysThatWereAdded) {
  ApiKeys keys;
  const std::string alice = make_api_key();
  ASSERT_TRUE(keys.add({"alice", {KeyScope::kTune, KeyScope::kInfer}, hash_api_key(alice)}).ok());
  ASSERT_TRUE(keys.add({"bob", {KeyScope::kAdmin}, hash_api_key("b")}).ok());
  ASSERT_NE(keys.find(alice), nullptr);
  EXPECT_EQ(keys.find(alice)->name, "alice");
  EXPECT_TRUE(keys.find(alice)->permits(KeyScope::kInfer));
  EXPECT_FALSE(keys.find(alice)->permits(KeyScope::kAdmin));
  EXPECT_EQ(keys.find("b")->name, "bob");
  for (const std::string& wrong :
       {std::string(), std::string("tm-"), alice + " ", alice.substr(1), hash_api_key(alice)}) {
    EXPECT_EQ(keys.find(wrong), nullptr) << wrong;
  }
  ASSERT_TRUE(keys.remove("alice").ok());
  EXPECT_EQ(keys.find(alice), nullptr);
  EXPECT_EQ(keys.remove("alice").code(), Errc::kNotFound);
}

TEST(ApiKeysTest, SurvivesARoundTrip) {
  ApiKeys keys;
  ASSERT_TRUE(keys.add({"a@b.c", {KeyScope::kInfer, KeyScope::kAdmin}, hash_api_key("x")}).ok());
  ASSERT_TRUE(keys.add({"d", {KeyScope::kTune}, hash_api_key("y")}).ok());
  const std::string text = keys.to_text();
  EXPECT_EQ(text.find("\"x\""), std::string::npos);
  const auto again = ApiKeys::parse(text, "keys.json");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again.value().to_text(), text);
  EXPECT_EQ(again.value().find("x")->name, "a@b.c");
}

TEST(ApiKeysTest, KeysHaveTenantsAndPriorities) {
  ApiKeys keys;
  EXPECT_FALSE(keys.have_tenants());
  ASSERT_TRUE(keys.add({"a", {KeyScope::kInfer}, hash_api_key("x"), "red", Priority::kHigh}).ok());
  ASSERT_TRUE(keys.add({"b", {KeyScope::kInfer}, hash_api_key("y"), "red", Priority::kLow}).ok());
  EXPECT_FALSE(keys.have_tenants()) << "both belong to one";
  ASSERT_TRUE(keys.add({"c", {KeyScope::kInfer}, hash_api_key("z")}).ok());
  EXPECT_TRUE(keys.have_tenants());
  const auto again = ApiKeys::parse(keys.to_text(), "keys.json");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again.value().to_text(), keys.to_text());
  EXPECT_EQ(again.value().find("x")->tenant, "red");
  EXPECT_EQ(again.value().find("x")->priority, Priority::kHigh);
  EXPECT_EQ(again.value().find("y")->priority, Priority::kLow);
  EXPECT_EQ(again.value().find("z")->tenant, "");
  EXPECT_EQ(again.value().find("z")->priority, Priority::kNormal);
  EXPECT_FALSE(keys.add({"d", {KeyScope::kInfer}, "", "two words"}).ok());
  EXPECT_FALSE(keys.add({"d", {KeyScope::kInfer}, "", "line\nbreak"}).ok());
  EXPECT_FALSE(keys.add({"d", {KeyScope::kInfer}, "", "red", Priority::kBackground}).ok())
      << "it is below every client";
}

// The text that earlier versions wrote.
TEST(ApiKeysTest, ReadsFilesWithoutTenants) {
  const std::string text =
      R"({"keys": [{"name": "alice", "scopes": ["infer", "admin"], "blake2b": ")" +
      hash_api_key("x") + "\"}]}";
  const auto keys = ApiKeys::parse(text, "keys.json");
  ASSERT_TRUE(keys.ok()) << keys.status().to_string();
  EXPECT_EQ(keys.value().find("x")->tenant, "");
  EXPECT_EQ(keys.value().find("x")->priority, Priority::kNormal);
  EXPECT_FALSE(keys.value().have_tenants());
  EXPECT_EQ(keys.value().to_text().find("tenant"), std::string::npos);
  EXPECT_EQ(keys.value().to_text().find("priority"), std::string::npos);
}

TEST(ApiKeysTest, RefusesFilesThatCannotBeUsed) {
  const std::string hash = hash_api_key("x");
  const auto key = [&](const std::string& name, const std::string& scopes,
                       const std::string& digest) {
    return R"({"name": ")" + name + R"(", "scopes": )" + scopes + R"(, "blake2b": ")" + digest +
           "\"}";
  };
  const std::string good = key("a", R"(["infer"])", hash);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "keys.json: "},
      {"[]", "needs a list keys"},
      {R"({"keys": {}})", "needs a list keys"},
      {R"({"keys": [1]})", "keys[0]"},
      {R"({"keys": [)" + key("", R"(["infer"])", hash) + "]}", "keys[0]: name"},
      {R"({"keys": [)" + key("a b", R"(["infer"])", hash) + "]}", "keys[0]: name"},
      {R"({"keys": [)" + key("a", "[]", hash) + "]}", "keys[0]: scopes"},
      {R"({"keys": [)" + key("a", R"(["root"])", hash) + "]}", "keys[0]: scopes: must be infer"},
      {R"({"keys": [)" + key("a", R"(["infer"])", "abc") + "]}", "keys[0]: blake2b"},
      {R"({"keys": [{"priority": "urgent", )" + good.substr(1) + "]}",
       "keys[0]: priority: must be low, normal or high, not \"urgent\""},
      {R"({"keys": [{"priority": "background", )" + good.substr(1) + "]}", "keys[0]: priority"},
      {R"({"keys": [{"priority": 3, )" + good.substr(1) + "]}", "keys[0]: priority"},
      {R"({"keys": [{"tenant": "a b", )" + good.substr(1) + "]}", "keys[0]: tenant"},
      {R"({"keys": [{"tenant": 3, )" + good.substr(1) + "]}", "keys[0]: tenant"},
      {R"({"keys": [)" + good + "," + good + "]}", "keys[1]: name: there is a key \"a\" already"},
  };
  for (const auto& [text, message] : cases) {
    const auto keys = ApiKeys::parse(text, "keys.json");
    ASSERT_FALSE(keys.ok()) << text;
    EXPECT_THAT(keys.status().message(), HasSubstr(message)) << text;
    EXPECT_TRUE(keys.status().message().starts_with("keys.json: ")) << keys.status().message();
  }
}

}  // namespace
}  // namespace tidemill::test
