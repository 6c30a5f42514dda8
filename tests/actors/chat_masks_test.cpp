// SPDX-License-Identifier: Apache-2.0
// Which tokens of a conversation are targets, compared with transformers (chat_masks.json).
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/data/text_codec.hpp"
#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::SupervisedTokens;
using actors::TextCodec;
using ::testing::HasSubstr;

constexpr const char* kModel = TIDEMILL_SOURCE_DIR "/tests/golden/engine/models/qwen3-tiny";
constexpr std::size_t kMaxFileBytes = 1U << 20U;

template <class Number>
std::vector<Number> numbers(const Json& row, const char* name) {
  std::vector<Number> out;
  for (const Json& item : *row.find(name)->if_array()) {
    out.push_back(static_cast<Number>(*item.if_integer()));
  }
  return out;
}

// One conversation of chat_masks.json.
struct MaskedChat {
  std::string name;
  storage::SupervisedRow row;
  storage::PromptRow prompt;  // all messages but the last
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> mask;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> prompt_ids_no_thinking;
};

MaskedChat read_chat(const Json& item) {
  MaskedChat chat;
  chat.name = *item.find("name")->if_string();
  chat.row.kind = storage::SupervisedRow::Kind::kMessages;
  chat.row.messages = item.find("messages")->to_line();
  Json::Array messages = *item.find("messages")->if_array();
  messages.pop_back();
  chat.prompt.messages = Json(std::move(messages)).to_line();
  chat.ids = numbers<std::int32_t>(item, "ids");
  chat.mask = numbers<std::uint8_t>(item, "mask");
  chat.prompt_ids = numbers<std::int32_t>(item, "prompt_ids");
  chat.prompt_ids_no_thinking = numbers<std::int32_t>(item, "prompt_ids_no_thinking");
  return chat;
}

class ChatMasksTest : public ::testing::Test {
protected:
  ChatMasksTest() {
    const auto text =
        read_text_file(TIDEMILL_SOURCE_DIR "/tests/actors/chat_masks.json", kMaxFileBytes);
    golden_ = parse_json(text.value()).value();
    for (const Json& item : *golden_.find("cases")->if_array()) {
      chats_.push_back(read_chat(item));
    }
  }

  // Returns a codec of the fixture with its own template, or with the one that has tags.
  TextCodec codec(bool tagged, actors::ChatOptions options = {}) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
      std::filesystem::copy_file(std::filesystem::path(kModel) / name, directory_.path() / name,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    if (tagged) {
      std::ofstream(directory_.path() / "chat_template.jinja", std::ios::binary)
          << *golden_.find("template")->if_string();
    }
    auto loaded = TextCodec::load(directory_.path(), "2026-01-31T12:00:00", std::move(options));
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return std::move(loaded).value();
  }

  // Returns the texts of the targets; a bar separates turns.
  static std::string target_text(const TextCodec& codec, const std::vector<std::int32_t>& ids,
                                 const std::vector<std::uint8_t>& mask) {
    std::string text;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      if (mask[t] != 0) {
        text += t > 0 && mask[t - 1] == 0 && !text.empty() ? "|" : "";
        text += codec.tokenizer().decode({&ids[t], 1}, engines::SpecialTokenText::kKeep);
      }
    }
    return text;
  }

  TemporaryDirectory directory_;
  Json golden_;
  std::vector<MaskedChat> chats_;
};

TEST_F(ChatMasksTest, GenerationTagsMarkTheTargets) {
  const TextCodec model = codec(true);
  ASSERT_EQ(chats_.size(), 5U);
  for (const MaskedChat& chat : chats_) {
    const auto tokens = model.supervised(chat.row);
    ASSERT_TRUE(tokens.ok()) << chat.name << ": " << tokens.status().to_string();
    EXPECT_EQ(tokens.value().ids, chat.ids) << chat.name;
    EXPECT_EQ(tokens.value().loss_mask, chat.mask) << chat.name;
    EXPECT_EQ(tokens.value().turns_left_out, 0U) << chat.name;
  }
}

TEST_F(ChatMasksTest, WithoutTagsTurnsThatRenderDifferentlyAreLeftOut) {
  const TextCodec model = codec(false);
  const std::vector<std::pair<std::string, std::size_t>> expected = {
      {"<think>\n\n</think>\n\nfour<|im_end|>\n", 0},
      {"<think>\none more\n</think>\n\nseven<|im_end|>\n", 1},
      {"<think>\n\n</think>\n\nthree<|im_end|>\n", 2},
      {"<think>\n\n</think>\n\nIt rains.<|im_end|>\n", 1},
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto tokens = model.supervised(chats_.at(i).row);
    ASSERT_TRUE(tokens.ok()) << chats_[i].name << ": " << tokens.status().to_string();
    EXPECT_EQ(tokens.value().ids, chats_[i].ids) << chats_[i].name;
    EXPECT_EQ(target_text(model, tokens.value().ids, tokens.value().loss_mask), expected[i].first);
    EXPECT_EQ(tokens.value().turns_left_out, expected[i].second) << chats_[i].name;
  }
}

