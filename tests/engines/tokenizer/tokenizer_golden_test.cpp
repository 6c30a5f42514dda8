// SPDX-License-Identifier: Apache-2.0
// Every encode, decode and stream case of the tokenizer fixtures must match exactly.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include <gtest/gtest.h>

#include "engines/tokenizer/tokenizer.hpp"

namespace tidemill::engines {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::filesystem::path kFixtures = TIDEMILL_TEST_DIR "/golden/engine";

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Json read_json(const std::filesystem::path& path) {
  return Json::parse(read_all(path));
}

struct Counts {
  int encode = 0;
  int decode = 0;
  int stream = 0;
  int stream_invalid = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.encode << " encode, " << counts.decode << " decode, " << counts.stream
             << " stream, " << counts.stream_invalid << " invalid stream cases";
}

// Checks that spans cover the whole text in order, without gaps. Spans may overlap, because tokens
// of one character share its span and added tokens may strip the same white space.
void check_spans(const Tokenizer& tokenizer, const std::string& text, const Ids& ids) {
  const auto encoding = tokenizer.encode_with_spans(text, AddSpecialTokens::kNo);
  ASSERT_TRUE(encoding.ok());
  ASSERT_EQ(encoding.value().ids, ids);
  ASSERT_EQ(encoding.value().spans.size(), ids.size());
  std::size_t begin = 0;
  std::size_t end = 0;
  for (const TextSpan& span : encoding.value().spans) {
    ASSERT_LE(span.begin, span.end);
    ASSERT_LE(span.end, text.size());
    ASSERT_GE(span.begin, begin);
    ASSERT_LE(span.begin, end) << "a gap before byte " << span.begin;
    begin = span.begin;
    end = std::max(end, span.end);
  }
  ASSERT_EQ(end, text.size());
}

void check_encode_case(const Tokenizer& tokenizer, const Json& item) {
  const auto text = item.at("text").get<std::string>();
  const auto ids = item.at("ids").get<Ids>();
  const auto ids_special = item.value("ids_special", ids);
  SCOPED_TRACE(item.at("text").dump());
  const auto plain = tokenizer.encode(text, AddSpecialTokens::kNo);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  EXPECT_EQ(plain.value(), ids);
  const auto special = tokenizer.encode(text, AddSpecialTokens::kYes);
  ASSERT_TRUE(special.ok()) << special.status().to_string();
  EXPECT_EQ(special.value(), ids_special);
  check_spans(tokenizer, text, ids);
}

void check_decoded(const Tokenizer& tokenizer, const Json& item, const std::string& when_absent) {
  const auto ids = item.at("ids").get<Ids>();
  const auto decoded = item.value("decoded", when_absent);
  SCOPED_TRACE(item.dump());
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kKeep), decoded);
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokenText::kDrop), item.value("decoded_skip", decoded));
}

void check_stream_case(const Tokenizer& tokenizer, const Json& item) {
  SCOPED_TRACE(item.dump());
  const auto special =
      item.at("skip_special").get<bool>() ? SpecialTokenText::kDrop : SpecialTokenText::kKeep;
  const auto ids = item.at("ids").get<Ids>();
  IncrementalDecoder decoder(tokenizer, special);
  std::vector<std::string> chunks;
  std::string text;
  for (const std::int32_t id : ids) {
    chunks.push_back(decoder.push(id));
    text += chunks.back();
  }
  EXPECT_EQ(chunks, item.at("chunks_eager").get<std::vector<std::string>>());
  const std::string tail = decoder.finish();
  EXPECT_EQ(tail, item.at("tail_eager").get<std::string>());
  EXPECT_EQ(text + tail, item.at("decoded").get<std::string>());
  EXPECT_EQ(tokenizer.decode(ids, special), item.at("decoded").get<std::string>());
}

