// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/generation_call.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engines/constraint/constraint.hpp"
#include "tests/actors/gateway/served_model.hpp"

namespace tidemill::test {
namespace {

using actors::openai::ApiError;
using actors::openai::FieldUse;
using actors::openai::generation_fields;
using actors::openai::GenerationCall;
using actors::openai::GenerationForm;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

class GenerationCallTest : public ::testing::Test {
protected:
  auto parse(GenerationForm form, const std::string& body) {
    return actors::openai::parse_generation(form, body, *model_, "2026-01-02T03:04:05");
  }
  GenerationCall call(GenerationForm form, const std::string& body) {
    auto result = parse(form, body);
    const auto* error = std::get_if<ApiError>(&result);
    EXPECT_EQ(error, nullptr) << body << ": " << (error != nullptr ? error->message : "");
    return error != nullptr ? GenerationCall() : std::get<GenerationCall>(std::move(result));
  }
  GenerationCall completion(const std::string& members) {
    return call(GenerationForm::kCompletion, R"({"model": "base")" + members + "}");
  }
  GenerationCall chat(const std::string& members) {
    return call(
        GenerationForm::kChat,
        R"({"model": "base", "messages": [{"role": "user", "content": "hi"}])" + members + "}");
  }
  // Returns the error of a request.
  ApiError refused(GenerationForm form, const std::string& body) {
    auto result = parse(form, body);
    const auto* error = std::get_if<ApiError>(&result);
    EXPECT_NE(error, nullptr) << body;
    return error != nullptr ? *error : ApiError();
  }
  ApiError refused_completion(const std::string& members) {
    return refused(GenerationForm::kCompletion,
                   R"({"model": "base", "prompt": "x")" + members + "}");
  }
  ApiError refused_chat(const std::string& members) {
    return refused(
        GenerationForm::kChat,
        R"({"model": "base", "messages": [{"role": "user", "content": "hi"}])" + members + "}");
  }

  std::shared_ptr<actors::ServedModel> model_ = make_served_model();
};

TEST_F(GenerationCallTest, ReadsPromptsOfEveryForm) {
  EXPECT_EQ(completion(R"(, "prompt": "ab")").prompts[0].ids, byte_ids("ab"));
  EXPECT_EQ(completion(R"(, "prompt": "ab")").prompts[0].text, "ab");
  const GenerationCall texts = completion(R"(, "prompt": ["ab", "c"], "n": 3)");
  ASSERT_EQ(texts.prompts.size(), 2U);
  EXPECT_EQ(texts.prompts[1].ids, byte_ids("c"));
  EXPECT_EQ(texts.num_choices(), 6U);
  EXPECT_THAT(completion(R"(, "prompt": [5, 256])").prompts[0].ids, ElementsAre(5, 256));
  const GenerationCall ids = completion(R"(, "prompt": [[5], [6, 7]])");
  ASSERT_EQ(ids.prompts.size(), 2U);
  EXPECT_THAT(ids.prompts[1].ids, ElementsAre(6, 7));
  EXPECT_EQ(ids.prompts[1].text, std::nullopt);
}

TEST_F(GenerationCallTest, RendersMessages) {
  EXPECT_EQ(chat("").prompts[0].ids, byte_ids("<user>hi<assistant>"));
  EXPECT_EQ(chat(R"(, "add_generation_prompt": false)").prompts[0].ids, byte_ids("<user>hi"));
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {"extra": "!"})").prompts[0].ids,
            byte_ids("<user>hi<assistant>!"));
  const GenerationCall parts = call(GenerationForm::kChat,
                                    R"({"model": "base", "messages": [{"role": "user", "content":
          [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  EXPECT_THAT(*parts.prompts[0].text, HasSubstr("b"));
  const GenerationCall continued =
      call(GenerationForm::kChat,
           R"({"model": "base", "continue_final_message": true, "messages":
          [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ye"}]})");
  EXPECT_EQ(continued.prompts[0].ids, byte_ids("<user>hi<assistant>ye"));
}

TEST_F(GenerationCallTest, GivesToolsToTheTemplate) {
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "add"}}])";
  const GenerationCall made = chat(tools);
  EXPECT_THAT(made.tools, ElementsAre("add"));
  EXPECT_EQ(made.prompts[0].ids, byte_ids("<user>hi<tools:1><assistant>"));
  EXPECT_TRUE(chat(tools + R"(, "parallel_tool_calls": false)").first_tool_call_only);
  for (const std::string& none :
       {std::string(R"(, "tools": [])"), tools + R"(, "tool_choice": "none")"}) {
    EXPECT_TRUE(chat(none).tools.empty());
    EXPECT_EQ(chat(none).prompts[0].ids, byte_ids("<user>hi<assistant>"));
  }
}

