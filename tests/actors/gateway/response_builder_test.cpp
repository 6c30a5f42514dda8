// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/response_builder.hpp"

#include <nlohmann/json.hpp>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/gateway/served_model.hpp"

namespace tidemill::test {
namespace {

using actors::TokenEvent;
using actors::openai::GenerationCall;
using actors::openai::GenerationForm;
using actors::openai::ResponseBuilder;
using engines::FinishReason;
using engines::RolloutResult;
using json = nlohmann::json;

// Returns the data of the events of a stream; the end mark becomes null.
std::vector<json> events_of(const std::string& text) {
  std::vector<json> events;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find("\n\n", begin);
    EXPECT_NE(end, std::string::npos);
    EXPECT_EQ(text.substr(begin, 6), "data: ");
    const std::string data = text.substr(begin + 6, end - begin - 6);
    events.push_back(data == "[DONE]" ? json() : json::parse(data));
    begin = end + 2;
  }
  return events;
}

class ResponseBuilderTest : public ::testing::Test {
protected:
  ResponseBuilder reply(GenerationForm form, const std::string& members) {
    const std::string prompt = form == GenerationForm::kChat
                                   ? R"("messages": [{"role": "user", "content": "hi"}])"
                                   : R"("prompt": "hi")";
    auto call = actors::openai::parse_generation(
        form, R"({"model": "base", )" + prompt + members + "}", *model_, "");
    EXPECT_EQ(call.index(), 0U);
    return ResponseBuilder(std::get<GenerationCall>(std::move(call)), *model_, "id-1", 17);
  }

  static TokenEvent tokens(std::size_t first, std::string_view text) {
    TokenEvent event;
    event.first = first;
    event.ids = byte_ids(text);
    event.behavior_logprobs.assign(event.ids.size(), -0.5F);
    return event;
  }
  static RolloutResult result(std::string_view text, FinishReason reason = FinishReason::kLength) {
    RolloutResult made;
    made.response_ids = byte_ids(text);
    made.behavior_logprobs.assign(made.response_ids.size(), -0.5F);
    made.versions = {{PolicyVersion{0, 0, 3}, static_cast<std::uint32_t>(text.size())}};
    made.finish_reason = reason;
    made.cached_tokens = 1;
    return made;
  }

  std::shared_ptr<actors::ServedModel> model_ = make_served_model();
};

TEST_F(ResponseBuilderTest, MakesACompletion) {
  ResponseBuilder made = reply(GenerationForm::kCompletion, R"(, "n": 2)");
  EXPECT_EQ(made.on_result(1, result("two")), "");
  EXPECT_FALSE(made.complete());
  EXPECT_EQ(made.on_result(0, result("one", FinishReason::kStop)), "");
  EXPECT_TRUE(made.complete());
  const json body = json::parse(made.body().to_line());
  EXPECT_EQ(body, json::parse(R"({
    "id": "id-1", "object": "text_completion", "created": 17, "model": "base",
    "choices": [{"index": 0, "text": "one", "logprobs": null, "finish_reason": "stop"},
                {"index": 1, "text": "two", "logprobs": null, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8,
              "prompt_tokens_details": {"cached_tokens": 1}, "weight_version": "0.0.3"}})"))
      << body;
}

TEST_F(ResponseBuilderTest, MakesAChatMessage) {
  ResponseBuilder made = reply(GenerationForm::kChat, "");
  RolloutResult ended = result("yes", FinishReason::kStop);
  ended.response_ids.push_back(256);  // the end token
  ended.behavior_logprobs.push_back(-0.1F);
  (void)made.on_result(0, ended);
  const json body = json::parse(made.body().to_line());
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"], json::parse(R"([{"index": 0, "finish_reason": "stop",
      "message": {"role": "assistant", "content": "yes"}, "logprobs": null}])"));
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(ResponseBuilderTest, StreamsAChatMessage) {
  ResponseBuilder made = reply(GenerationForm::kChat,
                               R"(, "stream": true, "stream_options": {"include_usage": true})");
  std::string text = made.begin();
  text += made.on_tokens(0, tokens(0, "a"));
  text += made.on_tokens(0, tokens(0, "a"));  // a repeated message adds nothing
  text += made.on_tokens(0, tokens(1, "\xC3"));
  text += made.on_tokens(0, tokens(2, "\xA4"));
  text += made.on_result(0, result("a\xC3\xA4z"));
  text += made.end_stream();
  const std::vector<json> events = events_of(text);
  ASSERT_EQ(events.size(), 6U) << text;
  EXPECT_EQ(events[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(events[0]["choices"][0]["delta"], (json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "a");
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], "\xC3\xA4");
  EXPECT_EQ(events[2]["choices"][0]["finish_reason"], json());
  EXPECT_EQ(events[3]["choices"][0]["delta"]["content"], "z");
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[3]["usage"], json());
  EXPECT_EQ(events[4]["choices"], json::array());
  EXPECT_EQ(events[4]["usage"]["completion_tokens"], 4);
  EXPECT_EQ(events[5], json());
}

TEST_F(ResponseBuilderTest, CutsStopStrings) {
  ResponseBuilder made = reply(GenerationForm::kCompletion, R"(, "stream": true, "stop": ["END"])");
  std::string text = made.on_tokens(0, tokens(0, "abE"));
  text += made.on_tokens(0, tokens(3, "N"));
  text += made.on_result(0, result("abEND", FinishReason::kStop));
  const std::vector<json> events = events_of(text);
  ASSERT_EQ(events.size(), 2U) << text;
  EXPECT_EQ(events[0]["choices"][0]["text"], "ab");
  EXPECT_EQ(events[1]["choices"][0]["text"], "");
  EXPECT_EQ(events[1]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ResponseBuilderTest, ReportsLogprobsOfChats) {
  ResponseBuilder made = reply(GenerationForm::kChat, R"(, "logprobs": true, "top_logprobs": 2)");
  RolloutResult ended = result("a\xC3");
  ended.top_logprobs = {{97, -0.5F}, {98, -1.5F}, {0xC3, -0.5F}, {99, -2.0F}};
  (void)made.on_result(0, ended);
  const json content = json::parse(made.body().to_line())["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content, json::parse(R"([
    {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
      {"token": "a", "logprob": -0.5, "bytes": [97]},
      {"token": "b", "logprob": -1.5, "bytes": [98]}]},
    {"token": "�", "logprob": -0.5, "bytes": [195], "top_logprobs": [
      {"token": "�", "logprob": -0.5, "bytes": [195]},
      {"token": "c", "logprob": -2.0, "bytes": [99]}]}])"))
      << content;
}

TEST_F(ResponseBuilderTest, EchoesPromptsWithLogprobs) {
  ResponseBuilder made =
      reply(GenerationForm::kCompletion, R"(, "echo": true, "logprobs": 1, "max_tokens": 1)");
  RolloutResult ended = result("x");
  ended.top_logprobs = {{121, -0.25F}};
  ended.prompt_logprobs = {-3.0F};
  ended.prompt_top_logprobs = {{105, -3.0F}};
  (void)made.on_result(0, ended);
  const json choice = json::parse(made.body().to_line())["choices"][0];
  EXPECT_EQ(choice["text"], "hix");
  EXPECT_EQ(choice["logprobs"], json::parse(R"({
    "tokens": ["h", "i", "x"], "token_logprobs": [null, -3.0, -0.5],
    "top_logprobs": [null, {"i": -3.0}, {"y": -0.25}], "text_offset": [0, 1, 2]})"))
      << choice;
}

TEST_F(ResponseBuilderTest, ReportsCallsOfTools) {
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "add"}}])";
  const std::string text = R"(Hm.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>)";
  ResponseBuilder whole = reply(GenerationForm::kChat, tools);
  (void)whole.on_result(0, result(text, FinishReason::kStop));
  const json choice = json::parse(whole.body().to_line())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"], json::parse(R"({"role": "assistant", "content": "Hm.",
      "tool_calls": [{"id": "call-id-1-0-0", "type": "function",
                      "function": {"name": "add", "arguments": "{\"a\":1}"}}]})"));

