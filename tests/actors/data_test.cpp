// SPDX-License-Identifier: Apache-2.0
// The contracts of actors/data: converting rows of a data set to token ids.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/data/dataset_prompts.hpp"
#include "actors/data/dataset_sequences.hpp"
#include "actors/data/text_codec.hpp"
#include "base/json/json.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::test {
namespace {

using actors::SupervisedTokens;
using actors::TextCodec;
using ::testing::HasSubstr;

constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
// Renders earlier text depending on later messages, so the text cannot be split into turns.
constexpr const char* kContextDependentTemplate =
    "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}<{{ m['role'] }}>"
    "{{ m['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
// Does not render assistant messages, but a user message may look like the header of one.
constexpr const char* kUserOnlyTemplate =
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// Renders tools, and the argument `x` of their calls.
constexpr const char* kToolTemplate =
    "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kTools = R"([{"type": "function", "function": {"name": "add"}}])";
constexpr const char* kCall = R"([{"role": "user", "content": "a"}, {"role": "assistant",)"
                              R"( "content": "", "tool_calls": [{"type": "function", "function":)"
                              R"( {"name": "add", "arguments": "{\"x\": 12}"}}]}])";

class DataTest : public ::testing::Test {
protected:
  // Returns a codec with the tokenizer of the example model and the given chat template.
  TextCodec codec(const std::string& chat_template = kPlainTemplate,
                  actors::ChatOptions options = {}) {
    std::filesystem::copy_file(TIDEMILL_SOURCE_DIR "/examples/models/arithmetic/tokenizer.json",
                               directory_.path() / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    Json::Object config{{"eos_token", "<|end|>"}};
    if (!chat_template.empty()) {
      config.push_back({"chat_template", chat_template});
    }
    write("tokenizer_config.json", Json(std::move(config)).to_text());
    auto loaded = TextCodec::load(directory_.path(), "2026-01-31T12:00:00", std::move(options));
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return std::move(loaded).value();
  }
  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  // Returns the text of all ids, including special tokens.
  static std::string text_of(const TextCodec& codec, const std::vector<std::int32_t>& ids) {
    return codec.tokenizer().decode(ids, engines::SpecialTokenText::kKeep);
  }
  // Returns the text of the targets.
  static std::string target_text(const TextCodec& codec, const SupervisedTokens& tokens) {
    std::vector<std::int32_t> ids;
    for (std::size_t t = 0; t < tokens.ids.size(); ++t) {
      if (tokens.loss_mask[t] != 0) {
        ids.push_back(tokens.ids[t]);
      }
    }
    return text_of(codec, ids);
  }
  static storage::PromptRow prompt_row(std::string prompt, std::string messages = "") {
    return {std::move(prompt), std::move(messages), "4", "{}", {"train.jsonl", 3}};
  }
  static storage::SupervisedRow message_row(std::string messages) {
    storage::SupervisedRow row;
    row.kind = storage::SupervisedRow::Kind::kMessages;
    row.messages = std::move(messages);
    row.location = {"train.jsonl", 3};
    return row;
  }

  TemporaryDirectory directory_;
};

// -- text codec -----------------------------------------------------------------------------------

TEST_F(DataTest, APromptIsEncodedAsPlainText) {
  const TextCodec model = codec();
  const auto ids = model.prompt_ids(prompt_row("2+2="));
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(text_of(model, ids.value()), "2+2=");
}

TEST_F(DataTest, MessagesAreRenderedUpToTheResponse) {
  const TextCodec model = codec();
  const auto ids = model.prompt_ids(prompt_row("", R"([{"role": "user", "content": "2+2="}])"));
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(text_of(model, ids.value()), "<user>2+2=<|end|><assistant>");
}

TEST_F(DataTest, PromptsMayBeUserMessages) {
  const TextCodec model = codec(kPlainTemplate, {true, "be brief"});
  const auto ids = model.prompt_ids(prompt_row("2+2="));
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(text_of(model, ids.value()), "<system>be brief<|end|><user>2+2=<|end|><assistant>");
  storage::SupervisedRow row;
  row.prompt = "2+2=";
  row.reference_answer = "4";
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids),
            "<system>be brief<|end|><user>2+2=<|end|><assistant>4<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "4<|end|>");
}

