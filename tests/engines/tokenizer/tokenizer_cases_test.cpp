// SPDX-License-Identifier: Apache-2.0
// Small tokenizers with unusual added tokens, with the ids and texts of the reference
// implementation (see make_tokenizer_cases.py).
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

std::string decode_in_pieces(const Tokenizer& tokenizer, const Ids& ids, SpecialTokenText special) {
  IncrementalDecoder decoder(tokenizer, special);
  std::string text;
  for (const std::int32_t id : ids) {
    text += decoder.push(id);
  }
  return text + decoder.finish();
}

TEST(TokenizerCases, GiveTheResultsOfTheReference) {
  std::ifstream file(TIDEMILL_TEST_DIR "/engines/tokenizer/tokenizer_cases.json");
  ASSERT_TRUE(file);
  const Json golden = Json::parse(file);
  int encoded = 0;
  int decoded = 0;
  for (const Json& set : golden.at("tokenizers")) {
    SCOPED_TRACE(set.at("name").get<std::string>());
    const auto tokenizer = Tokenizer::from_json(set.at("definition").dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (const Json& item : set.at("encode")) {
      const auto text = item.at(0).get<std::string>();
      SCOPED_TRACE(item.at(0).dump());
      const auto ids = tokenizer.value().encode(text, AddSpecialTokens::kNo);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      EXPECT_EQ(ids.value(), item.at(1).get<Ids>());
      const auto special = tokenizer.value().encode_with_spans(text, AddSpecialTokens::kYes);
      ASSERT_TRUE(special.ok()) << special.status().to_string();
      EXPECT_EQ(special.value().ids, item.back().get<Ids>());
      EXPECT_EQ(special.value().spans.size(), special.value().ids.size());
      ++encoded;
    }
    for (const Json& item : set.at("decode")) {
      const auto ids = item.at(0).get<Ids>();
      SCOPED_TRACE(item.at(0).dump());
      for (const auto& [special, expected] :
           {std::pair(SpecialTokenText::kKeep, item.at(1).get<std::string>()),
            std::pair(SpecialTokenText::kDrop, item.at(2).get<std::string>())}) {
        EXPECT_EQ(tokenizer.value().decode(ids, special), expected);
        EXPECT_EQ(decode_in_pieces(tokenizer.value(), ids, special), expected);
      }
      ++decoded;
    }
  }
  EXPECT_EQ(encoded, 1757);
  EXPECT_EQ(decoded, 420);
  std::cout << "tokenizer cases: " << encoded << " encoded, " << decoded << " decoded\n";
}

}  // namespace
}  // namespace tidemill::engines
