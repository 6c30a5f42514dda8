// SPDX-License-Identifier: Apache-2.0
// Tests config, tokenizer and chat template of the quickstart's model: one token per byte, and the
// same text for a prompt and for a conversation.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/chat/chat_template.hpp"
#include "engines/formats/model_config.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "examples/arithmetic/addition.hpp"

namespace tidemill::examples {
namespace {

using engines::AddSpecialTokens;
using engines::SpecialTokenText;
using engines::Tokenizer;
using engines::chat::ChatRequest;
using engines::chat::ChatTemplate;
using engines::chat::Rendering;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr const char* kModel = TIDEMILL_SOURCE_DIR "/examples/models/arithmetic";
constexpr std::int32_t kEnd = 256;

class ArithmeticModelTest : public ::testing::Test {
protected:
  [[nodiscard]] Result<Rendering> render(const std::string& request) const {
    TIDEMILL_ASSIGN_OR_RETURN(
        const ChatTemplate chat,
        ChatTemplate::parse(tokenizer_.config().chat_templates.at("default")));
    TIDEMILL_ASSIGN_OR_RETURN(const ChatRequest read, ChatRequest::from_json(request));
    return chat.render(read);
  }
  [[nodiscard]] std::vector<std::int32_t> encode(const std::string& text) const {
    return tokenizer_.encode(text, AddSpecialTokens::kYes).value();
  }
  Tokenizer tokenizer_ = Tokenizer::load(kModel).value();
};

TEST_F(ArithmeticModelTest, EveryByteIsTheTokenOfItsValue) {
  for (std::int32_t byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(tokenizer_.token_bytes(byte), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(tokenizer_.vocabulary_size(), 257);
  EXPECT_EQ(tokenizer_.eos_id(), kEnd);
  EXPECT_EQ(tokenizer_.pad_id(), kEnd);
  EXPECT_FALSE(tokenizer_.bos_id());
  EXPECT_EQ(encode("17+25=42<|end|>"),
            (std::vector<std::int32_t>{'1', '7', '+', '2', '5', '=', '4', '2', kEnd}));
  EXPECT_EQ(tokenizer_.decode(encode("dé 日"), SpecialTokenText::kKeep), "dé 日");
}

TEST_F(ArithmeticModelTest, EveryPromptHasSixTokensAndEveryAnswerAtMostFour) {
  const AdditionTask task = AdditionTask::of_seed(kTaskSeed);
  for (const std::vector<Problem>* problems : {&task.train, &task.eval}) {
    for (const Problem& problem : *problems) {
      ASSERT_THAT(encode(prompt_of(problem)), SizeIs(6));
      for (const int answer : {correct_answer(problem), answer_without_carry(problem)}) {
        ASSERT_LE(encode(std::to_string(answer) + "<|end|>").size(), 4U);
      }
    }
  }
}

TEST_F(ArithmeticModelTest, AConversationRendersToPromptAndAnswer) {
  const auto question = render(
      R"({"messages": [{"role": "user", "content": "17+25="}], "add_generation_prompt": true})");
  ASSERT_TRUE(question.ok()) << question.status().message();
  EXPECT_EQ(question.value().text, "17+25=");
  const auto conversation = render(
      R"({"messages": [{"role": "user", "content": "17+25="},
                       {"role": "assistant", "content": "42"}]})");
  ASSERT_TRUE(conversation.ok()) << conversation.status().message();
  EXPECT_EQ(conversation.value().text, "17+25=42<|end|>");
  ASSERT_THAT(conversation.value().generation_spans, SizeIs(1));
  EXPECT_EQ(conversation.value().generation_spans[0].begin, 6U);
  EXPECT_EQ(conversation.value().generation_spans[0].end, 15U);
}

TEST_F(ArithmeticModelTest, AnotherRoleIsRefused) {
  const auto refused = render(R"({"messages": [{"role": "system", "content": "Add."}]})");
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              HasSubstr("this model knows only the roles user and assistant"));
}

TEST_F(ArithmeticModelTest, TheModelHasTheStatedSizeAndTheEndTokenOfTheTokenizer) {
  const auto read = engines::read_model_config(std::string(kModel) + "/config.json");
  ASSERT_TRUE(read.ok()) << read.status().message();
  const engines::ModelConfig& config = read.value();
  EXPECT_EQ(config.vocab_size, tokenizer_.vocabulary_size());
  EXPECT_EQ(config.eos_token_ids, std::vector<std::int32_t>{kEnd});
  EXPECT_TRUE(config.tie_word_embeddings);
  const std::int64_t attention =
      config.hidden_size * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads);
  const std::int64_t mlp = 3 * config.hidden_size * config.intermediate_size;
  const std::int64_t norms = 2 * config.hidden_size;
  const std::int64_t parameters = config.vocab_size * config.hidden_size + config.hidden_size +
                                  config.num_layers * (attention + mlp + norms);
  EXPECT_EQ(parameters, 525'312);
  const auto generation =
      engines::read_generation_config(std::string(kModel) + "/generation_config.json");
  ASSERT_TRUE(generation.ok()) << generation.status().message();
  EXPECT_EQ(generation.value().eos_token_ids, std::vector<std::int32_t>{kEnd});
}

}  // namespace
}  // namespace tidemill::examples