// OpenAI's API has the arguments of a call as text, chat templates have them as a mapping.
TEST_F(GenerationCallTest, ParsesTheArgumentsOfEarlierCalls) {
  engines::TokenizerConfig config = model_->tokenizer.config();
  config.chat_templates["default"] =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %}"
      "{{ m.content }}{% endfor %}";
  model_->chat = engines::chat::ChatRenderer::open("base", config, std::nullopt).value();
  const GenerationCall made =
      call(GenerationForm::kChat,
           R"({"model": "base", "messages": [{"role": "assistant", "content": null, "tool_calls": [
          {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 7}"}}]},
          {"role": "tool", "tool_call_id": "1", "content": "ok"}]})");
  EXPECT_EQ(made.prompts.at(0).ids, byte_ids("7ok"));
}

TEST_F(GenerationCallTest, ReadsSettings) {
  const GenerationCall made = completion(
      R"(, "prompt": "x", "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1,
         "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5,
         "logit_bias": {"65": -100, "66": 1.5}, "seed": -3, "max_tokens": 5, "stop": "end",
         "stop_token_ids": [9], "logprobs": 2, "echo": true, "stream": true,
         "stream_options": {"include_usage": true, "include_obfuscation": false}, "user": "me", "best_of": 1, "suffix": null,
         "cache_salt": "mine")");
  const engines::SamplingOptions& sampling = made.settings.sampling;
  EXPECT_EQ(sampling.temperature, 0.5F);
  EXPECT_EQ(sampling.top_p, 0.9F);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.min_p, 0.1F);
  EXPECT_EQ(sampling.presence_penalty, 1.0F);
  EXPECT_EQ(sampling.frequency_penalty, -1.0F);
  EXPECT_EQ(sampling.repetition_penalty, 1.5F);
  EXPECT_THAT(sampling.logit_bias, ElementsAre(Pair(65, -100.0F), Pair(66, 1.5F)));
  EXPECT_EQ(made.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(made.settings.max_new_tokens, 5);
  EXPECT_THAT(made.settings.stop_strings, ElementsAre("end"));
  EXPECT_THAT(made.settings.stop_ids, ElementsAre(9, 256));
  EXPECT_TRUE(made.logprobs && made.echo && made.stream && made.include_usage);
  EXPECT_EQ(made.settings.top_logprobs, 2);
  EXPECT_TRUE(made.settings.prompt_logprobs);
  EXPECT_EQ(made.settings.prompt_top_logprobs, 2);
  EXPECT_EQ(made.settings.cache_salt, "mine");
}

TEST_F(GenerationCallTest, HasTheDefaultsOfOpenAi) {
  const GenerationCall made = completion(R"(, "prompt": "x")");
  EXPECT_EQ(made.settings.max_new_tokens, 16);
  EXPECT_EQ(made.settings.sampling.temperature, 1.0F);
  EXPECT_EQ(made.num_per_prompt, 1);
  EXPECT_FALSE(made.seed.has_value());
  EXPECT_FALSE(made.logprobs);
  EXPECT_EQ(made.settings.cache_salt, "");
  EXPECT_THAT(made.settings.stop_ids, ElementsAre(256));
  EXPECT_EQ(chat("").settings.max_new_tokens, 64 - 19);
  EXPECT_EQ(chat(R"(, "max_tokens": 3)").settings.max_new_tokens, 3);
  EXPECT_EQ(chat(R"(, "max_completion_tokens": 4, "max_tokens": 4)").settings.max_new_tokens, 4);
  EXPECT_TRUE(chat(R"(, "ignore_eos": true)").settings.stop_ids.empty());
  model_->max_new_tokens = 8;
  EXPECT_EQ(chat("").settings.max_new_tokens, 8);
}

