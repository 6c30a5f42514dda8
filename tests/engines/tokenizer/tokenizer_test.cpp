// SPDX-License-Identifier: Apache-2.0
// A handwritten tokenizer, limits, spans, and files that must be refused.
#include "engines/tokenizer/tokenizer.hpp"

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A minimal handwritten tokenizer.json: one token per character, and chat tokens.
constexpr const char* kHandWritten = R"({
  "added_tokens": [
    {"id": 16, "content": "<|end|>", "special": true},
    {"id": 17, "content": "<|user|>", "special": true},
    {"id": 18, "content": "<|assistant|>", "special": true}
  ],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel"},
  "model": {
    "type": "BPE",
    "vocab": {"0": 0, "1": 1, "2": 2, "3": 3, "4": 4, "5": 5, "6": 6, "7": 7, "8": 8, "9": 9,
              "+": 10, "=": 11, "-": 12, "\u0120": 13, "\u010a": 14, "?": 15},
    "merges": []
  }
})";

Tokenizer hand_written() {
  auto tokenizer = Tokenizer::from_json(kHandWritten);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

Ids encode(const Tokenizer& tokenizer, std::string_view text) {
  auto ids = tokenizer.encode(text, AddSpecialTokens::kYes);
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  return ids.ok() ? std::move(ids).value() : Ids();
}

// Returns a tokenizer.json with the lowercase letters and the space. Tests add further tokens.
Json letters() {
  Json root = Json::parse(kHandWritten);
  root["added_tokens"] = Json::array();
  root["model"]["vocab"] = Json::object();
  int id = 0;
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz")) {
    root["model"]["vocab"][std::string(1, c)] = id++;
  }
  root["model"]["vocab"]["\u0120"] = id;
  return root;
}

Tokenizer from(const Json& root) {
  auto tokenizer = Tokenizer::from_json(root.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

TEST(Tokenizer, HandWrittenFileGivesOneTokenPerCharacter) {
  const Tokenizer tokenizer = hand_written();
  EXPECT_EQ(tokenizer.vocabulary_size(), 19);
  EXPECT_THAT(encode(tokenizer, "<|user|>12+30=?<|assistant|>42<|end|>"),
              ElementsAre(17, 1, 2, 10, 3, 0, 11, 15, 18, 4, 2, 16));
  const Ids ids = {17, 1, 2, 13, 14, 16};
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kKeep), "<|user|>12 \n<|end|>");
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kDrop), "12 \n");
  EXPECT_EQ(tokenizer.find("<|end|>"), 16);
  EXPECT_EQ(tokenizer.find("<|other|>"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(16));
  EXPECT_FALSE(tokenizer.is_special(15));
  EXPECT_TRUE(encode(tokenizer, "").empty());
}

TEST(Tokenizer, UnknownIdsDecodeToNothing) {
  const Tokenizer tokenizer = hand_written();
  const Ids ids = {1, 19, 1 << 30, -1, 2};
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kKeep), "12");
  EXPECT_FALSE(tokenizer.contains(19));
  EXPECT_FALSE(tokenizer.contains(-1));
  EXPECT_TRUE(tokenizer.contains(18));
}

TEST(Tokenizer, UnencodableTextIsRefusedWithItsOffset) {
  const Tokenizer tokenizer = hand_written();
  const auto message = [&tokenizer](std::string_view text) {
    return tokenizer.encode(text, AddSpecialTokens::kNo).status().message();
  };
  EXPECT_EQ(message("12 \xC3\x28"), "text is not valid UTF-8 at byte 3");
  EXPECT_EQ(message("12<|end|>3 abc"),
            "no token represents the character \"a\" (U+0061) at offset 1 of the piece that begins "
            "at byte 10");
  EXPECT_EQ(message("1\u20AC"),
            "no token represents the character \"\u20AC\" (U+20AC) at offset 0 of the piece that "
            "begins at byte 1");
  EXPECT_EQ(
      message("\x07"),
      "no token represents the character U+0007 at offset 0 of the piece that begins at byte 0");
  EXPECT_THAT(message(std::string(Tokenizer::kMaxTextBytes + 1, '1')),
              HasSubstr("exceeds the limit"));
}

