// SPDX-License-Identifier: Apache-2.0
// Handwritten tokenizers in the style of SentencePiece: spans, long texts, streams, and files that
// must be refused.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/tokenizer/byte_alphabet.hpp"
#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines {
namespace {

using ::testing::ElementsAre;

// Returns a file like Llama 2's: the unknown token, all bytes (byte b has the id 1 + b), the space
// (257), the letters a to e (258 to 262), and merges of spaces and letters.
nlohmann::json sentencepiece_file() {
  nlohmann::json vocabulary = {{"<unk>", 0}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[byte_token(static_cast<unsigned char>(byte))] = 1 + byte;
  }
  int id = 257;
  for (const char* token :
       {"\u2581", "a", "b", "c", "d", "e", "\u2581a", "\u2581\u2581", "ab", "\u2581ab"}) {
    vocabulary[token] = id++;
  }
  nlohmann::json root = nlohmann::json::parse(R"({
    "added_tokens": [{"id": 300, "content": "<s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null,
    "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
              "merges": ["\u2581 a", "\u2581 \u2581", "a b", "\u2581a b"]}
  })");
  root["model"]["vocab"] = std::move(vocabulary);
  return root;
}

Tokenizer made_from(const nlohmann::json& root) {
  auto tokenizer = Tokenizer::from_json(root.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

TEST(SentencePiece, SpansCoverTheTextButNotTheAddedSpace) {
  const Tokenizer tokenizer = made_from(sentencepiece_file());
  const auto encoding = tokenizer.encode_with_spans("\u00E9 ab  a<s>c", AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
  EXPECT_THAT(encoding.value().ids,
              ElementsAre(257, 1 + 0xC3, 1 + 0xA9, 266, 257, 263, 300, 257, 260));
  EXPECT_THAT(
      encoding.value().spans,
      ElementsAre(TextSpan{0, 0}, TextSpan{0, 2}, TextSpan{0, 2}, TextSpan{2, 5}, TextSpan{5, 6},
                  TextSpan{6, 8}, TextSpan{8, 11}, TextSpan{11, 11}, TextSpan{11, 12}));
  EXPECT_EQ(tokenizer.token_bytes(266), " ab");
  EXPECT_EQ(tokenizer.token_bytes(1 + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer.find("\u2581ab"), 266);
}

// The spans of all characters of a normalized text lead back to it, also if characters of
// neighboring grapheme clusters combine.
TEST(SentencePiece, SpansFollowCompatibilityMappings) {
  nlohmann::json root = sentencepiece_file();
  root["normalizer"]["normalizers"].insert(root["normalizer"]["normalizers"].begin(),
                                           nlohmann::json{{"type", "NFKC"}});
  root["model"]["vocab"]["\uAC01"] = 400;  // a Hangul syllable of three letters
  const Tokenizer tokenizer = made_from(root);
  const auto encoding =
      tokenizer.encode_with_spans("a\uFFA1\uFFC2\uFFA1b \u24D0\u24D1", AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok()) << encoding.status().to_string();
  EXPECT_THAT(encoding.value().ids.back(), 266) << "circled letters";
  EXPECT_EQ(encoding.value().spans.back(), (TextSpan{11, 18}));
  EXPECT_EQ(encoding.value().spans.front(), (TextSpan{0, 1}));
  for (const TextSpan& span : encoding.value().spans) {
    EXPECT_LE(span.end, 18U);
  }
}

// Without a pre-tokenizer the whole text is one piece. Quadratic merging would exceed the test's
// time limit.
TEST(SentencePiece, AMegabyteWithoutPiecesTakesNearLinearTime) {
  const Tokenizer tokenizer = made_from(sentencepiece_file());
  std::string text = "ab";
  while (text.size() < (std::size_t{1} << 20U)) {
    text += " ab \u00E9 a  cd";
  }
  const auto ids = tokenizer.encode(text, AddSpecialTokens::kNo);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(tokenizer.decode(ids.value(), SpecialTokenText::kKeep), text);
  const std::string spaces(std::size_t{1} << 20U, ' ');
  const auto pairs = tokenizer.encode(spaces, AddSpecialTokens::kNo);
  ASSERT_TRUE(pairs.ok()) << pairs.status().to_string();
  EXPECT_EQ(pairs.value().size(), spaces.size() / 2 + 1);
  EXPECT_EQ(tokenizer.decode(pairs.value(), SpecialTokenText::kKeep), spaces);
}

TEST(SentencePiece, TextThatNormalizationMakesTooLongIsRefused) {
  nlohmann::json root = sentencepiece_file();
  root["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "bcdebcdebcdebcde"}};
  const Tokenizer tokenizer = made_from(root);
  const std::string text(std::size_t{4} << 20U, 'a');
  EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kNo).status().message(),
            "normalization makes more than 33554432 bytes of the piece that begins at byte 0");
}

TEST(SentencePiece, FailuresNameTheByteOfTheOriginalText) {
  nlohmann::json root = sentencepiece_file();
  root["model"]["byte_fallback"] = false;
  root["model"].erase("unk_token");
  const Tokenizer tokenizer = made_from(root);
  EXPECT_EQ(tokenizer.encode("a a<s>a z", AddSpecialTokens::kNo).status().message(),
            "no token represents the character \"z\" (U+007A) at offset 7 of the piece that begins "
            "at byte 6");
}

TEST(SentencePiece, AStreamHoldsBackRunsOfBytes) {
  const Tokenizer tokenizer = made_from(sentencepiece_file());
  IncrementalDecoder decoder(tokenizer, SpecialTokenText::kDrop);
  EXPECT_EQ(decoder.push(257), "") << "stripped";
  EXPECT_EQ(decoder.push(263), " a");
  EXPECT_EQ(decoder.push(1 + 0xC3), "");
  EXPECT_EQ(decoder.push(300), "") << "a dropped token does not end the run";
  EXPECT_EQ(decoder.push(1 + 0xA9), "");
  EXPECT_EQ(decoder.push(258),
            "\u00E9"
            "a");
  EXPECT_EQ(decoder.push(1 + 0xC3), "");
  EXPECT_EQ(decoder.push(1 + 0xA9), "");
  EXPECT_EQ(decoder.push(1 + 0xFF), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD\uFFFD\uFFFD") << "one for each byte of a run that is invalid";
  EXPECT_EQ(decoder.push(1 + ' '), "");
  EXPECT_EQ(decoder.push(263), " a") << "only the first space is stripped";
  EXPECT_EQ(decoder.finish(), "");
}

// Halfwidth sound marks become combining marks, so they count toward the limit of a run.
TEST(SentencePiece, RunsOfMappedMarksAreBounded) {
  nlohmann::json root = sentencepiece_file();
  root["normalizer"] = {{"type", "NFKD"}};
  const Tokenizer tokenizer = made_from(root);
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += "\u0301\uFF9E";
  }
  EXPECT_EQ(tokenizer.encode(text, AddSpecialTokens::kNo).status().message(),
            "more than 1024 combining marks in a row at byte 0 of the piece that begins at byte 0");
}

// A decoder of type Metaspace gives the first token without the blank that encoding adds.
TEST(SentencePiece, AMetaspaceDecoderDropsTheFirstBlank) {
  struct Case {
    const char* decoder;
    const char* first;   // text of the tokens "▁a", "b" and "▁a"
    const char* second;  // of "b" and "▁a"
  };
  const std::vector<Case> cases = {
      {R"({"type":"Metaspace","replacement":"\u2581"})", "ab a", "b a"},
      {R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first"})", "ab a", "b a"},
      {R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never"})", " ab a", "b a"},
      {R"({"type":"Metaspace","replacement":"\u2581","add_prefix_space":false,
           "prepend_scheme":"never"})",
       " ab a", "b a"},
      {R"({"type":"Sequence","decoders":[{"type":"Metaspace","replacement":"\u2581"},
           {"type":"Fuse"}]})",
       "ab a", "b a"},
  };
  for (const Case& c : cases) {
    nlohmann::json root = sentencepiece_file();
    root["decoder"] = nlohmann::json::parse(c.decoder);
    const Tokenizer tokenizer = made_from(root);
    EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{263, 259, 263}, SpecialTokenText::kKeep),
              c.first)
        << c.decoder;
    EXPECT_EQ(tokenizer.decode(std::vector<std::int32_t>{259, 263}, SpecialTokenText::kKeep),
              c.second)
        << c.decoder;
  }
}

