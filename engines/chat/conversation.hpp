// SPDX-License-Identifier: Apache-2.0
// Builds conversations: single messages, and a system message before others.
#pragma once

#include <string>
#include <string_view>

#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns `{"role": role, "content": content}`.
[[nodiscard]] Value make_message(const char* role, const std::string& content);

/// Returns whether `message` has the role `role`.
[[nodiscard]] bool has_role(const Value& message, std::string_view role);

/// Returns `messages` with the system message `system` before them. Adds no message if `system` is
/// empty or `messages` already begin with a system message.
[[nodiscard]] Value with_system_message(List messages, const std::string& system);

}  // namespace tidemill::engines::chat