TEST_F(GenerationCallTest, NamesTheOffendingField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"(, "temperature": 3)", "temperature"},
      {R"(, "temperature": "hot")", "temperature"},
      {R"(, "temperature": 0.0001)", "temperature"},
      {R"(, "temperature": 1e-300)", "temperature"},
      {R"(, "top_p": 0)", "top_p"},
      {R"(, "top_k": 1.5)", "top_k"},
      {R"(, "n": 0)", "n"},
      {R"(, "n": 100000)", "n"},
      {R"(, "max_tokens": 0)", "max_tokens"},
      {R"(, "max_tokens": 1e400)", ""},
      {R"(, "logprobs": 21)", "logprobs"},
      {R"(, "stop": "")", "stop"},
      {R"(, "stop": [1])", "stop"},
      {R"(, "logit_bias": {"257": 1})", "logit_bias"},
      {R"(, "logit_bias": {"a": 1})", "logit_bias"},
      {R"(, "logit_bias": {"5": 101})", "logit_bias"},
      {R"(, "stream_options": {"include_usage": true})", "stream_options"},
      {R"(, "stream": true, "stream_options": {"x": 1})", "stream_options.x"},
      {R"(, "stream": true, "stream_options": {"include_obfuscation": true})",
       "stream_options.include_obfuscation"},
      {R"(, "best_of": 2)", "best_of"},
      {R"(, "suffix": "x")", "suffix"},
      {R"(, "grammar": "x")", "grammar"},
      {R"(, "echo": 1)", "echo"},
      {R"(, "seed": 1.5)", "seed"},
      {R"(, "cache_salt": "")", "cache_salt"},
      {R"(, "cache_salt": 7)", "cache_salt"},
      {R"(, "cache_salt": ")" + std::string(1025, 'x') + "\"", "cache_salt"},
  };
  for (const auto& [members, field] : cases) {
    const ApiError error = refused_completion(members);
    EXPECT_EQ(error.status, 400U);
    EXPECT_EQ(error.param, field) << members << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(field));
  }
  EXPECT_EQ(refused_completion(R"(, "max_tokens": 9223372036854775808)").message,
            "max_tokens: must be an integer of at most 9223372036854775807");
  EXPECT_EQ(refused_completion(R"(, "seed": 18446744073709551616)").message,
            "seed: must be an integer of at most 9223372036854775807");
  EXPECT_EQ(refused_completion(R"(, "max_tokens": 2.5)").message,
            "max_tokens: must be an integer of at least 1");
  EXPECT_EQ(refused_chat(R"(, "top_logprobs": 2)").param, "top_logprobs");
  EXPECT_EQ(refused_chat(R"(, "tools": 1)").param, "tools");
  EXPECT_EQ(refused_chat(R"(, "tools": [{"type": "function"}])").param, "tools[0]");
  EXPECT_EQ(refused_chat(R"(, "tool_choice": "required")").message, "tool_choice: needs tools");
  EXPECT_EQ(refused_chat(R"(, "functions": [])").param, "functions");
  EXPECT_EQ(refused_chat(R"(, "max_completion_tokens": 4, "max_tokens": 5)").param, "max_tokens");
}

// Returns whether a response that is not constrained may be this text, or one that is.
bool permits(const GenerationCall& call, std::string_view text) {
  if (!call.settings.constraint.is_set) {
    return true;
  }
  engines::ConstraintState state(call.settings.constraint.constraint);
  for (const std::int32_t id : byte_ids(text)) {
    if (!state.accept(id).ok()) {
      return false;
    }
  }
  return state.may_end();
}

