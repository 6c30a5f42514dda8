// SPDX-License-Identifier: Apache-2.0
// Every chat template case of the fixtures must match exactly.
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include <gtest/gtest.h>

#include "engines/chat/chat_template.hpp"
#include "engines/chat/generation_mask.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines::chat {
namespace {

using Json = nlohmann::ordered_json;  // requests keep the order of their keys

const std::filesystem::path kFolder = TIDEMILL_TEST_DIR "/golden/engine/chat";

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the request of a case in the format of `tidemill template`.
std::string request_of(const Json& item) {
  Json request = item.at("flags");
  for (const char* key : {"messages", "tools", "now", "bos_token", "eos_token", "pad_token"}) {
    request[key] = item.at(key);
  }
  return request.dump();
}

struct Counts {
  int rendered = 0;
  int refused = 0;
  int masked = 0;
};

class ChatGolden : public ::testing::Test {
protected:
  void check(const Json& item, Counts& counts) {
    SCOPED_TRACE("case " + item.at("id").dump());
    const auto request = ChatRequest::from_json(request_of(item));
    ASSERT_TRUE(request.ok()) << request.status().to_string();
    const auto rendering = template_of(item.at("template")).render(request.value());
    if (item.contains("error")) {
      ++counts.refused;
      ASSERT_FALSE(rendering.ok()) << rendering.value().text;
      check_error(item.at("error"), rendering.status().message());
      return;
    }
    ++counts.rendered;
    ASSERT_TRUE(rendering.ok()) << rendering.status().to_string();
    EXPECT_EQ(rendering.value().text, item.at("text").get<std::string>());
    if (item.contains("generation_spans_chars")) {
      ++counts.masked;
      check_mask(item, rendering.value());
    }
  }

private:
  const ChatTemplate& template_of(const std::string& name) {
    const auto found = templates_.find(name);
    if (found != templates_.end()) return found->second;
    auto parsed = ChatTemplate::parse(read_all(kFolder / (name + ".jinja")));
    EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status().to_string();
    return templates_.emplace(name, std::move(parsed).value()).first->second;
  }

  // The message of raise_exception must match exactly. Other errors only have to occur.
  static void check_error(const std::string& expected, const std::string& message) {
    const std::string raised = "TemplateError: ";
    const std::size_t colon = message.find(": ");
    ASSERT_EQ(message.rfind("line ", 0), 0U) << message;
    if (expected.rfind(raised, 0) == 0) {
      EXPECT_EQ(message.substr(colon + 2), expected.substr(raised.size()));
    }
  }

  void check_mask(const Json& item, const Rendering& rendering) {
    std::vector<CodePointSpan> spans;
    for (const Json& span : item.at("generation_spans_chars")) {
      spans.push_back({span.at(0), span.at(1)});
    }
    EXPECT_EQ(rendering.generation_spans, spans);
    const auto encoding = tokenizer_.encode_with_spans(rendering.text, AddSpecialTokens::kNo);
    ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
    EXPECT_EQ(encoding.value().ids, item.at("ids").get<std::vector<std::int32_t>>());
    EXPECT_EQ(generation_mask(rendering.text, rendering.generation_spans, encoding.value()),
              item.at("assistant_mask").get<std::vector<std::uint8_t>>());
  }

  Tokenizer tokenizer_ = Tokenizer::load(kFolder / "tokenizer").value();
  std::map<std::string, ChatTemplate> templates_;
};

TEST_F(ChatGolden, AllCasesMatch) {
  std::map<std::string, Counts> counts;
  const Json golden = Json::parse(read_all(kFolder / "cases.json"));
  for (const Json& item : golden.at("cases")) {
    check(item, counts[item.at("template")]);
  }
  const auto expect = [&counts](const char* name, int rendered, int refused, int masked) {
    const Counts& found = counts[name];
    EXPECT_EQ(found.rendered, rendered) << name;
    EXPECT_EQ(found.refused, refused) << name;
    EXPECT_EQ(found.masked, masked) << name;
    std::cout << "golden: chat/" << name << ": " << found.rendered << " rendered, " << found.refused
              << " refused, " << found.masked << " with spans and masks\n";
  };
  expect("minimal", 13, 0, 0);
  expect("beacon", 19, 1, 0);
  expect("harbour", 13, 3, 13);
  expect("reef", 16, 1, 0);
  expect("kelp", 27, 2, 0);
  EXPECT_EQ(counts.size(), 5U);
}

// Templates are read from tokenizer_config.json (the beacon template) and from chat_template.jinja.
TEST(ChatTemplateOfModel, IsReadFromBothFiles) {
  const auto models = kFolder.parent_path() / "models";
  for (const char* name : {"qwen2-tiny", "qwen3-tiny", "llama-tiny"}) {
    const auto tokenizer = Tokenizer::load(models / name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    const auto parsed =
        ChatTemplate::parse(tokenizer.value().config().chat_templates.at("default"));
    EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status().to_string();
  }
}

}  // namespace
}  // namespace tidemill::engines::chat