TEST_F(DataTest, ASystemMessageIsAddedToMessagesWithoutOne) {
  const TextCodec model = codec(kPlainTemplate, {false, "be brief"});
  const auto added = model.prompt_ids(prompt_row("", R"([{"role": "user", "content": "a"}])"));
  ASSERT_TRUE(added.ok()) << added.status().to_string();
  EXPECT_EQ(text_of(model, added.value()), "<system>be brief<|end|><user>a<|end|><assistant>");
  const auto own = model.prompt_ids(
      prompt_row("", R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}])"));
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(text_of(model, own.value()), "<system>s<|end|><user>a<|end|><assistant>");
}

TEST_F(DataTest, ASystemMessageForPlainTextIsRefused) {
  const TextCodec model = codec(kPlainTemplate, {false, "be brief"});
  const std::string problem =
      "data.system requires messages, but the row is plain text; set data.chat or remove "
      "data.system";
  EXPECT_THAT(model.prompt_ids(prompt_row("2+2=")).status().message(), HasSubstr(problem));
  storage::SupervisedRow row;
  row.prompt = "2+2=";
  row.reference_answer = "4";
  EXPECT_THAT(model.supervised(row).status().message(), HasSubstr(problem));
}

TEST_F(DataTest, PromptsAsMessagesRequireAChatTemplate) {
  codec("");
  const auto loaded = TextCodec::load(directory_.path(), "", {true, ""});
  EXPECT_THAT(loaded.status().message(), HasSubstr("no chat template"));
}

TEST_F(DataTest, PromptErrorsBeginWithTheLocationOfTheRow) {
  const auto empty = codec().prompt_ids(prompt_row(""));
  EXPECT_EQ(empty.status().message(), "train.jsonl:3: the prompt has no tokens");
  const auto invalid = codec().prompt_ids(prompt_row("\xff"));
  EXPECT_EQ(invalid.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(invalid.status().message(), ::testing::StartsWith("train.jsonl:3: "));
  const auto no_template =
      codec("").prompt_ids(prompt_row("", R"([{"role": "user", "content": "x"}])"));
  EXPECT_THAT(no_template.status().message(), HasSubstr("train.jsonl:3: "));
  EXPECT_THAT(no_template.status().message(), HasSubstr("no chat template"));
}

TEST_F(DataTest, TheTargetsAreTheReferenceAnswerAndTheEndToken) {
  const TextCodec model = codec();
  storage::SupervisedRow row;
  row.prompt = "2+2=";
  row.reference_answer = "4";
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids), "2+2=4<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "4<|end|>");
}

TEST_F(DataTest, TheTargetsAreAllAssistantTurns) {
  const TextCodec model = codec();
  const auto tokens = model.supervised(message_row(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"},)"
      R"( {"role": "user", "content": "b"}, {"role": "assistant", "content": "two"}])"));
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids),
            "<user>a<|end|><assistant>one<|end|><user>b<|end|><assistant>two<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "one<|end|>two<|end|>");
}

TEST_F(DataTest, ATurnThatRendersDifferentlyIsLeftOutUnlessItIsTheLast) {
  const std::string two_turns =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"},)"
      R"( {"role": "user", "content": "b"}, {"role": "assistant", "content": "two"}])";
  const TextCodec model = codec(kContextDependentTemplate);
  const auto tokens = model.supervised(message_row(two_turns));
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids), "<user>a<user>b<assistant>two");
  EXPECT_EQ(target_text(model, tokens.value()), "two");
  EXPECT_EQ(tokens.value().turns_left_out, 1U);
  const auto refused = model.supervised(
      message_row(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "one"},)"
                  R"( {"role": "user", "content": "b"}])"));
  EXPECT_THAT(refused.status().message(), HasSubstr("train.jsonl:3: "));
  EXPECT_THAT(refused.status().message(), HasSubstr("message 2"));
}