TEST_F(GenerationCallTest, ConstrainsTheFormat) {
  EXPECT_FALSE(chat(R"(, "response_format": {"type": "text"})").settings.constraint.is_set);
  EXPECT_FALSE(chat("").settings.constraint.is_set);
  const GenerationCall object = chat(R"(, "response_format": {"type": "json_object"})");
  EXPECT_TRUE(permits(object, R"({"a": [1]})"));
  EXPECT_FALSE(permits(object, "[1]"));
  const std::string format =
      R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
          "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                     "additionalProperties": false}}})";
  const GenerationCall schema = chat(format);
  EXPECT_TRUE(permits(schema, R"({"a":1})"));
  EXPECT_FALSE(permits(schema, R"({"a":"1"})"));
  EXPECT_FALSE(permits(schema, R"({})"));
  EXPECT_EQ(chat(format).settings.constraint.constraint, schema.settings.constraint.constraint)
      << "is compiled once";
  const GenerationCall completed = completion(R"(, "prompt": "ab")" + format);
  EXPECT_TRUE(permits(completed, R"({"a":1})"));
  EXPECT_FALSE(permits(completed, "ab"));
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "add"}}])";
  EXPECT_TRUE(chat(format + tools + R"(, "tool_choice": "none")").settings.constraint.is_set);
}

TEST_F(GenerationCallTest, RefusesFormatsByPath) {
  const std::vector<std::array<std::string, 3>> cases = {
      {R"({"type": "xml"})", "response_format.type",
       R"(response_format.type: must be "text", "json_object" or "json_schema")"},
      {R"({"type": "json_object", "x": 1})", "response_format.x", ""},
      {R"({"type": "json_schema"})", "response_format.json_schema", ""},
      {R"({"type": "json_schema", "json_schema": {"name": "n"}})",
       "response_format.json_schema.schema",
       "response_format.json_schema.schema: missing; must be a JSON schema"},
      {R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "y": 1}})",
       "response_format.json_schema.y", ""},
      {R"({"type": "json_schema", "json_schema": {"name": "n", "schema":
          {"properties": {"x": {"type": "string", "contentEncoding": "base64"}}}}})",
       "response_format.json_schema.schema.properties.x.contentEncoding",
       "response_format.json_schema.schema.properties.x.contentEncoding: this keyword is not "
       "supported"},
      {R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": []}}})",
       "response_format.json_schema.schema", ""},
  };
  for (const auto& [format, param, message] : cases) {
    const ApiError error = refused_chat(R"(, "response_format": )" + format);
    EXPECT_EQ(error.status, 400U);
    EXPECT_EQ(error.param, param) << error.message;
    EXPECT_TRUE(message.empty() || error.message == message) << error.message;
  }
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "add"}}])";
  EXPECT_EQ(refused_chat(tools + R"(, "response_format": {"type": "json_object"})").message,
            R"(response_format: excludes tools, unless tool_choice is "none")");
  model_->constraints = nullptr;
  EXPECT_EQ(refused_chat(R"(, "response_format": {"type": "json_object"})").param,
            "response_format.type");
}

TEST_F(GenerationCallTest, ForcesCalls) {
  const std::string tools =
      R"(, "tools": [{"type": "function", "function": {"name": "add", "parameters":
          {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}},
          {"type": "function", "function": {"name": "now"}}])";
  const std::string add = R"({"name": "add", "arguments": {"x": 1}})";
  const std::string now = R"({"name": "now", "parameters": {}})";
  const GenerationCall any = chat(tools + R"(, "tool_choice": "required")");
  EXPECT_TRUE(permits(any, add));
  EXPECT_TRUE(permits(any, now));
  EXPECT_FALSE(permits(any, "text"));
  EXPECT_EQ(any.prompts[0].ids, byte_ids("<user>hi<tools:2><assistant>"));
  const GenerationCall one =
      chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "now"}})");
  EXPECT_TRUE(permits(one, now));
  EXPECT_FALSE(permits(one, add));
  EXPECT_FALSE(chat(tools + R"(, "tool_choice": "auto")").settings.constraint.is_set);
  EXPECT_TRUE(chat(tools + R"(, "tool_choice": "required", "response_format": {"type": "text"})")
                  .settings.constraint.is_set);

  EXPECT_EQ(
      refused_chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "x"}})")
          .message,
      "tool_choice: \"x\" is none of the tools");
  EXPECT_EQ(refused_chat(tools + R"(, "tool_choice": {"type": "function"})").param, "tool_choice");
  EXPECT_EQ(refused_chat(tools + R"(, "tool_choice": "x")").param, "tool_choice");
  EXPECT_EQ(refused_chat(R"(, "tool_choice": "required", "tools": [{"type": "function", "function":
      {"name": "f", "parameters": {"not": {}}}}])")
                .param,
            "tools[0].function.parameters.not");
}