  ResponseBuilder streamed = reply(GenerationForm::kChat, tools + R"(, "stream": true)");
  std::string sent;
  for (std::size_t i = 0; i < text.size(); ++i) {
    sent += streamed.on_tokens(0, tokens(i, std::string_view(text).substr(i, 1)));
  }
  sent += streamed.on_result(0, result(text, FinishReason::kStop));
  std::string content;
  json calls = json::array();
  for (const json& event : events_of(sent)) {
    const json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    for (const json& call : delta.value("tool_calls", json::array())) {
      calls.push_back(call);
    }
  }
  EXPECT_EQ(content, "Hm.");
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0]["index"], 0);
  EXPECT_EQ(calls[0]["function"]["arguments"], R"({"a":1})");
}

TEST_F(ResponseBuilderTest, StreamsAnEchoedPromptFirst) {
  ResponseBuilder made = reply(GenerationForm::kCompletion, R"(, "echo": true, "stream": true)");
  std::string text = made.begin();
  text += made.on_tokens(0, tokens(0, "a"));
  text += made.on_result(0, result("ab"));
  const std::vector<json> events = events_of(text);
  ASSERT_EQ(events.size(), 3U) << text;
  EXPECT_EQ(events[0]["choices"][0]["text"], "hi");
  EXPECT_EQ(events[1]["choices"][0]["text"], "a");
  EXPECT_EQ(events[2]["choices"][0]["text"], "b");
}

// Every token's log-probability is in exactly one event, even if its text is held back.
TEST_F(ResponseBuilderTest, StreamsEveryLogprobOnce) {
  ResponseBuilder made =
      reply(GenerationForm::kCompletion, R"(, "stream": true, "logprobs": 0, "stop": ["END"])");
  std::string text = made.on_tokens(0, tokens(0, "aE"));
  text += made.on_tokens(0, tokens(2, "N"));
  text += made.on_result(0, result("aENx"));
  std::vector<std::string> seen;
  std::vector<int> offsets;
  for (const json& event : events_of(text)) {
    for (const json& token : event["choices"][0]["logprobs"]["tokens"]) {
      seen.push_back(token);
    }
    for (const json& offset : event["choices"][0]["logprobs"]["text_offset"]) {
      offsets.push_back(offset);
    }
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"a", "E", "N", "x"}));
  EXPECT_EQ(offsets, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace tidemill::test