TEST_F(DataTest, ATurnOfWeightZeroIsNoTarget) {
  const std::string row = R"([{"role": "user", "content": "a"},)"
                          R"( {"role": "assistant", "content": "one", "weight": 0},)"
                          R"( {"role": "user", "content": "b"},)"
                          R"( {"role": "assistant", "content": "two", "weight": 1},)"
                          R"( {"role": "assistant", "content": "three", "weight": 0}])";
  const TextCodec model = codec();
  const auto tokens = model.supervised(message_row(row));
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids),
            "<user>a<|end|><assistant>one<|end|><user>b<|end|><assistant>two<|end|>"
            "<assistant>three<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "two<|end|>");
  EXPECT_EQ(tokens.value().turns_left_out, 0U);
  const TextCodec marked = codec(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}");
  const auto spans = marked.supervised(message_row(row));
  ASSERT_TRUE(spans.ok()) << spans.status().to_string();
  EXPECT_EQ(target_text(marked, spans.value()), "two");
  // The spans of this template are not those of the turns.
  const TextCodec split = codec(
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}x{% endgeneration %}"
      "{% generation %}{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}");
  EXPECT_EQ(
      split.supervised(message_row(row)).status().message(),
      "train.jsonl:3: the chat template renders 6 generation blocks for 3 assistant messages, "
      "so messages with weight 0 cannot be excluded");
}

TEST_F(DataTest, ToolsAndTheirCallsAreRenderedAsInServing) {
  const TextCodec model = codec(kToolTemplate);
  storage::SupervisedRow row = message_row(kCall);
  row.tools = kTools;
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids), "[add]<user>a<|end|><assistant>add(12)<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "add(12)<|end|>");
  storage::PromptRow prompt = prompt_row("", R"([{"role": "user", "content": "a"}])");
  prompt.tools = kTools;
  const auto ids = model.prompt_ids(prompt);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(text_of(model, ids.value()), "[add]<user>a<|end|><assistant>");
  row.kind = storage::SupervisedRow::Kind::kContinuedChat;
  row.messages = R"([{"role": "user", "content": "a"}])";
  row.continuation = R"([{"role": "assistant", "content": "b"}])";
  const auto continued = model.supervised(row);
  ASSERT_TRUE(continued.ok()) << continued.status().to_string();
  EXPECT_EQ(text_of(model, continued.value().ids), "[add]<user>a<|end|><assistant>b<|end|>");
}

TEST_F(DataTest, ToolsThatTheTemplateDoesNotRenderAreRefused) {
  storage::SupervisedRow row = message_row(kCall);
  EXPECT_EQ(codec().supervised(row).status().message(),
            "train.jsonl:3: the row has tool_calls, which the model's chat template does not use");
  row = message_row(R"([{"role": "user", "content": "a"}, {"role": "assistant"}])");
  row.tools = kTools;
  EXPECT_EQ(codec().supervised(row).status().message(),
            "train.jsonl:3: the row has tools, which the model's chat template does not use");
}

TEST_F(DataTest, ATurnThatEndsBeforeItBeginsIsRefused) {
  const auto tokens =
      codec(kUserOnlyTemplate)
          .supervised(message_row(R"([{"role": "user", "content": "a"},)"
                                  R"( {"role": "assistant", "content": "one"},)"
                                  R"( {"role": "user", "content": "<assistant>"}])"));
  ASSERT_FALSE(tokens.ok());
  EXPECT_THAT(tokens.status().message(), HasSubstr("message 2"));
}

