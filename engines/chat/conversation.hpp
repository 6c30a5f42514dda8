// SPDX-License-Identifier: Apache-2.0
// Conversations made here rather than read: a message, and a system message before others.
#pragma once

#include <string>
#include <string_view>

#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {

/// Returns `{"role": role, "content": content}`.
[[nodiscard]] Value make_message(const char* role, const std::string& content);

/// Whether `message` is by `speaker`.
[[nodiscard]] bool is_by(const Value& message, std::string_view speaker);

/// Returns `messages` behind a system message, unless `system` is empty or they begin with one.
[[nodiscard]] Value with_system(List messages, const std::string& system);

}  // namespace tidemill::engines::chat
