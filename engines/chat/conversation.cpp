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

bool has_role(const Value& message, std::string_view role) {
  const Value* value = message.is_dict() ? message.as_dict().member("role") : nullptr;
  return value != nullptr && value->is_string() && value->as_string() == role;
}

Value with_system_message(List messages, const std::string& system) {
  if (!system.empty() && (messages.empty() || !has_role(messages.front(), "system"))) {
    messages.insert(messages.begin(), make_message("system", system));
  }
  return Value::sequence(std::move(messages));
}

}  // namespace tidemill::engines::chat