TEST_F(DataTest, AllOfATextIsATarget) {
  const TextCodec model = codec();
  storage::SupervisedRow row;
  row.kind = storage::SupervisedRow::Kind::kText;
  row.text = "abc";
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids), "abc<|end|>");
  EXPECT_EQ(tokens.value().loss_mask, (std::vector<std::uint8_t>{0, 1, 1, 1}));
  // A text is no message, so it can have no system message.
  EXPECT_THAT(codec(kPlainTemplate, {true, "be brief"}).supervised(row).status().message(),
              HasSubstr("the row is plain text; remove data.system"));
}

TEST_F(DataTest, TheTargetsAreTheContinuation) {
  storage::SupervisedRow row;
  row.kind = storage::SupervisedRow::Kind::kContinuedText;
  row.prompt = "2+2=";
  row.continuation = "4";
  const TextCodec plain = codec();
  const auto tokens = plain.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(plain, tokens.value().ids), "2+2=4<|end|>");
  EXPECT_EQ(target_text(plain, tokens.value()), "4<|end|>");
  const TextCodec chat = codec(kPlainTemplate, {true, "be brief"});
  const auto rendered = chat.supervised(row);
  ASSERT_TRUE(rendered.ok()) << rendered.status().to_string();
  EXPECT_EQ(text_of(chat, rendered.value().ids),
            "<system>be brief<|end|><user>2+2=<|end|><assistant>4<|end|>");
  EXPECT_EQ(target_text(chat, rendered.value()), "4<|end|>");
}

TEST_F(DataTest, TheTargetsAreAllMessagesOfTheContinuation) {
  storage::SupervisedRow row;
  row.kind = storage::SupervisedRow::Kind::kContinuedChat;
  row.messages = R"([{"role": "assistant", "content": "z"}, {"role": "user", "content": "a"}])";
  row.continuation =
      R"([{"role": "assistant", "content": "one"}, {"role": "user", "content": "b"},)"
      R"( {"role": "assistant", "content": "two"}])";
  row.location = {"train.jsonl", 3};
  const TextCodec model = codec(kPlainTemplate, {false, "be brief"});
  const auto tokens = model.supervised(row);
  ASSERT_TRUE(tokens.ok()) << tokens.status().to_string();
  EXPECT_EQ(text_of(model, tokens.value().ids),
            "<system>be brief<|end|><assistant>z<|end|><user>a<|end|><assistant>one<|end|>"
            "<user>b<|end|><assistant>two<|end|>");
  EXPECT_EQ(target_text(model, tokens.value()), "one<|end|><user>b<|end|><assistant>two<|end|>");
  // The template drops the first turn if another one follows.
  EXPECT_EQ(codec(kContextDependentTemplate).supervised(row).status().message(),
            "train.jsonl:3: the chat template renders the prompt differently if the completion "
            "follows; use input_ids and labels");
}

TEST_F(DataTest, ReadyTokensAreNotChanged) {
  storage::SupervisedRow row;
  row.kind = storage::SupervisedRow::Kind::kTokens;
  row.input_ids = {5, 6};
  row.loss_mask = {0, 1};
  const auto tokens = codec().supervised(row);
  ASSERT_TRUE(tokens.ok());
  EXPECT_EQ(tokens.value().ids, row.input_ids);
  EXPECT_EQ(tokens.value().loss_mask, row.loss_mask);
}

TEST_F(DataTest, DecodingDropsSpecialTokens) {
  const TextCodec model = codec();
  const auto ids = model.tokenizer().encode("4<|end|>", engines::AddSpecialTokens::kNo);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(model.decode(ids.value()), "4");
}

// -- prompts --------------------------------------------------------------------------------------

