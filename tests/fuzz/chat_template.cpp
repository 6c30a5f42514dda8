// SPDX-License-Identifier: Apache-2.0
// Fuzzes chat templates. The input is a template and, after a NUL byte, the text of a message. The
// template is parsed and rendered with every ending.
#include "engines/chat/chat_template.hpp"

#include <optional>

#include "base/check.hpp"
#include "base/text/utf8.hpp"
#include "engines/chat/conversation.hpp"
#include "tests/fuzz/target.hpp"

namespace tidemill::fuzz {
namespace {

namespace chat = engines::chat;

constexpr std::string_view kRequest = R"({
  "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who is there?"},
    {"role": "assistant", "content": null, "reasoning_content": "Ask the tool.", "tool_calls": [
      {"type": "function", "function": {"name": "look", "arguments": {"where": "door", "n": 2.5}}}]},
    {"role": "tool", "content": "Straße: 1 cat\n"},
    {"role": "user", "content": [{"type": "text", "text": "And now?"}, {"type": "image"}]}],
  "tools": [{"type": "function", "function": {"name": "look", "description": "Looks.",
    "parameters": {"type": "object", "properties": {"where": {"type": "string"}}}}}],
  "documents": [{"title": "A", "text": "B"}],
  "now": "2025-03-04T05:06:07", "bos_token": "<s>", "eos_token": "</s>", "thinking": true})";

chat::ChatRequest request_with(std::string_view text) {
  static const Result<chat::ChatRequest> fixed = chat::ChatRequest::from_json(kRequest);
  TIDEMILL_CHECK(fixed.ok()) << fixed.status().to_string();
  std::string content;
  static_cast<void>(append_repaired_utf8(text, content));
  chat::ChatRequest request = fixed.value();
  chat::List messages = request.messages.as_sequence().items;
  messages.push_back(chat::make_message("assistant", content));
  request.messages = chat::Value::sequence(std::move(messages));
  return request;
}

void require_sound(const chat::Rendering& rendering) {
  require(!find_invalid_utf8(rendering.text), "a rendering is valid UTF-8");
  const std::size_t length = count_code_points(rendering.text);
  std::size_t last = 0;
  for (const chat::CodePointSpan& span : rendering.generation_spans) {
    require(last <= span.begin && span.begin <= span.end && span.end <= length,
            "generation spans are inside the text, in order");
    last = span.end;
  }
}

}  // namespace

void chat_template(std::string_view input) {
  const auto parts = parts_of(input, 2);
  const auto parsed = chat::ChatTemplate::parse(parts[0]);
  if (!parsed.ok()) {
    require_refusal(parsed.status(), "line ");
    return;
  }
  chat::ChatRequest request = request_with(parts[1]);
  for (const auto ending :
       {chat::Ending::kPlain, chat::Ending::kGenerationPrompt, chat::Ending::kContinueFinal}) {
    request.ending = ending;
    const auto rendering = parsed.value().render(request);
    if (rendering.ok()) {
      require_sound(rendering.value());
    } else if (parts[0].find("raise_exception") == std::string_view::npos) {
      // The message of raise_exception is unchanged text of the template, including line breaks.
      require_refusal(rendering.status(), ending == chat::Ending::kContinueFinal ? "" : "line ");
    }
    if (rendering.status().code() == Errc::kResourceExhausted) {
      return;  // the other endings would be as slow
    }
  }
}

}  // namespace tidemill::fuzz