// A run compares this digest when it resumes.
TEST(Tokenizer, TheDigestDependsOnEverythingThatChangesTextsOrIds) {
  struct Case {
    const char* name;
    std::function<void(std::string&, TokenizerConfig&)> change;
  };
  using Text = std::string&;
  using Config = TokenizerConfig&;
  const std::vector<Case> cases = {
      {"nothing", [](Text, Config) {}},
      {"tokenizer.json", [](Text json, Config) { json += "\n"; }},
      {"another bos", [](Text, Config c) { c.bos_token = "1"; }},
      {"no bos", [](Text, Config c) { c.bos_token.reset(); }},
      {"another eos", [](Text, Config c) { c.eos_token = "1"; }},
      {"no eos", [](Text, Config c) { c.eos_token.reset(); }},
      {"another pad", [](Text, Config c) { c.pad_token = "1"; }},
      {"no pad", [](Text, Config c) { c.pad_token.reset(); }},
      {"bos and eos exchanged", [](Text, Config c) { std::swap(c.bos_token, c.eos_token); }},
      {"eos and pad exchanged", [](Text, Config c) { std::swap(c.eos_token, c.pad_token); }},
      {"the first template", [](Text, Config c) { c.chat_templates["default"] = "C"; }},
      {"the second template", [](Text, Config c) { c.chat_templates["tool_use"] = "C"; }},
      {"templates exchanged",
       [](Text, Config c) {
         c.chat_templates = {{"default", "B"}, {"tool_use", "A"}};
       }},
      {"another name",
       [](Text, Config c) {
         c.chat_templates = {{"default", "A"}, {"tools", "B"}};
       }},
      {"one more template", [](Text, Config c) { c.chat_templates["x"] = "C"; }},
      {"without the first template", [](Text, Config c) { c.chat_templates.erase("default"); }},
      {"without the second template", [](Text, Config c) { c.chat_templates.erase("tool_use"); }},
      {"no templates", [](Text, Config c) { c.chat_templates.clear(); }},
      {"the same texts, cut elsewhere",
       [](Text, Config c) {
         c.chat_templates = {{"defaultA", ""}, {"tool_use", "B"}};
       }},
  };
  std::map<std::string, std::string> names;  // by digest
  for (const Case& c : cases) {
    std::string json = kHandWritten;
    TokenizerConfig config;
    config.bos_token = "<|user|>";
    config.eos_token = "<|end|>";
    config.pad_token = "?";
    config.chat_templates = {{"default", "A"}, {"tool_use", "B"}};
    c.change(json, config);
    const auto tokenizer = Tokenizer::from_json(json, config);
    ASSERT_TRUE(tokenizer.ok()) << c.name << ": " << tokenizer.status().to_string();
    const auto [other, is_new] = names.emplace(tokenizer.value().digest(), c.name);
    EXPECT_TRUE(is_new) << c.name << " gives the digest of " << other->second;
    EXPECT_EQ(Tokenizer::from_json(json, config).value().digest(), other->first);
    // Declared tokens are only compared with tokenizer.json.
    config.declared_tokens = {{16, "<|end|>"}};
    EXPECT_EQ(Tokenizer::from_json(json, config).value().digest(), other->first);
  }
}

TEST(Tokenizer, LeftmostLowestRankMergesFirst) {
  Json root = letters();
  root["model"]["vocab"].update({{"ab", 50}, {"bc", 51}, {"abc", 52}, {"aa", 53}, {"aaa", 54}});
  root["model"]["merges"] = {"b c", "a b", "a a", "a bc", "aa a"};
  const Tokenizer tokenizer = from(root);
  EXPECT_THAT(encode(tokenizer, "abc"), ElementsAre(52));
  EXPECT_THAT(encode(tokenizer, "abab"), ElementsAre(50, 50));
  EXPECT_THAT(encode(tokenizer, "aaaaa"), ElementsAre(53, 54)) << "aa aa a, then aa aaa";
}

// A million letters merge into tokens of 64. Quadratic merging would exceed the test's time limit.
TEST(Tokenizer, OneHugeWordTakesNearLinearTime) {
  Json root = letters();
  root["model"]["merges"] = Json::array();
  std::string token = "a";
  for (int id = 50; token.size() < 64; ++id) {
    root["model"]["merges"].push_back({token, token});
    token += token;
    root["model"]["vocab"][token] = id;
  }
  const Tokenizer tokenizer = from(root);
  const std::string word(std::size_t{1} << 20U, 'a');
  const Ids ids = encode(tokenizer, word);
  EXPECT_EQ(ids, Ids(word.size() / 64, 55));
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kKeep), word);
  // A megabyte of text over which the split pattern backtracks.
  for (const std::string unit : {" ", "ab ", " \t"}) {
    std::string text;
    while (text.size() < (std::size_t{1} << 20U)) text += unit;
    const auto result = tokenizer.encode(text, AddSpecialTokens::kNo);
    EXPECT_EQ(result.ok(), unit != " \t") << "a tab has no token";
  }
}

TEST(Tokenizer, ManyThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = hand_written();
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&tokenizer, &equal, t] {
      for (int i = 0; i < 200; ++i) {
        equal[t] += encode(tokenizer, "<|user|>1 + 2") == Ids{17, 1, 13, 10, 13, 2} ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ElementsAre(200, 200, 200, 200));
}