class PromptReaderTest : public DataTest {
protected:
  std::shared_ptr<actors::PromptReader> reader(const std::string& lines, std::uint64_t epochs,
                                               actors::OnLongPrompt on_long,
                                               std::int64_t max_tokens = 8) {
    storage::DatasetOptions options;
    options.paths = {write("train.jsonl", lines)};
    options.order = storage::RowOrder::kFileOrder;
    options.epochs = epochs;
    auto data = storage::PromptDataset::open(options);
    EXPECT_TRUE(data.ok()) << data.status().to_string();
    data_ = std::move(data).value();
    return actors::make_dataset_prompt_reader(data_, codec(), {max_tokens, on_long});
  }
  static constexpr const char* kThree =
      "{\"prompt\": \"one\", \"answer\": \"1\", \"level\": 7}\n"
      "{\"prompt\": \"much too long for this\"}\n"
      "{\"prompt\": \"three\"}\n";

  std::shared_ptr<storage::PromptDataset> data_;
};

TEST_F(PromptReaderTest, ReadsByDrawAcrossEpochs) {
  const auto prompts = reader(kThree, 0, actors::OnLongPrompt::kSkip)->read(2, 3);
  ASSERT_TRUE(prompts.ok()) << prompts.status().to_string();
  ASSERT_EQ(prompts.value().size(), 3U);
  EXPECT_EQ(prompts.value()[0].prompt, "three");
  EXPECT_EQ(prompts.value()[0].draw, 2U);
  EXPECT_EQ(prompts.value()[1].prompt, "one");
  EXPECT_EQ(prompts.value()[1].draw, 3U);
  EXPECT_EQ(prompts.value()[1].epoch, 1U);
  EXPECT_EQ(prompts.value()[1].position, 0U);
  EXPECT_EQ(prompts.value()[1].reference_answer, "1");
  EXPECT_THAT(prompts.value()[1].fields, HasSubstr("\"level\""));
  EXPECT_EQ(prompts.value()[2].draw, 5U);  // draw 4 was skipped
}

