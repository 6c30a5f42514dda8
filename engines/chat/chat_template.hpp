// SPDX-License-Identifier: Apache-2.0
// Renders conversations to text with the chat template of a model.
//
// A template is written in Jinja as Hugging Face's transformers runs it: with trim_blocks and
// lstrip_blocks, break and continue, `raise_exception`, `strftime_now`, `tojson` without HTML
// escaping, and {% generation %} blocks, which mark the text that the model generates.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/rendering.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Where the rendered text ends.
enum class Ending : std::uint8_t {
  kPlain,             // after the last message
  kGenerationPrompt,  // after the header of a response
  kContinueFinal,     // at the end of the content of the last message, so that it can be continued
};

/// A conversation and the other inputs of a template.
struct ChatRequest {
  Value messages;   // a list of mappings
  Value tools;      // a list of mappings, or none
  Value documents;  // a list of mappings, or none
  Ending ending = Ending::kPlain;
  /// The time for strftime_now, "YYYY-MM-DDTHH:MM:SS". If it is empty, a template that calls
  /// strftime_now fails.
  std::string now;
  /// Further variables, such as bos_token. If a name occurs twice, the later value is used.
  std::vector<std::pair<std::string, Value>> variables;

  /// Parses a JSON object with the members `messages`, `tools`, `documents`,
  /// `add_generation_prompt`, `continue_final_message` and `now`. All other members are variables.
  /// Errors: `kCorruptData` (not JSON), `kInvalidArgument` (a wrong type, or conflicting members);
  /// messages name the member.
  [[nodiscard]] static Result<ChatRequest> from_json(std::string_view text);
};

/// A parsed chat template. Immutable; copies share the data.
///
/// The steps, bytes and depth of a rendering are limited (budget.hpp).
/// Threads: `render` is safe to call concurrently.
class ChatTemplate {
public:
  /// The maximum size of a template.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20U;

  /// Parses a template.
  /// Errors: `kInvalidArgument`; the message is "line N: REASON".
  [[nodiscard]] static Result<ChatTemplate> parse(std::string_view text);

  /// Renders a conversation. First, keys whose value is null are removed from messages, but not
  /// from values inside messages, tools and documents. If a message has any of reasoning_content,
  /// thinking and reasoning, the value of the first of these is also stored under thinking and
  /// reasoning_content unless they are set.
  /// Source: `apply_chat_template` of transformers 5.23.
  /// Errors: `kInvalidArgument` (an invalid request, an operation that fails, or a call of
  /// raise_exception), `kResourceExhausted` (a limit is reached). If the template fails, the
  /// message is "line N: REASON". For raise_exception, REASON is exactly the template's message.
  [[nodiscard]] Result<Rendering> render(const ChatRequest& request) const;

private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tidemill::engines::chat
