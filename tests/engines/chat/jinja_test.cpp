// SPDX-License-Identifier: Apache-2.0
// Small and unusual templates, with the texts that Jinja itself renders (see make_jinja_cases.py
// and make_jinja_combinations.py), and requests with null members.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include <gtest/gtest.h>

#include "engines/chat/chat_template.hpp"

namespace tidemill::engines::chat {
namespace {

using Json = nlohmann::ordered_json;

Json read_golden(const std::string& name) {
  std::ifstream file(TIDEMILL_TEST_DIR "/engines/chat/" + name);
  EXPECT_TRUE(file) << name;
  return Json::parse(file);
}

/// How many templates rendered, and how many were refused.
struct Counts {
  int rendered = 0;
  int failed = 0;
};

/// Compares the texts of `cases` with those of this engine.
void check(const Json& cases, const ChatRequest& request, Counts& counts) {
  for (const Json& item : cases) {
    const auto source = item.at(0).get<std::string>();
    SCOPED_TRACE(item.at(0).dump());
    const auto parsed = ChatTemplate::parse(source);
    const auto result = parsed.ok() ? parsed.value().render(request) : parsed.status();
    if (item.at(1).is_null()) {
      ++counts.failed;
      ASSERT_FALSE(result.ok()) << result.value().text;
      EXPECT_EQ(result.status().message().rfind("line ", 0), 0U) << result.status().message();
    } else {
      ++counts.rendered;
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(result.value().text, item.at(1).get<std::string>());
      // A template may be rendered again.
      EXPECT_EQ(parsed.value().render(request).value().text, result.value().text);
    }
  }
}

class Jinja : public ::testing::Test {
protected:
  Jinja() : golden_(read_golden("jinja_cases.json")) {
    Json json_request = golden_.at("variables");
    json_request["now"] = golden_.at("now");
    request_ = ChatRequest::from_json(json_request.dump()).value();
  }

  Json golden_;
  ChatRequest request_;
  Counts counts_;
};

TEST_F(Jinja, RendersAsJinjaDoes) {
  check(golden_.at("cases"), request_, counts_);
  EXPECT_EQ(counts_.rendered, 3558);
  EXPECT_EQ(counts_.failed, 897);
  std::cout << "jinja cases: " << counts_.rendered << " rendered, " << counts_.failed
            << " refused\n";
}

// Random combinations of filters, tests, operators, methods and slices with values at their edges.
TEST_F(Jinja, RendersCombinationsAsJinjaDoes) {
  check(read_golden("jinja_combinations.json").at("cases"), request_, counts_);
  EXPECT_EQ(counts_.rendered, 480);
  EXPECT_EQ(counts_.failed, 120);
}

// Null members of messages are removed, and null members of anything else are kept, with the texts
// of transformers itself (see make_null_members.py).
TEST(NullMembers, AreThoseThatTransformersKeeps) {
  const Json golden = read_golden("null_members.json");
  for (const Json& item : golden.at("cases")) {
    SCOPED_TRACE(item.dump());
    const auto request = ChatRequest::from_json(item.at(1).dump());
    ASSERT_TRUE(request.ok()) << request.status().message();
    const auto parsed = ChatTemplate::parse(item.at(0).get<std::string>());
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const auto result = parsed.value().render(request.value());
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result.value().text, item.at(2).get<std::string>());
  }
  EXPECT_EQ(golden.at("cases").size(), 10U);
}

}  // namespace
}  // namespace tidemill::engines::chat