Counts check_folder(const std::filesystem::path& folder, const char* file) {
  Counts counts;
  const auto tokenizer = Tokenizer::from_json(read_all(folder / file));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  if (!tokenizer.ok()) return counts;
  const Json cases = read_json(folder / "cases.json");
  for (const Json& item : cases.at("encode")) {
    check_encode_case(tokenizer.value(), item);
    check_decoded(tokenizer.value(), item, item.at("text"));
    ++counts.encode;
  }
  const Json decode = read_json(folder / "decode.json");
  for (const Json& item : decode.at("decode")) {
    check_decoded(tokenizer.value(), item, item.at("decoded"));
    ++counts.decode;
  }
  for (const Json& item : decode.at("stream")) {
    check_stream_case(tokenizer.value(), item);
    ++counts.stream;
  }
  for (const Json& item : decode.at("stream_invalid")) {
    check_stream_case(tokenizer.value(), item);
    ++counts.stream_invalid;
  }
  return counts;
}

struct Folder {
  const char* name;
  Counts counts;
};

std::ostream& operator<<(std::ostream& out, const Folder& folder) {
  return out << folder.name;
}

class TokenizerFolder : public ::testing::TestWithParam<Folder> {};

TEST_P(TokenizerFolder, AllCasesMatchWithBothMergeFormats) {
  const auto folder = kFixtures / "tokenizers" / GetParam().name;
  for (const char* file : {"tokenizer.json", "tokenizer.old_merges.json"}) {
    SCOPED_TRACE(file);
    const Counts counts = check_folder(folder, file);
    EXPECT_EQ(counts, GetParam().counts);
    std::cout << "golden: tokenizers/" << GetParam().name << "/" << file << ": " << counts << '\n';
  }
}

std::string folder_name(const ::testing::TestParamInfo<Folder>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TokenizerFolder,
                         ::testing::Values(Folder{"gpt2-style", {1061, 120, 90, 20}},
                                           Folder{"gpt2-prefix-space", {1014, 120, 90, 20}},
                                           Folder{"llama3-style", {1119, 120, 90, 20}},
                                           Folder{"qwen2-style", {1131, 120, 90, 20}}),
                         folder_name);

// The tokens that tokenizer_config.json and special_tokens_map.json of each model name.
struct Model {
  const char* bos;  // nullptr: none
  const char* eos;
  const char* pad;
};

TEST(TokenizerGolden, TokenizersOfAllModels) {
  constexpr Model kLlama = {"<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"};
  constexpr Model kQwen = {nullptr, "<|im_end|>", "<|endoftext|>"};
  const std::vector<std::pair<const char*, Model>> models = {
      {"llama-tiny", kLlama},         {"qwen2-tiny", kQwen},    {"qwen3-tiny", kQwen},
      {"llama-bf16-sharded", kLlama}, {"llama-linear", kLlama}, {"qwen2-yarn", kQwen},
      {"qwen2-sliding", kQwen}};
  int total = 0;
  for (const auto& [name, expected] : models) {
    SCOPED_TRACE(name);
    const auto loaded = Tokenizer::load(kFixtures / "models" / name);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    const Tokenizer& tokenizer = loaded.value();
    int count = 0;
    const Json golden = read_json(kFixtures / "forward" / (std::string(name) + ".json"));
    for (const Json& item : golden.at("tokenizer_cases")) {
      check_encode_case(tokenizer, item);
      if (expected.bos != nullptr) {  // the other models normalize text
        EXPECT_EQ(tokenizer.decode(item.at("ids").get<Ids>(), SpecialTokenText::kKeep),
                  item.at("text").get<std::string>());
      }
      ++count;
    }
    EXPECT_EQ(count, 60);
    const auto id_of = [&tokenizer](const char* token) {
      return token == nullptr ? std::optional<std::int32_t>() : tokenizer.find(token);
    };
    EXPECT_EQ(tokenizer.bos_id(), id_of(expected.bos));
    EXPECT_EQ(tokenizer.eos_id(), id_of(expected.eos));
    EXPECT_EQ(tokenizer.pad_id(), id_of(expected.pad));
    EXPECT_TRUE(tokenizer.eos_id().has_value());
    EXPECT_EQ(tokenizer.config().chat_templates.count("default"), 1U);
    std::cout << "golden: forward/" << name << ".json: " << count << " tokenizer cases\n";
    total += count;
  }
  EXPECT_EQ(total, 7 * 60);
}

}  // namespace
}  // namespace tidemill::engines