TEST_F(PromptReaderTest, TheCheckCountsSkippedPrompts) {
  reader(kThree, 0, actors::OnLongPrompt::kSkip);
  const auto skip =
      actors::check_prompts(*data_, codec(), {8, actors::OnLongPrompt::kSkip}, nullptr);
  ASSERT_TRUE(skip.ok()) << skip.status().to_string();
  EXPECT_EQ(skip.value().too_long.count, 1U);
  EXPECT_THAT(skip.value().too_long.first, HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
}

TEST_F(PromptReaderTest, ALongPromptMayBeTruncated) {
  const auto whole = reader(kThree, 1, actors::OnLongPrompt::kError, 100)->read(1, 1);
  const auto cut = reader(kThree, 1, actors::OnLongPrompt::kTruncateLeft)->read(0, 9);
  ASSERT_TRUE(whole.ok() && cut.ok()) << cut.status().to_string();
  ASSERT_EQ(cut.value().size(), 3U);
  const auto& ids = whole.value()[0].ids;
  ASSERT_EQ(ids.size(), 22U);
  EXPECT_EQ(cut.value()[1].ids, (std::vector<std::int32_t>(ids.end() - 8, ids.end())));
  EXPECT_EQ(cut.value()[1].prompt, "much too long for this");
  EXPECT_LT(cut.value()[0].ids.size(), 8U);
  const auto counted =
      actors::check_prompts(*data_, codec(), {8, actors::OnLongPrompt::kTruncateLeft}, nullptr);
  ASSERT_TRUE(counted.ok()) << counted.status().to_string();
  EXPECT_EQ(counted.value().too_long.count, 1U);
  EXPECT_THAT(counted.value().too_long.first, HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
  EXPECT_TRUE(
      actors::check_prompts(*data_, codec(), {1, actors::OnLongPrompt::kTruncateLeft}, nullptr)
          .ok());
}

TEST_F(PromptReaderTest, TheCheckRefusesRowsNamingTheirLine) {
  reader(kThree, 0, actors::OnLongPrompt::kError);
  const auto long_prompt =
      actors::check_prompts(*data_, codec(), {8, actors::OnLongPrompt::kError}, nullptr);
  EXPECT_EQ(long_prompt.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(long_prompt.status().message(), HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
  const auto none =
      actors::check_prompts(*data_, codec(), {1, actors::OnLongPrompt::kSkip}, nullptr);
  EXPECT_EQ(none.status().message(), "data.train: every prompt is longer than 1 tokens");
  const auto answer = actors::check_prompts(
      *data_, codec(), {100, actors::OnLongPrompt::kError}, [](const std::string& text) {
        return text.empty() ? invalid_argument("no answer") : Status();
      });
  EXPECT_EQ(answer.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(answer.status().message(), HasSubstr("train.jsonl:2: no answer"));
}

TEST_F(PromptReaderTest, ReturnsFewerPromptsOnlyIfTheDataEnds) {
  const auto prompts = reader(kThree, 1, actors::OnLongPrompt::kSkip)->read(0, 9);
  ASSERT_TRUE(prompts.ok());
  EXPECT_EQ(prompts.value().size(), 2U);
}

TEST_F(PromptReaderTest, ALongPromptIsAnErrorNamingItsLine) {
  const auto prompts = reader(kThree, 1, actors::OnLongPrompt::kError)->read(0, 9);
  EXPECT_EQ(prompts.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(prompts.status().message(), HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
}

TEST_F(PromptReaderTest, TheSearchEndsIfEveryPromptIsTooLong) {
  const auto prompts = reader(kThree, 0, actors::OnLongPrompt::kSkip, 1)->read(0, 1);
  EXPECT_EQ(prompts.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(prompts.status().message(), HasSubstr("6 prompts in a row are longer than 1 tokens"));
}

TEST_F(PromptReaderTest, ManyLongPromptsInARowDoNotEndTheSearch) {
  storage::DatasetOptions options;
  options.paths = {write("good.jsonl", "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n"),
                   write("long.jsonl", "{\"prompt\": \"much too long for this\"}\n")};
  options.weights = {1.0, 100.0};
  const auto read = [&] {
    data_ = storage::PromptDataset::open(options).value();
    return actors::make_dataset_prompt_reader(data_, codec(), {8, actors::OnLongPrompt::kSkip})
        ->read(0, 50);
  };
  const auto weighted = read();
  ASSERT_TRUE(weighted.ok()) << weighted.status().to_string();
  EXPECT_EQ(weighted.value().size(), 50U);
  // If the short prompt comes first in one epoch and last in the next, nearly two epochs of prompts
  // are skipped in a row.
  std::string lines = "{\"prompt\": \"one\"}\n";
  for (int i = 0; i < 9; ++i) {
    lines += "{\"prompt\": \"much too long for this\"}\n";
  }
  options.paths = {write("mixed.jsonl", lines)};
  options.weights.clear();
  options.order = storage::RowOrder::kShuffled;
  const auto shuffled = read();
  ASSERT_TRUE(shuffled.ok()) << shuffled.status().to_string();
  EXPECT_EQ(shuffled.value().size(), 50U);
}

TEST_F(PromptReaderTest, AllPromptsAreReadOnceInTheOrderOfTheFile) {
  reader(kThree, 0, actors::OnLongPrompt::kError);
  const auto prompts =
      actors::read_all_prompts(*data_, codec(), {100, actors::OnLongPrompt::kError});
  ASSERT_TRUE(prompts.ok());
  ASSERT_EQ(prompts.value().prompts.size(), 3U);
  EXPECT_EQ(prompts.value().prompts[2].prompt, "three");
  EXPECT_EQ(prompts.value().too_long.count, 0U);
}

TEST_F(PromptReaderTest, LongPromptsOfAnEvaluationAreHandledAsInTraining) {
  reader(kThree, 0, actors::OnLongPrompt::kError);
  const auto read = [&](actors::OnLongPrompt on_long, std::int64_t max_tokens) {
    return actors::read_all_prompts(*data_, codec(), {max_tokens, on_long});
  };
  EXPECT_THAT(read(actors::OnLongPrompt::kError, 8).status().message(),
              HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
  const auto rest = read(actors::OnLongPrompt::kSkip, 8);
  ASSERT_TRUE(rest.ok()) << rest.status().to_string();
  ASSERT_EQ(rest.value().prompts.size(), 2U);
  EXPECT_EQ(rest.value().prompts[1].prompt, "three");
  EXPECT_EQ(rest.value().prompts[1].draw, 2U);
  EXPECT_EQ(rest.value().too_long.count, 1U);
  EXPECT_THAT(rest.value().too_long.first, HasSubstr("train.jsonl:2: the prompt has 22 tokens"));
  const auto cut = read(actors::OnLongPrompt::kTruncateLeft, 8);
  ASSERT_TRUE(cut.ok()) << cut.status().to_string();
  EXPECT_EQ(cut.value().prompts.size(), 3U);
  EXPECT_EQ(cut.value().too_long.count, 1U);
  EXPECT_EQ(read(actors::OnLongPrompt::kSkip, 1).status().message(),
            "data.eval: every prompt is longer than 1 tokens");
}

TEST_F(PromptReaderTest, TheCheckMeasuresTheLargestPromptInARow) {
  const auto reading = reader(kThree, 1, actors::OnLongPrompt::kTruncateLeft);
  const actors::DatasetPromptOptions cut{8, actors::OnLongPrompt::kTruncateLeft};
  const auto facts = actors::check_prompts(*data_, codec(), cut, nullptr);
  ASSERT_TRUE(facts.ok()) << facts.status().to_string();
  EXPECT_EQ(facts.value().largest, data_->files().front() + ":2");
  // Its ids are truncated, but its text and its fields are not.
  EXPECT_EQ(facts.value().max_bytes,
            8 * 4 + std::string("much too long for this").size() +
                std::string(R"({"prompt": "much too long for this"})").size());
  std::uint64_t max_bytes = 0;
  for (const actors::Prompt& prompt : reading->read(0, 3).value()) {
    max_bytes = std::max(max_bytes, 4 * prompt.ids.size() + prompt.prompt.size() +
                                        prompt.reference_answer.size() + prompt.fields.size());
  }
  EXPECT_EQ(facts.value().max_bytes, max_bytes);
  const auto skipped =
      actors::check_prompts(*data_, codec(), {8, actors::OnLongPrompt::kSkip}, nullptr);
  ASSERT_TRUE(skipped.ok());
  EXPECT_EQ(skipped.value().largest, data_->files().front() + ":1") << "of those not skipped";
}

// -- sequences ------------------------------------------------------------------------------------

class SequenceReaderTest : public DataTest {
protected:
  Result<std::shared_ptr<actors::SequenceReader>> reader(
      const std::string& lines, actors::OnLongPrompt on_long = actors::OnLongPrompt::kError,
      const std::string& model = "") {
    storage::DatasetOptions options;
    options.paths = {write("train.jsonl", lines)};
    options.order = storage::RowOrder::kFileOrder;
    options.epochs = 1;
    auto data = storage::SupervisedDataset::open(options);
    EXPECT_TRUE(data.ok()) << data.status().to_string();
    actors::DatasetSequenceOptions sequences;
    sequences.max_tokens = 6;
    sequences.on_long = on_long;
    sequences.vocab_size = 300;
    sequences.model_path = model;
    sequences.log = [this](const std::string& line) { log_.push_back(line); };
    return actors::make_dataset_sequence_reader(std::move(data).value(), sequences);
  }
  std::vector<std::string> log_;
};

TEST_F(SequenceReaderTest, ReadyTokensRequireNoTokenizer) {
  const auto sequences = reader(
      "{\"input_ids\": [1, 2], \"loss_mask\": [0, 1]}\n"
      "{\"input_ids\": [3], \"loss_mask\": [0]}\n",
      actors::OnLongPrompt::kError, "/nonexistent");
  ASSERT_TRUE(sequences.ok()) << sequences.status().to_string();
  const auto batch = sequences.value()->read(0, 4);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ(batch.value().size(), 2U);  // the data ends after two rows
  EXPECT_EQ(batch.value()[1].id, SampleId{1});
  EXPECT_EQ(batch.value()[0].ids, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(batch.value()[0].response_mask, (std::vector<std::uint8_t>{0, 1}));
}

TEST_F(SequenceReaderTest, TextRequiresTheTokenizerImmediately) {
  const auto missing = reader("{\"prompt\": \"1+\", \"answer\": \"2\"}\n",
                              actors::OnLongPrompt::kError, "/nonexistent");
  EXPECT_FALSE(missing.ok());
  codec();
  const auto sequences = reader("{\"prompt\": \"1+\", \"answer\": \"2\"}\n",
                                actors::OnLongPrompt::kError, directory_.path().string());
  ASSERT_TRUE(sequences.ok()) << sequences.status().to_string();
  EXPECT_EQ(sequences.value()->read(0, 1).value().at(0).ids.size(), 4U);
}

TEST_F(SequenceReaderTest, ALongSequenceIsRefusedOrMaskedOrTruncated) {
  const std::string lines =
      "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7], \"loss_mask\": [0, 1, 1, 1, 1, 1, 1]}\n"
      "{\"input_ids\": [8, 9], \"loss_mask\": [0, 1]}\n";
  const auto refused = reader(lines);  // refused by the check, before it is drawn
  EXPECT_EQ(refused.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("train.jsonl:1: the sequence has 7 tokens"));
  const auto masked = reader(lines, actors::OnLongPrompt::kSkip).value()->read(0, 2);
  ASSERT_TRUE(masked.ok());
  ASSERT_EQ(masked.value().size(), 2U);
  EXPECT_EQ(masked.value()[0].response_mask, (std::vector<std::uint8_t>{0}));
  EXPECT_EQ(masked.value()[1].id, SampleId{1});
  ASSERT_EQ(log_.size(), 1U);  // one line for all rows
  EXPECT_THAT(log_[0], HasSubstr("data.train: 1 of 2 sequences have more than 6 tokens and are "
                                 "masked; the first: "));
  EXPECT_THAT(log_[0], HasSubstr("train.jsonl:1"));
  const auto cut = reader(lines, actors::OnLongPrompt::kTruncateLeft).value()->read(0, 2);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut.value()[0].ids, (std::vector<std::int32_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(cut.value()[0].response_mask, (std::vector<std::uint8_t>{0, 1, 1, 1, 1, 1}));
  EXPECT_EQ(cut.value()[1].ids, (std::vector<std::int32_t>{8, 9}));
  EXPECT_THAT(log_.at(1), HasSubstr("and are truncated; the first: "));
}

TEST_F(SequenceReaderTest, OneLineSaysThatTurnsAreLeftOut) {
  codec(kContextDependentTemplate);
  const auto sequences = reader(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "1"},)"
      R"( {"role": "user", "content": "b"}, {"role": "assistant", "content": "2"}]})"
      "\n",
      actors::OnLongPrompt::kTruncateLeft, directory_.path().string());
  ASSERT_TRUE(sequences.ok()) << sequences.status().to_string();
  ASSERT_GE(log_.size(), 1U);
  EXPECT_THAT(log_.back(), HasSubstr("data.train: in 1 of 2 conversations only some of the "
                                     "assistant's turns are trained on"));
  EXPECT_THAT(log_.back(), HasSubstr("train.jsonl:2"));
}

TEST_F(SequenceReaderTest, ATokenOutsideTheVocabularyIsNamed) {
  const auto refused = reader(
      "{\"input_ids\": [1], \"loss_mask\": [0]}\n"
      "{\"input_ids\": [1, 300], \"loss_mask\": [0, 1]}\n");
  EXPECT_THAT(refused.status().message(),
              HasSubstr("train.jsonl:2: token 300 is outside the vocabulary of 300"));
}

}  // namespace
}  // namespace tidemill::test
