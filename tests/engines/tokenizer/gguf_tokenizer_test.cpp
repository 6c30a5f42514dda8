// SPDX-License-Identifier: Apache-2.0
// Tokenizers in GGUF files: they give the ids of the golden tokenizers, and bad ones are refused.
#include "engines/formats/gguf_tokenizer.hpp"

#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/tokenizer/tokenizer.hpp"
#include "tests/support/gguf_writer.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

using test::GgufWriter;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Document = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::filesystem::path kTokenizers = TIDEMILL_TEST_DIR "/golden/engine/tokenizers";

Document document(const std::filesystem::path& path) {
  std::ifstream file(path);
  return Document::parse(file);
}

// Adds the keys that a converter writes for a tokenizer.json.
void add_tokenizer(GgufWriter& writer, const Document& tokenizer, const std::string& split) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> kinds;
  const auto put = [&](const std::string& token, std::size_t id, std::int32_t kind) {
    if (id >= tokens.size()) {
      for (std::size_t next = tokens.size(); next <= id; ++next) {
        tokens.push_back("[PAD" + std::to_string(next) + "]");
        kinds.push_back(5);
      }
    }
    tokens[id] = token;
    kinds[id] = kind;
  };
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    put(token, id.get<std::size_t>(), 1);
  }
  for (const Document& token : tokenizer["added_tokens"]) {
    put(token["content"].get<std::string>(), token["id"].get<std::size_t>(),
        token["special"].get<bool>() ? 3 : 4);
  }
  std::vector<std::string> merges;
  for (const Document& merge : tokenizer["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  writer.text("tokenizer.ggml.model", "gpt2");
  writer.text("tokenizer.ggml.pre", split);
  writer.texts("tokenizer.ggml.tokens", tokens);
  writer.integers("tokenizer.ggml.token_type", kinds);
  writer.texts("tokenizer.ggml.merges", merges);
}

class GgufTokenizerTest : public ::testing::Test {
protected:
  std::filesystem::path write(const GgufWriter& writer, const std::string& name = "x.gguf") {
    const std::filesystem::path path = directory_.path() / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << writer.bytes();
    return path;
  }

  test::TemporaryDirectory directory_{test::memory_directory_path()};
};

// Returns whether a case contains an added token with a property that GGUF cannot express: lstrip,
// rstrip, single_word or normalized.
bool contains_changed_token(const Document& tokenizer, const Document& item) {
  const auto text = item["text"].get<std::string>();
  const auto ids = item["ids"].get<Ids>();
  for (const Document& token : tokenizer["added_tokens"]) {
    const bool changed =
        token["lstrip"] || token["rstrip"] || token["single_word"] || token["normalized"];
    if (changed && (text.find(token["content"].get<std::string>()) != std::string::npos ||
                    std::find(ids.begin(), ids.end(), token["id"]) != ids.end())) {
      return true;
    }
  }
  return false;
}

TEST_F(GgufTokenizerTest, EncodesLikeTheGoldenTokenizers) {
  struct Row {
    const char* folder;
    const char* split;
    std::optional<std::uint32_t> bos;
  };
  int num_cases = 0;
  int num_skipped = 0;
  for (const Row& row :
       {Row{"llama3-style", "llama-bpe", 1208}, Row{"qwen2-style", "qwen2", std::nullopt},
        Row{"gpt2-style", "gpt-2", std::nullopt}}) {
    SCOPED_TRACE(row.folder);
    const Document source = document(kTokenizers / row.folder / "tokenizer.json");
    GgufWriter writer;
    add_tokenizer(writer, source, row.split);
    if (row.bos) {
      writer.u32("tokenizer.ggml.bos_token_id", *row.bos);
    }
    const auto tokenizer = Tokenizer::load(write(writer));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    const Document cases = document(kTokenizers / row.folder / "cases.json");
    for (const Document& item : cases["encode"]) {
      if (contains_changed_token(source, item)) {
        ++num_skipped;
        continue;
      }
      const auto text = item["text"].get<std::string>();
      const auto ids = item["ids"].get<Ids>();
      EXPECT_EQ(tokenizer.value().encode(text, AddSpecialTokens::kNo).value(), ids) << text;
      EXPECT_EQ(tokenizer.value().encode(text, AddSpecialTokens::kYes).value(),
                item.value("ids_special", ids))
          << text;
      ++num_cases;
    }
  }
  EXPECT_GT(num_cases, 3000);
  std::cout << num_cases << " texts encoded like the golden tokenizers, " << num_skipped
            << " skipped because GGUF cannot express their tokens\n";
}

// Writes the keys of a tokenizer with six entries, one of them unused, except the keys in
// `omitted`. `more` may add others.
GgufWriter small(const std::function<void(GgufWriter&)>& more,
                 const std::vector<std::string>& omitted = {}) {
  GgufWriter writer;
  const auto wanted = [&](const std::string& key) {
    return std::find(omitted.begin(), omitted.end(), key) == omitted.end();
  };
  if (wanted("model")) {
    writer.text("tokenizer.ggml.model", "gpt2");
  }
  if (wanted("pre")) {
    writer.text("tokenizer.ggml.pre", "qwen2");
  }
  if (wanted("tokens")) {
    writer.texts("tokenizer.ggml.tokens", {"a", "b", "ab", "[PAD3]", "<end>", "<tool>"});
  }
  if (wanted("token_type")) {
    writer.integers("tokenizer.ggml.token_type", {1, 1, 1, 5, 3, 4});
  }
  if (wanted("merges")) {
    writer.texts("tokenizer.ggml.merges", {"a b"});
  }
  more(writer);
  return writer;
}

TEST_F(GgufTokenizerTest, ReadsNamedTokensAndTemplates) {
  const auto path = write(small([](GgufWriter& w) {
    w.u32("tokenizer.ggml.eos_token_id", 4);
    w.u32("tokenizer.ggml.padding_token_id", 5);
    w.text("tokenizer.chat_template", "{{ messages }}");
  }));
  const Tokenizer tokenizer = Tokenizer::load(path).value();
  EXPECT_EQ(tokenizer.eos_id(), 4);
  EXPECT_EQ(tokenizer.pad_id(), 5);
  EXPECT_FALSE(tokenizer.bos_id().has_value());
  EXPECT_TRUE(tokenizer.is_special(4));
  EXPECT_FALSE(tokenizer.is_special(5));
  EXPECT_FALSE(tokenizer.contains(3));
  EXPECT_EQ(tokenizer.encode("ab<end>a<tool>", AddSpecialTokens::kYes).value(), (Ids{2, 4, 0, 5}));
  EXPECT_EQ(tokenizer.config().chat_templates.at("default"), "{{ messages }}");
  const auto config = load_tokenizer_config(directory_.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config.value().eos_token, "<end>");
  EXPECT_EQ(config.value().chat_templates.at("default"), "{{ messages }}");
}

TEST_F(GgufTokenizerTest, TokenizerJsonTakesPrecedence) {
  const auto path = write(small([](GgufWriter&) {}, {"model"}));
  EXPECT_EQ(Tokenizer::load(path).status().message(),
            path.string() + ": has no tokenizer (no key \"tokenizer.ggml.model\")");
  std::filesystem::copy_file(kTokenizers / "qwen2-style/tokenizer.json",
                             directory_.path() / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(path).value().vocabulary_size(),
            Tokenizer::load(kTokenizers / "qwen2-style").value().vocabulary_size());
  EXPECT_TRUE(load_tokenizer_config(path).ok());
}

TEST_F(GgufTokenizerTest, RefusesMalformedTokenizers) {
  struct Case {
    const char* omitted;
    std::function<void(GgufWriter&)> more;
    const char* message;
  };
  const auto texts = [](const char* key, std::vector<std::string> values) {
    return [=](GgufWriter& w) { w.texts("tokenizer.ggml." + std::string(key), values); };
  };
  const auto kinds = [](std::vector<std::int32_t> values) {
    return [=](GgufWriter& w) { w.integers("tokenizer.ggml.token_type", values); };
  };
  const auto u32 = [](const char* key, std::uint32_t value) {
    return [=](GgufWriter& w) { w.u32("tokenizer.ggml." + std::string(key), value); };
  };
  const auto text = [](const char* key, const char* value) {
    return [=](GgufWriter& w) { w.text("tokenizer.ggml." + std::string(key), value); };
  };
  const std::vector<Case> cases{
      {"model", text("model", "llama"),
       "key \"tokenizer.ggml.model\": \"llama\" is not supported, only \"gpt2\""},
      {"model", u32("model", 2), "key \"tokenizer.ggml.model\": must be a string"},
      {"pre", [](GgufWriter&) {}, "key \"tokenizer.ggml.pre\": missing"},
      {"pre", text("pre", "deepseek-llm"),
       "key \"tokenizer.ggml.pre\": \"deepseek-llm\" is not supported, only \"llama-bpe\""},
      {"tokens", [](GgufWriter&) {}, "key \"tokenizer.ggml.tokens\": missing"},
      {"tokens", text("tokens", "a"), "key \"tokenizer.ggml.tokens\": must be a list"},
      {"tokens", texts("tokens", {"a"}), "key \"tokenizer.ggml.token_type\": 6 types for 1 tokens"},
      {"tokens", texts("tokens", {"a", "a", "ab", "x", "<end>", "y"}),
       "key \"tokenizer.ggml.tokens\": token 1: \"a\" appears twice"},
      {"tokens", texts("tokens", {"a", "b", "ab", "x", "ab", "y"}),
       "key \"tokenizer.ggml.tokens\": token 4: \"ab\" appears twice"},
      {"tokens", texts("tokens", {"a", "", "ab", "x", "z", "y"}),
       "key \"tokenizer.ggml.tokens\": token 1: must not be empty"},
      {"tokens",
       [](GgufWriter& w) {
         w.integers("tokenizer.ggml.tokens", {1, 2, 3, 4, 5, 6});
       },
       "key \"tokenizer.ggml.tokens\": token 0: must be a string"},
      {"token_type", [](GgufWriter&) {}, "key \"tokenizer.ggml.token_type\": missing"},
      {"token_type", kinds({1, 1, 1, 5, 3, 6}),
       "key \"tokenizer.ggml.token_type\": token 5: type 6 does not belong to byte-level BPE"},
      {"token_type", texts("token_type", {"1", "1", "1", "5", "3", "4"}),
       "key \"tokenizer.ggml.token_type\": token 0: must be an integer"},
      {"merges", [](GgufWriter&) {}, "key \"tokenizer.ggml.merges\": missing"},
      {"merges", [](GgufWriter& w) { w.integers("tokenizer.ggml.merges", {1}); },
       "key \"tokenizer.ggml.merges\": merge 0: must be a string"},
      {"merges", texts("merges", {"b a"}), "model.merges[0]: \"ba\" is not in the vocabulary"},
      {"merges", texts("merges", {"ab"}), "model.merges[0]: must be two tokens"},
      {"", u32("eos_token_id", 6),
       "key \"tokenizer.ggml.eos_token_id\": must be the id of one of the 6 tokens"},
      {"", u32("eos_token_id", 3),
       "key \"tokenizer.ggml.eos_token_id\": must be the id of one of the 6 tokens"},
      {"", [](GgufWriter& w) { w.boolean("tokenizer.ggml.add_bos_token", true); },
       "key \"tokenizer.ggml.bos_token_id\": missing, but texts must begin with this token"},
      {"", [](GgufWriter& w) { w.boolean("tokenizer.ggml.add_eos_token", true); },
       "key \"tokenizer.ggml.add_eos_token\": true is not supported"},
      {"", u32("add_bos_token", 1), "key \"tokenizer.ggml.add_bos_token\": must be true or false"},
      {"", [](GgufWriter& w) { w.u32("tokenizer.chat_template", 1); },
       "key \"tokenizer.chat_template\": must be a string"},
  };
  for (const Case& c : cases) {
    const auto path = write(small(c.more, {c.omitted}));
    const Status status = Tokenizer::load(path).status();
    EXPECT_FALSE(status.ok()) << c.message;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
    EXPECT_THAT(status.message(), StartsWith(path.string() + ": "));
  }
  std::cout << cases.size() << " bad tokenizers refused\n";
}

}  // namespace
}  // namespace tidemill::engines