TEST_F(GenerationCallTest, ForcesCallsWithTheTagsOfTheTemplate) {
  engines::TokenizerConfig config = model_->tokenizer.config();
  config.chat_templates["default"] = "{% if tools %}<tool_call>{% endif %}{{ messages | length }}";
  model_->chat = engines::chat::ChatRenderer::open("base", config, std::nullopt).value();
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  const GenerationCall many = chat(tools + R"(, "tool_choice": "required")");
  EXPECT_TRUE(permits(many, call));
  EXPECT_TRUE(permits(many, call + "\n" + call));
  const GenerationCall one =
      chat(tools + R"(, "tool_choice": "required", "parallel_tool_calls": false)");
  EXPECT_TRUE(permits(one, call));
  EXPECT_FALSE(permits(one, call + "\n" + call));
}

TEST_F(GenerationCallTest, RefusesPromptsThatCannotBeUsed) {
  const auto param = [&](const std::string& body) {
    return refused(GenerationForm::kCompletion, body).param;
  };
  EXPECT_EQ(param(R"({"model": "base"})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": ""})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": []})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": [[]]})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": [257]})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": [-1]})"), "prompt");
  EXPECT_EQ(param(R"({"model": "base", "prompt": ["a", 1]})"), "prompt");
  EXPECT_EQ(param(R"({"prompt": "a"})"), "model");
  EXPECT_EQ(param("[]"), "");
  EXPECT_EQ(param("{"), "");
  EXPECT_EQ(param(std::string(100, '[')), "");
  const ApiError full = refused(GenerationForm::kCompletion,
                                R"({"model": "base", "prompt": ")" + std::string(60, 'x') + "\"}");
  EXPECT_EQ(full.code, "context_length_exceeded");
  EXPECT_EQ(full.message, "prompt: 60 tokens and 16 new tokens exceed the context of 64 tokens");
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    const ApiError wide =
        refused(GenerationForm::kChat,
                R"({"model": "base", "messages": [{"role": "user", "content": "x"}], ")" +
                    std::string(field) + R"(": 65})");
    EXPECT_EQ(wide.code, "context_length_exceeded");
    EXPECT_EQ(wide.message, field + std::string(": 65 tokens exceed the context of 64 tokens"));
  }
  const auto chat_param = [&](const std::string& messages) {
    return refused(GenerationForm::kChat, R"({"model": "base", "messages": )" + messages + "}")
        .param;
  };
  EXPECT_EQ(chat_param("[]"), "messages");
  EXPECT_EQ(chat_param("1"), "messages");
  EXPECT_EQ(chat_param("[1]"), "messages[0]");
  EXPECT_EQ(chat_param(R"([{"content": "x"}])"), "messages[0]");
  EXPECT_EQ(chat_param(R"([{"role": "user", "content": 1}])"), "messages[0].content");
  EXPECT_EQ(chat_param(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "messages[0].content");
  std::string many = R"([{"role": "user", "content": ""})";
  for (std::int64_t i = 0; i < model_->max_positions; ++i) {
    many += R"(, {"role": "user", "content": ""})";
  }
  const ApiError crowded =
      refused(GenerationForm::kChat, R"({"model": "base", "messages": )" + many + "]}");
  EXPECT_EQ(crowded.param, "messages");
  EXPECT_EQ(crowded.code, "context_length_exceeded");
  EXPECT_THAT(crowded.message, HasSubstr(" messages, and the context has "));
  model_->chat.reset();
  EXPECT_EQ(refused_chat("").message,
            "messages: the model has no chat template; use /v1/completions, or add "
            "chat_template.jinja to the model's directory and restart the server");
}