TEST(Tokenizer, SpansCoverWholeCharactersThroughNormalization) {
  Json root = Json::parse(kHandWritten);
  root["normalizer"] = {{"type", "NFC"}};
  for (const auto& [token, id] : {std::pair{"\u00C3", 30}, {"\u00A9", 31}, {"\u00C2", 32}}) {
    root["model"]["vocab"][token] = id;
  }
  root["model"]["vocab"]["\u00AA"] = 33;
  const Tokenizer tokenizer = from(root);
  // "1", e + acute accent (becomes U+00E9, which takes two byte tokens), "2", U+00AA.
  const auto encoding = tokenizer.encode_with_spans("1e\u03012\u00AA", AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
  EXPECT_THAT(encoding.value().ids, ElementsAre(1, 30, 31, 2, 32, 33));
  EXPECT_THAT(encoding.value().spans, ElementsAre(TextSpan{0, 1}, TextSpan{1, 4}, TextSpan{1, 4},
                                                  TextSpan{4, 5}, TextSpan{5, 7}, TextSpan{5, 7}));
}

// Normalization changes the first section of a text and not the second one.
TEST(Tokenizer, SpansOfASectionDoNotDependOnTheSectionBefore) {
  Json root = Json::parse(kHandWritten);
  root["normalizer"] = {{"type", "NFC"}};
  root["model"]["vocab"]["\u00C3"] = 30;
  root["model"]["vocab"]["\u00A9"] = 31;
  const Tokenizer tokenizer = from(root);
  const auto encoding =
      tokenizer.encode_with_spans("e\u0301<|end|>123<|end|>e\u0301", AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
  EXPECT_THAT(encoding.value().ids, ElementsAre(30, 31, 16, 1, 2, 3, 16, 30, 31));
  EXPECT_THAT(encoding.value().spans,
              ElementsAre(TextSpan{0, 3}, TextSpan{0, 3}, TextSpan{3, 10}, TextSpan{10, 11},
                          TextSpan{11, 12}, TextSpan{12, 13}, TextSpan{13, 20}, TextSpan{20, 23},
                          TextSpan{20, 23}));
}

TEST(Tokenizer, RunsOfCombiningMarksAreBounded) {
  Json root = letters();
  root["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = from(root);
  std::string text = "ab";
  for (int i = 0; i < 1100; ++i) text += "\u0301\u0316";
  const auto ids = tokenizer.encode(text, AddSpecialTokens::kNo);
  EXPECT_EQ(ids.status().message(),
            "more than 1024 combining marks in a row at byte 2 of the piece that begins at byte 0");
}

TEST(Tokenizer, StrippingRemovesUnicodeWhiteSpace) {
  Json root = letters();
  root["added_tokens"] = Json::array({{{"id", 40}, {"content", "<l>"}, {"lstrip", true}},
                                      {{"id", 41}, {"content", "<r>"}, {"rstrip", true}},
                                      {{"id", 42}, {"content", "w"}, {"single_word", true}}});
  for (auto& token : root["added_tokens"]) token["normalized"] = false;
  root["model"]["vocab"].erase("w");
  const Tokenizer tokenizer = from(root);
  EXPECT_THAT(encode(tokenizer, "a \u3000\n<l>b<r>\u2028 c"), ElementsAre(0, 40, 1, 41, 2));
  EXPECT_THAT(encode(tokenizer, "<r> <l>"), ElementsAre(41, 40)) << "the space is stripped once";
  EXPECT_THAT(encode(tokenizer, "w w"), ElementsAre(42, 26, 42));
  EXPECT_FALSE(tokenizer.encode("wa", AddSpecialTokens::kNo).ok()) << "no match, and no token w";
}

// Added tokens are found in the raw text, or in the normalized text if they are `normalized`.
TEST(Tokenizer, SpansOfTokensThatStripIncludeTheWhiteSpace) {
  for (const bool normalized : {false, true}) {
    Json root = letters();
    root["normalizer"] = {{"type", "NFC"}};
    root["model"]["vocab"].update({{"\u00C3", 30}, {"\u00A9", 31}});
    root["added_tokens"] = Json::array({{{"id", 40}, {"content", "<l>"}, {"lstrip", true}},
                                        {{"id", 41}, {"content", "<r>"}, {"rstrip", true}}});
    for (auto& token : root["added_tokens"]) token["normalized"] = normalized;
    const Tokenizer tokenizer = from(root);
    const auto spans = [&tokenizer](std::string_view text) {
      return tokenizer.encode_with_spans(text, AddSpecialTokens::kNo).value().spans;
    };
    EXPECT_THAT(spans("a \u3000\n<l>b<r>\u2028 c"),
                ElementsAre(TextSpan{0, 1}, TextSpan{1, 9}, TextSpan{9, 10}, TextSpan{10, 17},
                            TextSpan{17, 18}));
    EXPECT_THAT(spans("<r> <l>"), ElementsAre(TextSpan{0, 4}, TextSpan{4, 7}));
    EXPECT_THAT(spans(" <r><l> a"), ElementsAre(TextSpan{0, 1}, TextSpan{1, 4}, TextSpan{4, 7},
                                                TextSpan{7, 8}, TextSpan{8, 9}));
    EXPECT_THAT(spans("e\u0301 <l>"), ElementsAre(TextSpan{0, 3}, TextSpan{0, 3}, TextSpan{3, 7}));
  }
}

// A file that must be refused: a change to the handwritten file, and the whole message.
struct BadFile {
  const char* pointer;  // JSON pointer to the value to replace
  const char* value;    // nullptr: remove the value
  const char* message;
};

TEST(Tokenizer, RefusesMalformedAndUnsupportedFiles) {
  const std::vector<BadFile> files = {
      {"/model/merges", R"(["1 2"])", R"(model.merges[0]: "12" is not in the vocabulary)"},
      {"/model/merges", R"(["1 x"])", R"(model.merges[0]: "x" is not in the vocabulary)"},
      {"/model/merges", R"([["1","2","3"]])",
       R"(model.merges[0]: must be two tokens, not ["1","2","3"])"},
      {"/model/merges", R"(["1"])", R"(model.merges[0]: must be two tokens, not "1")"},
      {"/model/merges", R"(["1 2 3"])", R"(model.merges[0]: must be two tokens, not "1 2 3")"},
      {"/model/merges", R"([" 2"])", R"(model.merges[0]: must be two tokens, not " 2")"},
      {"/model/merges", R"([7])", R"(model.merges[0]: must be two tokens, not 7)"},
      {"/model/merges", R"("1 2")", R"(model.merges: must be a list, not "1 2")"},
      {"/model/merges", nullptr, "model.merges: missing"},
      {"/model/vocab/5", "4", R"(model.vocab["5"]: id 4 already belongs to "4")"},
      {"/model/vocab/5", "-1", R"(model.vocab["5"]: id -1 is outside [0, 4194304))"},
      {"/model/vocab/5", "4194304", R"(model.vocab["5"]: id 4194304 is outside [0, 4194304))"},
      {"/model/vocab/5", "18446744073709551615",
       R"(model.vocab["5"]: id 18446744073709551615 is outside [0, 4194304))"},
      {"/model/vocab/5", "5.5", R"(model.vocab["5"]: must be an integer, not 5.5)"},
      {"/model/vocab", "[]", "model.vocab: must be an object"},
      {"/model", "[]", "model: must be an object, not []"},
      {"/model/type", R"("Unigram")",
       R"(model.type: "Unigram" (as of T5 and XLM-R) is not supported; use a model whose tokenizer is BPE)"},
      {"/model/type", R"("WordPiece")", R"(model.type: "WordPiece" is not supported)"},
      {"/model/byte_fallback", "true",
       "model.byte_fallback: true with a ByteLevel pre-tokenizer is not supported"},
      {"/model/dropout", "0.1", "model.dropout: 0.1 is not supported"},
      {"/model/unk_token", R"("?")",
       "model.unk_token: an unknown token with a vocabulary that lacks byte 0 is not supported"},
      {"/model/continuing_subword_prefix", R"("##")",
       R"(model.continuing_subword_prefix: "##" is not supported)"},
      {"/model/ignore_merges", "1", "model.ignore_merges: must be true or false, not 1"},
      {"/model/special", "1", "model.special: this field is not supported"},
      {"/added_tokens/0/id", "17", R"(added_tokens[1].id: id 17 already belongs to "<|end|>")"},
      {"/added_tokens/1/content", R"("<|end|>")",
       R"(added_tokens[1].content: "<|end|>" appears twice)"},
      {"/added_tokens/1/content", R"("3")",
       R"(added_tokens[1].id: "3" has id 17 here and 3 in model.vocab)"},
      {"/added_tokens/1/content", R"("")",
       "added_tokens[1].content: a token of 0 bytes is not supported"},
      {"/added_tokens/1/id", R"("a")", R"(added_tokens[1].id: must be an integer, not "a")"},
      {"/added_tokens/1/special", "0", "added_tokens[1].special: must be true or false, not 0"},
      {"/normalizer", R"({"type":"Nmt"})", R"(normalizer.type: "Nmt" is not supported)"},
      {"/pre_tokenizer", nullptr,
       R"(decoder.type: "ByteLevel" without a ByteLevel pre-tokenizer is not supported)"},
      {"/pre_tokenizer/type", R"("Metaspace")",
       "pre_tokenizer.use_regex: this field is not supported"},
      {"/pre_tokenizer/type", R"("Digits")", R"(pre_tokenizer.type: "Digits" is not supported)"},
      {"/pre_tokenizer/type", R"("Sequence")",
       "pre_tokenizer.add_prefix_space: this field is not supported"},
      {"/pre_tokenizer", R"({"type":"Sequence","pretokenizers":[]})",
       "pre_tokenizer.pretokenizers: a list of 0 pre-tokenizers is not supported"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"ByteLevel"}]})",
       R"(pre_tokenizer.pretokenizers[0].type: "Digits" in this position is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Removed","pattern":{"Regex":"a"}},{"type":"ByteLevel"}]})",
       R"(pre_tokenizer.pretokenizers[0].behavior: "Removed" is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"String":"a"}},{"type":"ByteLevel"}]})",
       R"(pre_tokenizer.pretokenizers[0].behavior: "Isolated" of a String is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}},{"type":"ByteLevel","add_prefix_space":false}]})",
       "pre_tokenizer: regular expression: missing closing parenthesis (offset 2 of \"(a\")"},
      {"/post_processor", R"({"type":"BertProcessing"})",
       R"(post_processor.type: "BertProcessing" is not supported)"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[],"special_tokens":{}})",
       "post_processor.single: a template with 0 sequences is not supported"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}],"special_tokens":{}})",
       "post_processor.special_tokens.<s>: missing"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{"ids":[99]}}})",
       "post_processor.special_tokens.s.ids[0]: no token has id 99"},
      {"/decoder", "null", "decoder: missing"},
      {"/decoder/type", R"("WordPiece")",
       R"(decoder.type: "WordPiece" in this position is not supported)"},
      {"/truncation", "\"right\"", "truncation: must be an object, not \"right\""},
      {"/padding", "1", "padding: must be an object, not 1"},
      {"/extra", "1", "extra: this field is not supported"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a"},"invert":true},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].invert: true is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a"},"invert":0},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].invert: must be true or false, not 0)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a"}},{"type":"ByteLevel"}]})",
       R"(pre_tokenizer.pretokenizers[1].add_prefix_space: true after a Split is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Glob":"a"}},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].pattern.Glob: this field is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{}},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].pattern.Regex: missing)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":"a"},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].pattern: must be an object, not "a")"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"}},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].behavior: missing)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated"},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].pattern: missing)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a"},"x":1},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].x: this field is not supported)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[5,{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0]: must be an object, not 5)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].type: missing)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers[0].type: "ByteLevel" in this position is not supported)"},
      {"/pre_tokenizer", R"({"type":"Sequence"})", R"(pre_tokenizer.pretokenizers: missing)"},
      {"/pre_tokenizer",
       R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false},{"type":"ByteLevel","add_prefix_space":false}]})",
       R"(pre_tokenizer.pretokenizers: a list of 9 pre-tokenizers is not supported)"},
      {"/pre_tokenizer/use_regex", R"(1)",
       R"(pre_tokenizer.use_regex: must be true or false, not 1)"},
      {"/pre_tokenizer/add_prefix_space", R"("")",
       R"(pre_tokenizer.add_prefix_space: must be true or false, not "")"},
      {"/pre_tokenizer", R"("ByteLevel")", R"(pre_tokenizer: must be an object, not "ByteLevel")"},
      {"/added_tokens", R"({})", R"(added_tokens: must be a list, not {})"},
      {"/added_tokens/1", R"(5)", R"(added_tokens[1]: must be an object, not 5)"},
      {"/added_tokens/1/content", R"(5)", R"(added_tokens[1].content: must be a string, not 5)"},
      {"/added_tokens/1/content", nullptr, R"(added_tokens[1].content: missing)"},
      {"/added_tokens/1/id", nullptr, R"(added_tokens[1].id: missing)"},
      {"/added_tokens/1/id", R"(-1)", R"(added_tokens[1].id: id -1 is outside [0, 4194304))"},
      {"/added_tokens/1/single_word", R"(0)",
       R"(added_tokens[1].single_word: must be true or false, not 0)"},
      {"/added_tokens/1/lstrip", R"(0)", R"(added_tokens[1].lstrip: must be true or false, not 0)"},
      {"/added_tokens/1/rstrip", R"("")",
       R"(added_tokens[1].rstrip: must be true or false, not "")"},
      {"/added_tokens/1/normalized", R"(0)",
       R"(added_tokens[1].normalized: must be true or false, not 0)"},
      {"/added_tokens/1/x", R"(0)", R"(added_tokens[1].x: this field is not supported)"},
      {"/post_processor", R"({"type":"Sequence"})", R"(post_processor.processors: missing)"},
      {"/post_processor", R"({"type":"Sequence","processors":[],"x":1})",
       R"(post_processor.x: this field is not supported)"},
      {"/post_processor", R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"X"}]})",
       R"(post_processor.processors[1].type: "X" is not supported)"},
      {"/post_processor",
       R"({"type":"Sequence","processors":[{"type":"TemplateProcessing","single":[{"Sequence":{}}]},{"type":"TemplateProcessing","single":[{"Sequence":{}}]}]})",
       R"(post_processor.processors[1]: a second TemplateProcessing is not supported)"},
      {"/post_processor", R"({"type":"ByteLevel","x":1})",
       R"(post_processor.x: this field is not supported)"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"Sequence":{}},{"Sequence":{}}]})",
       R"(post_processor.single: a template with 2 sequences is not supported)"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[{"Other":{}}]})",
       R"(post_processor.single[0].Other: this field is not supported)"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[{"Sequence":{}},{}]})",
       R"(post_processor.single[1].SpecialToken: missing)"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[{"SpecialToken":{}}]})",
       R"(post_processor.single[0].SpecialToken.id: missing)"},
      {"/post_processor", R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}]})",
       R"(post_processor.special_tokens: missing)"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{}}})",
       R"(post_processor.special_tokens.s.ids: missing)"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{"ids":[1,"x"]}}})",
       R"(post_processor.special_tokens.s.ids[1]: must be an integer, not "x")"},
      {"/post_processor",
       R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}}],"special_tokens":{"s":{"ids":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}}})",
       R"(post_processor.special_tokens.s.ids[16]: more than 16 tokens is not supported)"},
      {"/post_processor", R"({"type":"TemplateProcessing","x":1})",
       R"(post_processor.x: this field is not supported)"},
      {"/decoder/type", nullptr, R"(decoder.type: missing)"},
      {"/decoder/use_regex", R"(1)", R"(decoder.use_regex: must be true or false, not 1)"},
      {"/decoder/x", R"(1)", R"(decoder.x: this field is not supported)"},
      {"/model/vocab", nullptr, R"(model.vocab: missing)"},
      {"/model/type", R"(1)", R"(model.type: must be a string, not 1)"},
      {"/model/end_of_word_suffix", R"("</w>")",
       R"(model.end_of_word_suffix: "</w>" is not supported)"},
      {"/model/end_of_word_suffix", R"(1)", R"(model.end_of_word_suffix: 1 is not supported)"},
      {"/model/merges", R"([["1",2]])", R"(model.merges[0]: must be two tokens, not ["1",2])"},
      {"/model/merges", R"(["1 "])", R"(model.merges[0]: must be two tokens, not "1 ")"},
      {"/model/merges", R"([["","1"]])", R"(model.merges[0]: must be two tokens, not ["","1"])"},
  };
  for (const BadFile& file : files) {
    Json root = Json::parse(kHandWritten);
    const Json::json_pointer pointer(file.pointer);
    if (file.value == nullptr) {
      root.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      root[pointer] = Json::parse(file.value);
    }
    const auto result = Tokenizer::from_json(root.dump());
    ASSERT_FALSE(result.ok()) << file.pointer << " " << file.message;
    EXPECT_EQ(result.status().message(), file.message) << file.pointer;
  }
}

