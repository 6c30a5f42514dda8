// SPDX-License-Identifier: Apache-2.0
#include "engines/chat/conversation.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace tidemill::engines::chat {
namespace {

constexpr std::string_view kProbe = "tidemill-probe";

// Returns the text of `{"type": "text", "text": TEXT}`, or null for any other part.
const std::string* text_of_part(const Value& part) {
  const Value* type = part.is_dict() ? part.as_dict().member("type") : nullptr;
  const Value* text = part.is_dict() ? part.as_dict().member("text") : nullptr;
  const bool is_text = type != nullptr && type->is_string() && type->as_string() == "text" &&
                       text != nullptr && text->is_string();
  return is_text ? &text->as_string() : nullptr;
}

// Returns the joined texts of a list that has only text parts, or nullopt.
std::optional<std::string> joined_parts(const Value& content) {
  if (!content.is_sequence()) {
    return std::nullopt;
  }
  std::string joined;
  for (const Value& part : content.as_sequence().items) {
    const std::string* text = text_of_part(part);
    if (text == nullptr) {
      return std::nullopt;
    }
    joined += *text;
  }
  return joined;
}

// Moves `text` past blanks.
void pass_blanks(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

// Removes `start` from `text`, and returns whether it was there.
bool pass(std::string_view& text, std::string_view start) {
  const bool found = text.starts_with(start);
  text.remove_prefix(found ? start.size() : 0);
  return found;
}

// Moves `text` past a sign that controls white space.
void pass_sign(std::string_view& text) {
  if (!pass(text, "-")) {
    pass(text, "+");
  }
}

// Returns `value` with the member `name` replaced by what `change` makes of it, if it has one.
template <class Change>
Value with_member(const Value& value, std::string_view name, Change change) {
  const Value* member = value.is_dict() ? value.as_dict().member(name) : nullptr;
  if (member == nullptr) {
    return value;
  }
  Dict changed = value.as_dict();
  changed.insert(name, change(*member));
  return changed;
}

// Returns the object that `arguments` are the text of, or `arguments`.
Value parsed_arguments(const Value& arguments) {
  if (!arguments.is_string()) {
    return arguments;
  }
  const auto parsed = Value::parse_json(arguments.as_string());
  return parsed.ok() && parsed.value().is_dict() ? parsed.value() : arguments;
}

}  // namespace

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

List with_joined_parts(List messages) {
  for (Value& message : messages) {
    const Value* content = message.is_dict() ? message.as_dict().member("content") : nullptr;
    const std::optional<std::string> joined =
        content != nullptr ? joined_parts(*content) : std::nullopt;
    if (joined.has_value()) {
      Dict changed = message.as_dict();
      changed.insert("content", *joined);
      message = Value(std::move(changed));
    }
  }
  return messages;
}

List with_parsed_arguments(List messages) {
  for (Value& message : messages) {
    message = with_member(message, "tool_calls", [](const Value& calls) {
      if (!calls.is_sequence()) {
        return calls;
      }
      List parsed = calls.as_sequence().items;
      for (Value& call : parsed) {
        call = with_member(call, "function", [](const Value& function) {
          return with_member(function, "arguments", parsed_arguments);
        });
      }
      return Value::sequence(std::move(parsed));
    });
  }
  return messages;
}

bool renders_parts(const ChatTemplate& chat, ChatRequest request) {
  Dict part;
  part.insert("type", "text");
  part.insert("text", kProbe);
  Dict message;
  message.insert("role", "user");
  message.insert("content", Value::sequence({Value(std::move(part))}));
  request.messages = Value::sequence({Value(std::move(message))});
  const auto rendering = chat.render(request);
  // A template that prints the list itself prints its keys too.
  return rendering.ok() && rendering.value().text.find(kProbe) != std::string::npos &&
         rendering.value().text.find("type") == std::string::npos;
}

bool has_generation_tag(std::string_view text) {
  for (std::size_t at = text.find("{%"); at != std::string_view::npos;
       at = text.find("{%", at + 2)) {
    std::string_view tag = text.substr(at + 2);
    pass_sign(tag);
    pass_blanks(tag);
    if (!pass(tag, "generation")) {
      continue;
    }
    pass_blanks(tag);
    pass_sign(tag);
    if (pass(tag, "%}")) {
      return true;
    }
  }
  return false;
}

}  // namespace tidemill::engines::chat
