// SPDX-License-Identifier: Apache-2.0
// Small and unusual templates, with the texts that Jinja itself renders (see make_jinja_cases.py).
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "engines/chat/chat_template.hpp"

namespace tidemill::engines::chat {
namespace {

using Json = nlohmann::ordered_json;

TEST(Jinja, RendersAsJinjaDoes) {
  std::ifstream file(TIDEMILL_TEST_DIR "/engines/chat/jinja_cases.json");
  ASSERT_TRUE(file);
  const Json golden = Json::parse(file);
  Json json_request = golden.at("variables");
  json_request["now"] = golden.at("now");
  const auto request = ChatRequest::from_json(json_request.dump());
  ASSERT_TRUE(request.ok()) << request.status().to_string();
  int rendered = 0;
  int failed = 0;
  for (const Json& item : golden.at("cases")) {
    const auto source = item.at(0).get<std::string>();
    SCOPED_TRACE(item.at(0).dump());
    const auto parsed = ChatTemplate::parse(source);
    const auto result = parsed.ok() ? parsed.value().render(request.value()) : parsed.status();
    if (item.at(1).is_null()) {
      ++failed;
      ASSERT_FALSE(result.ok()) << result.value().text;
      EXPECT_EQ(result.status().message().rfind("line ", 0), 0U) << result.status().message();
    } else {
      ++rendered;
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(result.value().text, item.at(1).get<std::string>());
    }
  }
  EXPECT_EQ(rendered, 2094);
  EXPECT_EQ(failed, 390);
  std::cout << "jinja cases: " << rendered << " rendered, " << failed << " refused\n";
}

}  // namespace
}  // namespace tidemill::engines::chat