TEST(Tokenizer, TheLimitsOfAFileAreAccepted) {
  Json root = Json::parse(kHandWritten);
  root["model"]["vocab"]["12"] = 4194303;
  root["model"]["merges"] = {"1 2"};
  root["added_tokens"][0]["content"] = std::string(512, '<');
  root["post_processor"] = Json::parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"s"}},{"Sequence":{}}]})");
  root["post_processor"]["special_tokens"]["s"]["ids"] = Ids(16, 7);
  const Tokenizer tokenizer = from(root);
  Ids expected(16, 7);
  expected.insert(expected.end(), {4194303, 16});
  EXPECT_EQ(encode(tokenizer, "12" + std::string(512, '<')), expected);
  root["model"]["merges"] = {"1 2", "1 2"};
  EXPECT_EQ(Tokenizer::from_json(root.dump()).status().message(), "model.merges[1]: appears twice");
  root["model"]["merges"] = Json::array();
  root["added_tokens"][0]["content"] = std::string(513, '<');
  EXPECT_EQ(Tokenizer::from_json(root.dump()).status().message(),
            "added_tokens[0].content: a token of 513 bytes is not supported");
}

// Most files leave out what is optional.
TEST(Tokenizer, AbsentAndNullFieldsHaveTheirDefaults) {
  for (const bool is_null : {false, true}) {
    Json root = Json::parse(kHandWritten);
    for (const char* key : {"added_tokens", "normalizer", "post_processor"}) {
      root.erase(key);
      if (is_null) root[key] = nullptr;
    }
    for (const char* key : {"type", "byte_fallback", "ignore_merges", "fuse_unk", "unk_token",
                            "dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      root["model"].erase(key);
      if (is_null && key != std::string("type")) root["model"][key] = nullptr;
    }
    const auto tokenizer = Tokenizer::from_json(root.dump());
    ASSERT_TRUE(tokenizer.ok()) << is_null << tokenizer.status().to_string();
    EXPECT_THAT(encode(tokenizer.value(), "1 2"), ElementsAre(1, 13, 2));
    EXPECT_EQ(tokenizer.value().vocabulary_size(), 16);
  }
  Json root = letters();
  root["pre_tokenizer"] = {{"type", "ByteLevel"}};  // add_prefix_space and use_regex
  root["model"]["merges"] = {"a b"};
  root["model"]["vocab"]["ab"] = 50;
  EXPECT_THAT(encode(from(root), "ab"), ElementsAre(26, 50)) << "a space is added";
  root["pre_tokenizer"]["add_prefix_space"] = false;
  root["model"]["merges"] = {"a \u0120"};
  root["model"]["vocab"]["a\u0120"] = 51;
  EXPECT_THAT(encode(from(root), "a b"), ElementsAre(0, 26, 1)) << "cut before the space";
  root["pre_tokenizer"]["use_regex"] = false;
  EXPECT_THAT(encode(from(root), "a b"), ElementsAre(51, 1)) << "not cut";
  // An added token that is not special is found in the normalized text.
  root["normalizer"] = {{"type", "NFKC"}};
  root["added_tokens"] = Json::parse(R"([{"id": 60, "content": "x1"}])");
  EXPECT_THAT(encode(from(root), "x\u00B9"), ElementsAre(60));
  root["added_tokens"][0]["special"] = true;
  EXPECT_FALSE(from(root).encode("x\u00B9", AddSpecialTokens::kNo).ok());
}

// Files of fine-tuned models have these fields. They concern batches, not the ids of a text.
TEST(Tokenizer, PaddingAndTruncationChangeNoIds) {
  Json root = Json::parse(kHandWritten);
  const std::string text = "12<|end|>3 12 3";
  const auto plain = Tokenizer::from_json(root.dump()).value().encode(text, AddSpecialTokens::kYes);
  root["truncation"] =
      Json::parse(R"({"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0})");
  root["padding"] = Json::parse(
      R"({"strategy":{"Fixed":64},"direction":"Left","pad_id":0,"pad_type_id":0,"pad_token":"x"})");
  const auto tokenizer = Tokenizer::from_json(root.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ(tokenizer.value().encode(text, AddSpecialTokens::kYes).value(), plain.value());
}

TEST(Tokenizer, RefusesInvalidOrDeeplyNestedJson) {
  const auto message = [](std::string_view text) {
    return Tokenizer::from_json(text).status().message();
  };
  EXPECT_EQ(message(""), "not JSON at byte 1");
  EXPECT_EQ(message("{\"a\": }"), "not JSON at byte 7");
  EXPECT_EQ(message("{\"a\": 1, \"a\": 2}"), "the name \"a\" occurs twice in one object");
  EXPECT_EQ(message("[]"), "must be an object, not []");
  EXPECT_EQ(message(std::string(1'000'000, '[')), "JSON nested deeper than 64");
  EXPECT_EQ(message("\xFF"), "not JSON at byte 1");
}

// Writes tokenizer files into a folder of their own.
class TokenizerFiles : public ::testing::Test {
protected:
  TokenizerFiles() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tokenizer_files_" + std::string(info->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    write("tokenizer.json", kHandWritten);
  }
  ~TokenizerFiles() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // Returns the message of the failure to load, without the folder.
  [[nodiscard]] std::string message() const {
    const std::string text = Tokenizer::load(folder_).status().message();
    EXPECT_EQ(text.rfind(folder_.string() + "/", 0), 0U) << text;
    return text.substr(std::min(text.size(), folder_.string().size() + 1));
  }

  std::filesystem::path folder_;
};