// A file that must be refused: a change to the handwritten file, and the whole message.
struct RefusedFile {
  const char* pointer;  // JSON pointer to the value to replace
  const char* value;    // nullptr: remove the value
  const char* message;
};

constexpr RefusedFile kRefusedFiles[] = {
    {"/model/vocab/<0xE5>", nullptr, R"(model.byte_fallback: the vocabulary lacks "<0xE5>")"},
    {"/model/unk_token", R"("<none>")", R"(model.unk_token: "<none>" is not in the vocabulary)"},
    {"/model/unk_token", "7", "model.unk_token: must be a string, not 7"},
    {"/model/fuse_unk", "1", "model.fuse_unk: must be true or false, not 1"},
    {"/model/byte_fallback", "1", "model.byte_fallback: must be true or false, not 1"},
    {"/model/type", R"("Unigram")",
     R"(model.type: "Unigram" (as of T5 and XLM-R) is not supported; use a model whose tokenizer is BPE)"},
    {"/normalizer", R"({"type":"Precompiled","precompiled_charsmap":""})",
     R"(normalizer.type: "Precompiled" is not supported)"},
    {"/normalizer/normalizers/1/type", R"("Lowercase")",
     R"(normalizer.normalizers[1].type: "Lowercase" is not supported)"},
    {"/normalizer/normalizers/0/prepend", R"("")",
     "normalizer.normalizers[0].prepend: a text of 0 bytes is not supported"},
    {"/normalizer/normalizers/1/pattern", R"({"Regex":" +"})",
     "normalizer.normalizers[1].pattern.Regex: this field is not supported"},
    {"/normalizer/normalizers/1/content", R"("12345678901234567")",
     "normalizer.normalizers[1].content: a text of 17 bytes is not supported"},
    {"/normalizer", R"({"type":"Strip","strip_left":true})", "normalizer.strip_right: missing"},
    {"/normalizer", R"({"type":"NFKC","x":1})", "normalizer.x: this field is not supported"},
    {"/pre_tokenizer", R"({"type":"Metaspace","replacement":"ab"})",
     R"(pre_tokenizer.replacement: must be one character, not "ab")"},
    {"/pre_tokenizer", R"({"type":"Metaspace","replacement":"_","prepend_scheme":"last"})",
     R"(pre_tokenizer.prepend_scheme: "last" is not supported)"},
    {"/pre_tokenizer",
     R"({"type":"Metaspace","replacement":"_","add_prefix_space":false,"prepend_scheme":"first"})",
     R"(pre_tokenizer.prepend_scheme: "first" contradicts add_prefix_space, which is false)"},
    {"/pre_tokenizer",
     R"({"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},{"type":"Metaspace","replacement":"_"}]})",
     R"(pre_tokenizer.pretokenizers[0].type: "WhitespaceSplit" in this position is not supported)"},
    {"/pre_tokenizer",
     R"({"type":"Sequence","pretokenizers":[{"type":"Metaspace","replacement":"_"},{"type":"ByteLevel"}]})",
     R"(pre_tokenizer.pretokenizers[1].type: "ByteLevel" in this position is not supported)"},
    {"/decoder", "null", "decoder: missing"},
    {"/decoder", R"({"type":"ByteLevel"})",
     R"(decoder.type: "ByteLevel" without a ByteLevel pre-tokenizer is not supported)"},
    {"/decoder", R"({"type":"Strip","content":" ","start":1,"stop":0})",
     R"(decoder.type: "Strip" in this position is not supported)"},
    {"/decoder/decoders/3/stop", "1", "decoder.decoders[3].stop: 1 is not supported"},
    {"/decoder/decoders/3/start", "-1",
     "decoder.decoders[3].start: must be a number of characters, not -1"},
    {"/decoder/decoders/3/type", R"("Replace")",
     R"(decoder.decoders[3].type: "Replace" in this position is not supported)"},
    {"/decoder/decoders/0/content", R"("1234")",
     "decoder.decoders[0].content: a text longer than the pattern is not supported"},
    {"/decoder",
     R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"},{"type":"Fuse"}]})",
     R"(decoder.decoders: a list of 17 decoders is not supported)"},
    {"/decoder", R"({"type":"Sequence","decoders":[],"x":1})",
     R"(decoder.x: this field is not supported)"},
    {"/decoder", R"({"type":"Sequence"})", R"(decoder.decoders: missing)"},
    {"/decoder/decoders/0", R"({"type":"Replace","content":" "})",
     R"(decoder.decoders[0].pattern: missing)"},
    {"/decoder/decoders/1/x", R"(1)", R"(decoder.decoders[1].x: this field is not supported)"},
    {"/decoder/decoders/2/x", R"(1)", R"(decoder.decoders[2].x: this field is not supported)"},
    {"/decoder/decoders/3/x", R"(1)", R"(decoder.decoders[3].x: this field is not supported)"},
    {"/decoder/decoders/3/content", R"("ab")",
     R"(decoder.decoders[3].content: must be one character, not "ab")"},
    {"/decoder/decoders/3/start", nullptr, R"(decoder.decoders[3].start: missing)"},
    {"/decoder/decoders/3/stop", R"("0")",
     R"(decoder.decoders[3].stop: must be a number of characters, not "0")"},
    {"/decoder/decoders/1/type", R"("Metaspace")",
     R"(decoder.decoders[1].type: "Metaspace" in this position is not supported)"},
    {"/decoder/decoders/2/type", R"("ByteFallback")",
     R"(decoder.decoders[2].type: "ByteFallback" in this position is not supported)"},
    {"/normalizer/normalizers", R"(5)", R"(normalizer.normalizers: must be a list, not 5)"},
    {"/normalizer/normalizers/0", R"(5)", R"(normalizer.normalizers[0]: must be an object, not 5)"},
    {"/normalizer/normalizers/0/x", R"(5)",
     R"(normalizer.normalizers[0].x: this field is not supported)"},
    {"/normalizer/normalizers/1/content", nullptr, R"(normalizer.normalizers[1].content: missing)"},
    {"/normalizer", R"({"type":"Strip","strip_left":1,"strip_right":true})",
     R"(normalizer.strip_left: must be true or false, not 1)"},
    {"/normalizer", R"({"type":"Strip","strip_left":true,"strip_right":true,"x":1})",
     R"(normalizer.x: this field is not supported)"},
    {"/normalizer",
     R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"},{"type":"NFC"}]})",
     R"(normalizer: more than 16 steps is not supported)"},
    {"/pre_tokenizer", R"({"type":"Metaspace","replacement":"_","split":1})",
     R"(pre_tokenizer.split: must be true or false, not 1)"},
    {"/pre_tokenizer", R"({"type":"Metaspace","replacement":"_","prepend_scheme":1})",
     R"(pre_tokenizer.prepend_scheme: must be a string, not 1)"},
    {"/pre_tokenizer", R"({"type":"Metaspace"})", R"(pre_tokenizer.replacement: missing)"},
    {"/pre_tokenizer", R"({"type":"Metaspace","replacement":""})",
     R"(pre_tokenizer.replacement: must be one character, not "")"},
};