TEST_F(GenerationCallTest, RefusesLongTextsBeforeTheyAreEncoded) {
  // The tokenizer encodes no text of this size, and would say so.
  const std::string large(engines::Tokenizer::kMaxTextBytes + 1, 'x');
  const auto of_text = [](const std::string& text) {
    return R"({"model": "base", "prompt": ")" + text + "\"}";
  };
  for (const std::string& body : {of_text(large), of_text(std::string(150, 'x')),
                                  R"({"model": "base", "prompt": ["a", ")" + large + "\"]}"}) {
    const ApiError early = refused(GenerationForm::kCompletion, body);
    EXPECT_EQ(early.status, 400U);
    EXPECT_EQ(early.param, "prompt");
    EXPECT_EQ(early.code, "context_length_exceeded");
    EXPECT_THAT(early.message, StartsWith("prompt: at least "));
    EXPECT_THAT(early.message,
                HasSubstr(" tokens and 16 new tokens exceed the context of 64 tokens"));
  }
  EXPECT_THAT(refused(GenerationForm::kCompletion, of_text(std::string(128, 'x'))).message,
              StartsWith("prompt: 128 tokens and "));
  const ApiError chat =
      refused(GenerationForm::kChat,
              R"({"model": "base", "messages": [{"role": "user", "content": ")" + large + "\"}]}");
  EXPECT_EQ(chat.param, "messages");
  EXPECT_EQ(chat.code, "context_length_exceeded");
  std::string ids = "[5";
  for (int i = 0; i < 64; ++i) {
    ids += ", 5";
  }
  for (const std::string& prompt : {ids + "]", "[" + ids + "]]"}) {
    const ApiError many =
        refused(GenerationForm::kCompletion, R"({"model": "base", "prompt": )" + prompt + "}");
    EXPECT_EQ(many.code, "context_length_exceeded");
    EXPECT_THAT(many.message, StartsWith("prompt: 65 tokens and "));
  }
}

// A template may leave parts of messages out.
TEST_F(GenerationCallTest, OnlyWhatTheTemplateWritesCounts) {
  engines::TokenizerConfig config = model_->tokenizer.config();
  config.chat_templates["default"] = "{{ messages[-1].content[:3] }}";
  model_->chat = engines::chat::ChatRenderer::open("base", config, std::nullopt).value();
  const GenerationCall made = call(GenerationForm::kChat, R"({"model": "base", "messages":
      [{"role": "user", "content": ")" + std::string(5000, 'x') +
                                                              "\"}]}");
  EXPECT_EQ(made.prompts.at(0).ids, byte_ids("xxx"));
}

TEST_F(GenerationCallTest, CountsPromptsBeforeTheyAreEncoded) {
  std::string prompts = "\"\"";
  for (int i = 0; i < 512; ++i) {
    prompts += ", \"\"";
  }
  EXPECT_EQ(refused(GenerationForm::kCompletion,
                    R"({"model": "base", "n": 2, "prompt": [)" + prompts + "]}")
                .param,
            "n");
}

// A small body must not make the server hold or compute much.
TEST_F(GenerationCallTest, LimitsTheSizeOfARequest) {
  std::string ids = "1";
  std::string bias = R"("1": 1)";
  for (int i = 0; i < 1100; ++i) {
    ids += ",1";
    bias += ", \"" + std::to_string(i % 200 + 2) +
            std::string(static_cast<std::size_t>(i / 200), ' ') + "\": 1";
  }
  EXPECT_EQ(refused_completion(R"(, "stop_token_ids": [)" + ids + "]").param, "stop_token_ids");
  EXPECT_EQ(refused_completion(R"(, "logit_bias": {)" + bias + "}").param, "logit_bias");
  EXPECT_EQ(refused_completion(R"(, "logit_bias": {"01": 1})").param, "logit_bias");
  model_->max_positions = 100'000;
  EXPECT_EQ(refused_completion(R"(, "n": 1000, "max_tokens": 90000)").param, "prompt");
  EXPECT_EQ(refused_completion(R"(, "n": 40, "max_tokens": 90000, "logprobs": 5)").param,
            "logprobs");
  EXPECT_EQ(completion(R"(, "prompt": "x", "n": 40, "max_tokens": 90000)").num_per_prompt, 40);
}

TEST_F(GenerationCallTest, LimitsTheValuesOfAChat) {
  std::string list = "0";
  for (std::size_t i = 0; i < actors::openai::kMaxChatValues; ++i) {
    list += ",0";
  }
  EXPECT_THAT(refused_chat(R"(, "chat_template_kwargs": {"extra": [)" + list + "]}").message,
              HasSubstr("more than 100000 JSON values"));
  const ApiError calls =
      refused(GenerationForm::kChat,
              R"({"model": "base", "messages": [{"role": "assistant", "tool_calls": [{"function":
          {"arguments": "[)" +
                  std::string(actors::openai::kMaxArgumentBytes, ' ') + R"(]"}}]}]})");
  EXPECT_THAT(calls.message, HasSubstr("the arguments of tool calls have more than"));
}