TEST_F(TokenizerFiles, TokenizerJsonAloneIsEnough) {
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer.value().eos_id(), std::nullopt);
  EXPECT_TRUE(tokenizer.value().config().chat_templates.empty());
}

TEST_F(TokenizerFiles, ReadsTokensAndTemplates) {
  write("tokenizer_config.json",
        R"({"eos_token": {"content": "<|end|>"}, "bos_token": null, "model_max_length": 1e30,
            "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]})");
  write("special_tokens_map.json", R"({"eos_token": "<|user|>", "pad_token": "?"})");
  auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer.value().eos_id(), 16) << "tokenizer_config.json takes precedence";
  EXPECT_EQ(tokenizer.value().pad_id(), 15);
  EXPECT_EQ(tokenizer.value().bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.value().config().chat_templates.at("default"), "A");
  EXPECT_EQ(tokenizer.value().config().chat_templates.at("tool_use"), "B");
  EXPECT_EQ(tokenizer.value().digest(),
            Tokenizer::from_json(kHandWritten, tokenizer.value().config()).value().digest());
  write("chat_template.jinja", "C");
  tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(tokenizer.value().config().chat_templates.at("default"), "C");
}

TEST_F(TokenizerFiles, NullFieldsAreAbsent) {
  write("tokenizer_config.json",
        R"({"eos_token": null, "pad_token": {"content": "?", "lstrip": false},
            "chat_template": null, "added_tokens_decoder": null})");
  write("special_tokens_map.json", R"({"eos_token": {"content": "<|end|>"}, "bos_token": "="})");
  const auto tokenizer = Tokenizer::load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ(tokenizer.value().bos_id(), 11);
  EXPECT_EQ(tokenizer.value().eos_id(), 16);
  EXPECT_EQ(tokenizer.value().pad_id(), 15);
  EXPECT_TRUE(tokenizer.value().config().chat_templates.empty());
  EXPECT_TRUE(tokenizer.value().config().declared_tokens.empty());
  write("chat_template.jinja", std::string(std::size_t{1} << 20U, 'a'));
  EXPECT_EQ(load_tokenizer_config(folder_).value().chat_templates.at("default").size(), 1U << 20U);
}

