// SPDX-License-Identifier: Apache-2.0
#include "engines/chat/conversation.hpp"

#include <utility>

namespace tidemill::engines::chat {

Value make_message(const char* role, const std::string& content) {
  Dict fields;
  fields.insert("role", role);
  fields.insert("content", content);
  return fields;
}

bool is_by(const Value& message, std::string_view speaker) {
  const Value* role = message.is_dict() ? message.as_dict().member("role") : nullptr;
  return role != nullptr && role->is_string() && role->as_string() == speaker;
}

Value with_system(List messages, const std::string& system) {
  if (!system.empty() && (messages.empty() || !is_by(messages.front(), "system"))) {
    messages.insert(messages.begin(), make_message("system", system));
  }
  return Value::sequence(std::move(messages));
}

}  // namespace tidemill::engines::chat