TEST_F(ChatMasksTest, ALastTurnThatRendersDifferentlyIsRefused) {
  storage::SupervisedRow row = chats_[1].row;
  row.location = {"train.jsonl", 3};
  row.messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"},)"
                 R"( {"role": "user", "content": "b"}])";
  const auto refused = codec(false).supervised(row);
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              HasSubstr("train.jsonl:3: the chat template renders message 2 differently"));
  EXPECT_THAT(refused.status().message(), HasSubstr("put {% generation %}"));
  const TextCodec model = codec(true);
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(target_text(model, tokens.value().ids, tokens.value().loss_mask), "one<|im_end|>");
}

// Without thinking, the header of a turn ends with an empty reasoning.
TEST_F(ChatMasksTest, ALastTurnWithAnotherHeaderIsRefused) {
  const TextCodec brief = codec(false, {false, "", R"({"enable_thinking": false})"});
  EXPECT_TRUE(brief.supervised(chats_.at(0).row).ok());
  EXPECT_THAT(brief.supervised(chats_.at(1).row).status().message(),
              HasSubstr("renders message 4 without the header that it gives the model to continue, "
                        "so its tokens cannot be found; put {% generation %}"));
}

TEST_F(ChatMasksTest, PromptsAreRenderedWithTheGivenVariables) {
  const TextCodec plain = codec(false);
  const TextCodec brief = codec(false, {false, "", R"({"enable_thinking": false})"});
  for (const MaskedChat& chat : chats_) {
    EXPECT_EQ(plain.prompt_ids(chat.prompt).value(), chat.prompt_ids) << chat.name;
    EXPECT_EQ(brief.prompt_ids(chat.prompt).value(), chat.prompt_ids_no_thinking) << chat.name;
  }
}

TEST_F(ChatMasksTest, GivenVariablesReplaceSpecialTokens) {
  codec(false);
  std::ofstream(directory_.path() / "chat_template.jinja")
      << "{{ eos_token }}{{ level }}{{ messages[0].content }}";
  auto loaded =
      TextCodec::load(directory_.path(), "", {false, "", R"({"eos_token": "E", "level": 2})"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  storage::PromptRow row;
  row.messages = R"([{"role": "user", "content": "x"}])";
  const auto ids = loaded.value().prompt_ids(row);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(loaded.value().tokenizer().decode(ids.value(), engines::SpecialTokenText::kKeep),
            "E2x");
  const auto refused = TextCodec::load(directory_.path(), "", {false, "", "[1]"});
  EXPECT_EQ(refused.status().message(), "data.chat_template_kwargs: must be a JSON object");
}

TEST_F(ChatMasksTest, TextPartsAreJoinedForTemplatesThatRenderStrings) {
  const std::string parts =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  const auto text_with = [&](const std::string& chat_template) {
    codec(false);
    std::ofstream(directory_.path() / "chat_template.jinja") << chat_template;
    auto loaded = TextCodec::load(directory_.path(), "");
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    storage::PromptRow row;
    row.messages = parts;
    const auto ids = loaded.value().prompt_ids(row);
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
    return loaded.value().tokenizer().decode(ids.value(), engines::SpecialTokenText::kKeep);
  };
  EXPECT_EQ(text_with("{{ messages[0].content }}!"), "ab!");
  EXPECT_EQ(text_with("{{ 'user: ' + messages[0].content }}"), "user: ab");
  EXPECT_EQ(text_with("{{ messages[0].content if messages[0].content is string else 'none' }}"),
            "ab");
  // A template that renders parts by itself gets them.
  EXPECT_EQ(text_with("{% for p in messages[0].content %}{{ p.text }},{% endfor %}"), "a,b,");
}

TEST_F(ChatMasksTest, TextPartsOfACompletionAreJoined) {
  codec(false);
  std::ofstream(directory_.path() / "chat_template.jinja")
      << "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}";
  const auto loaded = TextCodec::load(directory_.path(), "");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  storage::SupervisedRow row;
  row.kind = storage::SupervisedRow::Kind::kContinuedChat;
  row.messages = R"([{"role": "user", "content": "x"}])";
  row.continuation =
      R"([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])";
  const auto tokens = loaded.value().supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(loaded.value().tokenizer().decode(tokens.value().ids, engines::SpecialTokenText::kKeep),
            "<x><ab>");
}

}  // namespace
}  // namespace tidemill::test
