// SPDX-License-Identifier: Apache-2.0
// The lower bound of the tokens of a text, and encoding that stops early.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/text/utf8.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines {
namespace {

using Named = std::pair<std::string, Tokenizer>;

// Adds the tokenizers of a file of cases, with each kind of normalizer in front of its own.
void add_cases(const std::string& path, std::vector<Named>& out) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const nlohmann::json& set : golden.at("tokenizers")) {
    const nlohmann::json& given = set.at("definition");
    for (const nlohmann::json& step :
         {nlohmann::json(), nlohmann::json{{"type", "NFC"}}, nlohmann::json{{"type", "NFKC"}},
          nlohmann::json{{"type", "NFD"}},
          nlohmann::json{{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}},
          nlohmann::json{{"type", "Replace"}, {"pattern", {{"String", "ab"}}}, {"content", "c"}}}) {
      nlohmann::json definition = given;
      if (!step.is_null()) {
        nlohmann::json steps = nlohmann::json::array({step});
        if (definition.contains("normalizer") && !definition["normalizer"].is_null()) {
          steps.push_back(definition["normalizer"]);
        }
        definition["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
      }
      auto made = Tokenizer::from_json(definition.dump());
      if (made.ok()) {  // else an added token is empty, or equal to another one
        out.emplace_back(set.at("name").get<std::string>() + " " + step.dump(),
                         std::move(made).value());
      }
    }
  }
}

std::vector<Named> all_tokenizers() {
  std::vector<Named> out;
  const std::string root = TIDEMILL_SOURCE_DIR;
  const std::string golden = root + "/tests/golden/engine";
  std::vector<std::filesystem::path> folders{root + "/examples/models/arithmetic",
                                             golden + "/chat/tokenizer"};
  for (const auto& entry : std::filesystem::directory_iterator(golden + "/tokenizers")) {
    if (entry.is_directory()) {
      folders.push_back(entry.path());
    }
  }
  for (const auto& folder : folders) {
    auto loaded = Tokenizer::load(folder);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    out.emplace_back(folder.string(), std::move(loaded).value());
  }
  add_cases(root + "/tests/engines/tokenizer/tokenizer_cases.json", out);
  add_cases(root + "/tests/engines/tokenizer/sentencepiece_cases.json", out);
  return out;
}

// Returns text of tokens, white space, and characters that normalization shortens.
std::string random_text(const Tokenizer& tokenizer, std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {" ",
                                                   "  ",
                                                   "\n\t\r ",
                                                   "\u00A0",
                                                   "\u3000",
                                                   "e\u0301",
                                                   "A\u030A\u0301",
                                                   "\u1112\u1161\u11AB",
                                                   "\u212A\u0327",
                                                   "\U0001D400",
                                                   "\uFB01",
                                                   "\u03B1\u0313\u0300\u0345",
                                                   "=\u0338",
                                                   "\u0344",
                                                   "\uFDFA",
                                                   "ab",
                                                   "zq",
                                                   "\u2581"};
  std::string text;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto count = below(24);
  for (std::size_t i = 0; i < count; ++i) {
    std::string piece;
    switch (below(3)) {
      case 0: piece = kPieces[below(kPieces.size())]; break;
      case 1: piece = static_cast<char>(' ' + below(95)); break;
      default:
        piece = tokenizer.token_bytes(static_cast<std::int32_t>(
            below(static_cast<std::size_t>(tokenizer.vocabulary_size()))));
    }
    for (std::size_t times = below(4) == 0 ? below(40) : 1; times > 0; --times) {
      text += piece;
    }
  }
  return find_invalid_utf8(text).has_value() ? std::string() : text;
}

TEST(TokenBound, IsNeverMoreThanTheTokens) {
  std::mt19937_64 random(7);
  std::size_t checked = 0;
  std::size_t bounded = 0;
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    for (int i = 0; i < 1000; ++i) {
      const std::string text = random_text(tokenizer, random);
      const auto ids = tokenizer.encode(text, AddSpecialTokens::kNo);
      if (!ids.ok()) {
        continue;  // a character that this tokenizer cannot encode
      }
      const std::size_t least = tokenizer.least_tokens(text);
      ASSERT_LE(least, ids.value().size()) << name << ": " << text;
      ++checked;
      bounded += least > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(checked, 5000U);
  EXPECT_GT(bounded, 2000U);
}

// In the shipped model a token is a byte, or its end token.
TEST(TokenBound, CountsBytesOfTheLongestToken) {
  const auto tokenizer =
      Tokenizer::load(std::string(TIDEMILL_SOURCE_DIR) + "/examples/models/arithmetic").value();
  std::size_t longest = 0;
  for (std::int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  }
  EXPECT_EQ(tokenizer.least_tokens(std::string(longest * 100, 'x')), 100U);
  EXPECT_EQ(tokenizer.least_tokens(std::string(longest * 100 + 1, 'x')), 101U);
  EXPECT_EQ(tokenizer.least_tokens(""), 0U);
}

TEST(TokenBound, EncodingStopsBehindTheLimit) {
  std::mt19937_64 random(11);
  std::size_t stopped = 0;
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    for (int i = 0; i < 50; ++i) {
      const std::string text = random_text(tokenizer, random);
      const auto whole = tokenizer.encode(text, AddSpecialTokens::kNo);
      if (!whole.ok()) {
        continue;
      }
      const std::size_t limit = random() % 30;
      const auto part = tokenizer.encode_at_most(text, AddSpecialTokens::kNo, limit);
      ASSERT_TRUE(part.ok()) << name;
      const std::size_t size = part.value().size();
      ASSERT_TRUE(size == whole.value().size() || size > limit) << name << ": " << text;
      ASSERT_TRUE(std::equal(part.value().begin(), part.value().end(), whole.value().begin(),
                             whole.value().begin() + static_cast<std::ptrdiff_t>(size)));
      stopped += size < whole.value().size() ? 1 : 0;
    }
  }
  EXPECT_GT(stopped, 100U);
}

}  // namespace
}  // namespace tidemill::engines
