// SPDX-License-Identifier: Apache-2.0
// Tokenizers in the style of SentencePiece, with the ids, spans and texts of the reference
// implementation (see make_sentencepiece_cases.py), and a conversation in Llama 2's format.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text/utf8.hpp"
#include "engines/chat/chat_template.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using TokenIds = std::vector<std::int32_t>;

nlohmann::json read_sentencepiece_cases() {
  std::ifstream file(TIDEMILL_TEST_DIR "/engines/tokenizer/sentencepiece_cases.json");
  EXPECT_TRUE(file);
  return nlohmann::json::parse(file);
}

// Returns the tokenizer.json of a set: its definition with the vocabulary and the merges that all
// sets share. The merges are strings in some files and pairs in others.
std::string tokenizer_json_of(const nlohmann::json& golden, const nlohmann::json& set) {
  nlohmann::json definition = set.at("definition");
  definition["model"]["vocab"] = golden.at("vocab");
  nlohmann::json& merges = definition["model"]["merges"];
  if (set.at("string_merges").get<bool>()) {
    merges = golden.at("merges");
    return definition.dump();
  }
  merges = nlohmann::json::array();
  for (const nlohmann::json& merge : golden.at("merges")) {
    const auto text = merge.get<std::string>();
    const std::size_t space = text.find(' ');
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return definition.dump();
}

void check_encoding(const Tokenizer& tokenizer, const nlohmann::json& item) {
  const auto text = item.at(0).get<std::string>();
  const auto expected = item.at(1).get<TokenIds>();
  SCOPED_TRACE(item.at(0).dump());
  const auto encoding = tokenizer.encode_with_spans(text, AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
  EXPECT_EQ(encoding.value().ids, expected);
  std::vector<std::size_t> spans;
  for (const TextSpan& span : encoding.value().spans) {
    ASSERT_LE(span.begin, span.end);
    ASSERT_LE(span.end, text.size());
    spans.insert(spans.end(), {span.begin, span.end});
  }
  ASSERT_EQ(spans.size(), 2 * expected.size());
  if (item.size() == 3) {  // the other tokenizers normalize whole clusters of characters
    EXPECT_EQ(spans, item.at(2).get<std::vector<std::size_t>>());
  }
  // The template puts one token before the text.
  const auto special = tokenizer.encode(text, AddSpecialTokens::kYes);
  ASSERT_TRUE(special.ok()) << special.status().to_string();
  ASSERT_EQ(special.value().size(), expected.size() + 1);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), special.value().begin() + 1));
}

void check_decoding(const Tokenizer& tokenizer, const nlohmann::json& item) {
  const auto ids = item.at(0).get<TokenIds>();
  SCOPED_TRACE(item.dump());
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kKeep), item.at(1).get<std::string>());
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kDrop), item.at(2).get<std::string>());
  IncrementalDecoder decoder(tokenizer, SpecialTokenText::kKeep);
  for (int round = 0; round < 2; ++round) {  // finish() resets the decoder
    std::string text;
    std::vector<std::string> chunks;
    for (const std::int32_t id : ids) {
      chunks.push_back(decoder.push(id));
      EXPECT_FALSE(find_invalid_utf8(chunks.back()).has_value());
      text += chunks.back();
    }
    EXPECT_EQ(chunks, item.at(3).get<std::vector<std::string>>());
    EXPECT_EQ(text + decoder.finish(), item.at(1).get<std::string>());
  }
}

TEST(SentencePieceCases, GiveTheResultsOfTheReference) {
  const nlohmann::json golden = read_sentencepiece_cases();
  int encoded = 0;
  int decoded = 0;
  for (const nlohmann::json& set : golden.at("tokenizers")) {
    SCOPED_TRACE(set.at("name").get<std::string>());
    const auto tokenizer = Tokenizer::from_json(tokenizer_json_of(golden, set));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (const nlohmann::json& item : set.at("encode")) {
      check_encoding(tokenizer.value(), item);
      ++encoded;
    }
    for (const nlohmann::json& item : set.at("decode")) {
      check_decoding(tokenizer.value(), item);
      ++decoded;
    }
  }
  EXPECT_EQ(encoded, 932);
  EXPECT_EQ(decoded, 224);
  std::cout << "sentencepiece cases: " << encoded << " encoded, " << decoded << " decoded\n";
}

TEST(SentencePieceCases, ADirectoryWithLlamasTemplateGivesTheIdsOfTheReference) {
  const nlohmann::json golden = read_sentencepiece_cases();
  const nlohmann::json& chat = golden.at("chat");
  test::TemporaryDirectory directory(test::memory_directory_path());
  std::ofstream(directory.path() / "tokenizer.json")
      << tokenizer_json_of(golden, golden.at("tokenizers").at(0));
  std::ofstream(directory.path() / "tokenizer_config.json")
      << nlohmann::json{{"tokenizer_class", "LlamaTokenizer"},
                        {"bos_token", "<s>"},
                        {"eos_token", "</s>"},
                        {"unk_token", "<unk>"},
                        {"legacy", false},
                        {"chat_template", chat.at("template")}};
  const auto tokenizer = Tokenizer::load(directory.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer.value().bos_id(), 1);
  EXPECT_EQ(tokenizer.value().eos_id(), 2);
  const auto parsed =
      chat::ChatTemplate::parse(tokenizer.value().config().chat_templates.at("default"));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  int rendered = 0;
  for (const nlohmann::json& item : chat.at("cases")) {
    chat::ChatRequest request;
    request.messages = chat::Value::parse_json(item.at("messages").dump()).value();
    request.variables = {{"bos_token", chat::Value(std::string("<s>"))},
                         {"eos_token", chat::Value(std::string("</s>"))}};
    const auto rendering = parsed.value().render(request);
    ASSERT_TRUE(rendering.ok()) << rendering.status().to_string();
    EXPECT_EQ(rendering.value().text, item.at("text").get<std::string>());
    const auto ids = tokenizer.value().encode(rendering.value().text, AddSpecialTokens::kNo);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    EXPECT_EQ(ids.value(), item.at("ids").get<TokenIds>());
    ++rendered;
  }
  EXPECT_EQ(rendered, 5);
}

}  // namespace
}  // namespace tidemill::engines
