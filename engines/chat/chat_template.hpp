// SPDX-License-Identifier: Apache-2.0
// Conversations to text, by the chat template of a model.
//
// A template is written in Jinja as Hugging Face's transformers runs it: trim_blocks and
// lstrip_blocks, break and continue, `raise_exception`, `strftime_now`, `tojson` without HTML
// escaping, and {% generation %} blocks that mark what the model is to produce.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "engines/chat/interpreter.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Whether the text ends where an answer begins, or goes on inside the last message.
enum class Ending : std::uint8_t {
  kPlain,             // after the last message
  kGenerationPrompt,  // after the header of an answer
  kContinueFinal,     // inside the last message, which is cut where its content ends
};

/// A conversation and what else a template may ask for.
struct ChatRequest {
  Value messages;   // a list of mappings
  Value tools;      // a list of mappings, or none
  Value documents;  // a list of mappings, or none
  Ending ending = Ending::kPlain;
  /// What strftime_now reads, "YYYY-MM-DDTHH:MM:SS"; empty: a template that asks for it fails.
  std::string now;
  /// Further variables, such as bos_token; a later one of the same name wins.
  std::vector<std::pair<std::string, Value>> variables;

  /// Reads one JSON object: `messages`, `tools`, `documents`, `add_generation_prompt`,
  /// `continue_final_message`, `now`; all other members are variables.
  /// Errors: `kCorruptData` (not JSON), `kInvalidArgument` (a wrong type); messages name the
  /// member.
  [[nodiscard]] static Result<ChatRequest> from_json(std::string_view text);
};

/// A parsed chat template. Immutable; copies share it.
///
/// Rendering is bounded in steps, bytes and depth (budget.hpp), whatever the template does.
/// Threads: `render` is safe to call concurrently.
class ChatTemplate {
public:
  /// A template is at most this long.
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20U;

  /// Parses a template.
  /// Errors: `kInvalidArgument`; the message is "line N: REASON".
  [[nodiscard]] static Result<ChatTemplate> parse(std::string_view text);

  /// Renders a conversation. Before it, keys of messages whose value is null are removed, and
  /// reasoning_content, thinking and reasoning of a message fill each other in.
  /// Errors: `kInvalidArgument` (a request that is no conversation, an operation that fails, a call
  /// of raise_exception), `kResourceExhausted` (a bound is reached). Failures of the template read
  /// "line N: REASON"; for raise_exception REASON is exactly what the template says.
  [[nodiscard]] Result<Rendering> render(const ChatRequest& request) const;

private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}

  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace tidemill::engines::chat