TEST_F(GenerationCallTest, AcceptsValuesThatAskForWhatTheServerDoes) {
  for (const char* field :
       {R"("store": false)", R"("service_tier": "auto")", R"("service_tier": "default")",
        R"("modalities": ["text"])", R"("parallel_tool_calls": true)", R"("user": "a")",
        R"("metadata": {"a": "b"})"}) {
    (void)chat(std::string(", ") + field);
  }
  for (const char* field : {R"("store": true)", R"("service_tier": "flex")",
                            R"("modalities": ["text", "audio"])", R"("service_tier": "")"}) {
    EXPECT_NE(refused_chat(std::string(", ") + field).param, "") << field;
  }
}

TEST_F(GenerationCallTest, NamesResponseFormatToThoseWhoUseFieldsOfOtherServers) {
  for (const char* name : {"guided_json", "guided_regex", "structured_outputs"}) {
    EXPECT_EQ(refused_chat(std::string(", \"") + name + "\": {}").message,
              std::string(name) + ": not supported: use response_format");
  }
}

TEST_F(GenerationCallTest, SaysWhyItHasNoFieldsOfOtherServers) {
  EXPECT_EQ(refused_chat(R"(, "min_tokens": 4)").message,
            "min_tokens: not supported: a response may end at any token; ignore_eos ignores the "
            "end tokens");
  EXPECT_EQ(refused_chat(R"(, "prompt_logprobs": 1)").message,
            "prompt_logprobs: not supported: use echo and logprobs of /v1/completions");
  EXPECT_EQ(refused_chat(R"(, "lora_request": {})").message,
            "lora_request: not supported: the field model names the adapter");
}

TEST_F(GenerationCallTest, HasOneRuleForEachField) {
  for (const GenerationForm form : {GenerationForm::kCompletion, GenerationForm::kChat}) {
    std::vector<std::string_view> names;
    for (const auto& rule : generation_fields(form)) {
      names.push_back(rule.name);
      EXPECT_EQ(rule.remark.empty(), rule.use == FieldUse::kUsed) << rule.name;
    }
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  }
}

TEST_F(GenerationCallTest, FieldsAreDocumented) {
  std::ifstream file(TIDEMILL_SOURCE_DIR "/docs/serving.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  const std::size_t begin = page.find("## Request parameters");
  ASSERT_NE(begin, std::string::npos);
  const std::string table = page.substr(begin, page.find("\n## ", begin + 1) - begin);
  for (const GenerationForm form : {GenerationForm::kCompletion, GenerationForm::kChat}) {
    for (const auto& rule : generation_fields(form)) {
      const bool named = table.find("`" + std::string(rule.name)) != std::string::npos;
      EXPECT_TRUE(named || rule.use == FieldUse::kRefused) << rule.name;
    }
  }
}

}  // namespace
}  // namespace tidemill::test