TEST(SentencePiece, RefusesMalformedAndUnsupportedFiles) {
  for (const RefusedFile& file : kRefusedFiles) {
    nlohmann::json root = sentencepiece_file();
    const nlohmann::json::json_pointer pointer(file.pointer);
    if (file.value == nullptr) {
      root.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      root[pointer] = nlohmann::json::parse(file.value);
    }
    const auto result = Tokenizer::from_json(root.dump());
    ASSERT_FALSE(result.ok()) << file.pointer << " " << file.message;
    EXPECT_EQ(result.status().message(), file.message) << file.pointer;
  }
}

// Sixteen steps that each make text sixteen times as long.
TEST(SentencePiece, RefusesTokensThatNormalizationMakesTooLong) {
  nlohmann::json root = sentencepiece_file();
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", nlohmann::json::array()}};
  for (int i = 0; i < 16; ++i) {
    root["normalizer"]["normalizers"].push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaaaaaaaaaa"}});
  }
  root["added_tokens"][0] = {{"id", 300}, {"content", "<a>"}, {"normalized", true}};
  EXPECT_EQ(Tokenizer::from_json(root.dump()).status().message(),
            "added_tokens[0].content: normalization makes more than 2048 bytes");
}

TEST(SentencePiece, RefusesTokensThatNormalizationEmpties) {
  nlohmann::json root = sentencepiece_file();
  root["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  root["added_tokens"][0] = {{"id", 300}, {"content", " "}, {"normalized", true}};
  EXPECT_EQ(Tokenizer::from_json(root.dump()).status().message(),
            "added_tokens[0].content: is empty after normalization");
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", nlohmann::json::array()}};
  for (int i = 0; i < 17; ++i) {
    root["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  }
  EXPECT_EQ(Tokenizer::from_json(root.dump()).status().message(),
            "normalizer: more than 16 steps is not supported");
}

}  // namespace
}  // namespace tidemill::engines
