// SPDX-License-Identifier: Apache-2.0
// Builds conversations: single messages, a system message before others, contents in parts. Finds
// out which of them a template renders.
#pragma once

#include <string>
#include <string_view>

#include "engines/chat/chat_template.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns `{"role": role, "content": content}`.
[[nodiscard]] Value make_message(const char* role, const std::string& content);

/// Returns whether `message` has the role `role`.
[[nodiscard]] bool has_role(const Value& message, std::string_view role);

/// Returns `messages` with the system message `system` before them. Adds no message if `system` is
/// empty or `messages` already begin with a system message.
[[nodiscard]] Value with_system_message(List messages, const std::string& system);

/// Returns `messages`, with the texts of a content joined to one string if the content is a list of
/// text parts only: `{"type": "text", "text": TEXT}`. For templates that render only strings.
[[nodiscard]] List with_joined_parts(List messages);

/// Returns `messages`, with the arguments of tool calls as objects, which chat templates expect, if
/// they are the texts of objects, as in OpenAI's API.
[[nodiscard]] List with_parsed_arguments(List messages);

/// Returns whether a template renders a content that is a list of text parts by itself. Renders
/// such a message with the other inputs of `request`.
[[nodiscard]] bool renders_parts(const ChatTemplate& chat, ChatRequest request);

/// Returns whether the text of a template has a `{% generation %}` tag.
[[nodiscard]] bool has_generation_tag(std::string_view text);

}  // namespace tidemill::engines::chat