TEST_F(TokenizerFiles, RefusesBadCompanionFiles) {
  const std::vector<std::pair<const char*, const char*>> files = {
      {R"({"eos_token": "</s>"})",
       R"(tokenizer_config.json: eos_token: "</s>" is not a token of tokenizer.json)"},
      {R"({"eos_token": 5})", "tokenizer_config.json: eos_token: must be a token"},
      {R"({"chat_template": 5})",
       "tokenizer_config.json: chat_template: must be a string or a list"},
      {R"({"chat_template": [{"name": "a"}]})",
       "tokenizer_config.json: chat_template[0].template: must be a string"},
      {R"({"added_tokens_decoder": {"16": {"content": "<|user|>"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["16"]: "<|user|>" does not have this id in tokenizer.json)"},
      {R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["x"]: must be a token id)"},
      {R"({"added_tokens_decoder": {"16x": {"content": "a"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["16x"]: must be a token id)"},
      {R"({"added_tokens_decoder": {"-1": {"content": "a"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["-1"]: must be a token id)"},
      {R"({"added_tokens_decoder": {"99999999999": {"content": "a"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["99999999999"]: must be a token id)"},
      {R"({"added_tokens_decoder": []})",
       "tokenizer_config.json: added_tokens_decoder: must be an object"},
      {R"({"added_tokens_decoder": {"16": {}}})",
       R"(tokenizer_config.json: added_tokens_decoder["16"].content: must be a string)"},
      {R"({"added_tokens_decoder": {"16": {"content": 5}}})",
       R"(tokenizer_config.json: added_tokens_decoder["16"].content: must be a string)"},
      {R"({"added_tokens_decoder": {"19": {"content": "<x>"}}})",
       R"(tokenizer_config.json: added_tokens_decoder["19"]: "<x>" does not have this id in tokenizer.json)"},
      {R"({"bos_token": "<s>", "eos_token": "<|end|>"})",
       R"(tokenizer_config.json: bos_token: "<s>" is not a token of tokenizer.json)"},
      {R"({"pad_token": {"content": "<p>"}})",
       R"(tokenizer_config.json: pad_token: "<p>" is not a token of tokenizer.json)"},
      {R"({"bos_token": {"content": null}})", "tokenizer_config.json: bos_token: must be a token"},
      {R"({"pad_token": false})", "tokenizer_config.json: pad_token: must be a token"},
      {R"({"chat_template": [{"template": "a"}]})",
       "tokenizer_config.json: chat_template[0].name: must be a string"},
      {R"({"chat_template": [{"name": "a", "template": "b"}, 5]})",
       "tokenizer_config.json: chat_template[1].name: must be a string"},
      {R"({"chat_template": [{"name": "a", "template": "b"}, {"name": "a", "template": "b"}]})",
       R"(tokenizer_config.json: chat_template[1].name: "a" appears twice)"},
      {"{", "tokenizer_config.json: not JSON at byte 2"},
      {"[]", "tokenizer_config.json: must be an object"},
  };
  for (const auto& [text, expected] : files) {
    write("tokenizer_config.json", text);
    EXPECT_EQ(message(), expected);
  }
  write("tokenizer_config.json", "{}");
  write("special_tokens_map.json", R"({"eos_token": []})");
  EXPECT_EQ(message(), "special_tokens_map.json: eos_token: must be a token");
  write("special_tokens_map.json", "1");
  EXPECT_EQ(message(), "special_tokens_map.json: must be an object");
  std::filesystem::remove(folder_ / "special_tokens_map.json");
  write("chat_template.jinja", "a\xFF");
  EXPECT_EQ(message(), "chat_template.jinja: invalid UTF-8 at byte 1");
  write("chat_template.jinja", std::string((std::size_t{1} << 20U) + 1, 'a'));
  EXPECT_EQ(message(), "chat_template.jinja: larger than 1048576 bytes");
  EXPECT_EQ(Tokenizer::load(folder_).status().code(), Errc::kInvalidArgument);
  std::filesystem::remove(folder_ / "chat_template.jinja");
  write("tokenizer.json", "{}");
  EXPECT_EQ(message(), "tokenizer.json: model: missing");
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_EQ(message(), "tokenizer.json: no such file");
  write("tokenizer.model", "x");
  EXPECT_EQ(message(),
            "tokenizer.json: no such file; tokenizer.model alone is not supported; convert it with "
            "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)");
  std::filesystem::create_directory(folder_ / "tokenizer.json");
  EXPECT_EQ(message(), "tokenizer.json: not a regular file");
}

TEST_F(TokenizerFiles, DoesNotWaitForTheWriterOfAPipe) {
  for (const char* name : {"chat_template.jinja", "special_tokens_map.json",
                           "tokenizer_config.json", "tokenizer.json"}) {
    std::filesystem::remove(folder_ / name);
    ASSERT_EQ(::mkfifo((folder_ / name).c_str(), 0600), 0);
    EXPECT_EQ(message(), std::string(name) + ": not a regular file");
  }
}

TEST(IncrementalDecoder, HoldsBackOnlyTheIncompleteCharacter) {
  Json root = letters();
  root["model"]["vocab"].update({{"a\u00C3", 50}, {"\u00A9b", 51}, {"\u0122", 52}});
  const Tokenizer tokenizer = from(root);
  IncrementalDecoder decoder(tokenizer, SpecialTokenText::kKeep);
  EXPECT_EQ(decoder.push(50), "a");
  EXPECT_EQ(decoder.push(51), "\u00E9b");
  EXPECT_EQ(decoder.push(50), "a");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.push(0), "a") << "finish resets the decoder";
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace tidemill::engines
