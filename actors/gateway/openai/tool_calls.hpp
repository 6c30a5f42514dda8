// SPDX-License-Identifier: Apache-2.0
// Calls of tools in the text of a response.
//
// Models write calls in one of two forms:
//
//   tags   <tool_call>{"name": NAME, "arguments": {...}}</tool_call>, any number of times, between
//          other text. Source: the chat templates of Qwen2.5, Qwen3 and Hermes 2 Pro.
//   plain  the whole text is {"name": NAME, "parameters": {...}} or a list of such objects.
//          Source: the chat template of Llama 3.1.
//
// Both accept `arguments` and `parameters`. What cannot be read as a call of one of the request's
// tools stays text.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemill::actors::openai {

/// A call that a response makes: the name of a tool and the values of its parameters.
struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

/// The next text and the next calls of a response. Where the calls were in the text is not kept.
struct ToolPiece {
  std::string text;
  std::vector<ToolCall> calls;
};

/// Separates text and calls while a response arrives. Text is held back only while it may be part
/// of a call.
///
/// The concatenated text and the list of calls do not depend on where the response is cut.
class ToolCallReader {
public:
  /// `tools` are the names of the tools that the response may call.
  explicit ToolCallReader(std::set<std::string> tools = {}) : tools_(std::move(tools)) {}

  /// Takes the next text of the response.
  [[nodiscard]] ToolPiece push(std::string_view text);
  /// Takes the end of the response.
  [[nodiscard]] ToolPiece finish();

private:
  enum class State : std::uint8_t {
    kStart,  // only white space has arrived
    kText,
    kTag,    // after <tool_call>
    kPlain,  // the text begins like plain calls
  };

  void read_held(ToolPiece& piece);

  std::set<std::string> tools_;
  State state_ = State::kStart;
  std::string held_;
};

}  // namespace tidemill::actors::openai
