// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_parser.hpp"

#include <limits>
#include <optional>

#include "base/json/json.hpp"
#include "base/text/clip.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kMaxShownDigits = 40;

Result<Json> parse_object(std::string_view text) {
  Result<Json> row = parse_json(text);
  if (!row.ok()) {
    return invalid_argument(row.status().message());
  }
  if (row.value().if_object() == nullptr) {
    return invalid_argument("not a JSON object");
  }
  return row;
}

// Returns an integer in `value` that does not fit in 64 bits, or null if there is none.
const std::string* find_large_integer(const Json& value) {
  if (const Json::Array* items = value.if_array()) {
    for (const Json& item : *items) {
      if (const std::string* digits = find_large_integer(item)) {
        return digits;
      }
    }
  }
  if (const Json::Object* members = value.if_object()) {
    for (const Json::Member& member : *members) {
      if (const std::string* digits = find_large_integer(member.value)) {
        return digits;
      }
    }
  }
  return value.if_large_integer();
}

// Returns the value of `key`, or null if it is absent.
const Json& value_or_null(const Json& object, const char* key) {
  static const Json nothing;
  const Json* found = object.find(key);
  return found == nullptr ? nothing : *found;
}

// Returns `value` as JSON without white space. Objects keep the order of their keys, because
// templates print them.
std::string compact_text(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return text;
}

Result<std::string> read_prompt(const Json& value) {
  const std::string* prompt = value.if_string();
  if (prompt == nullptr) {
    return invalid_argument("prompt: must be a string");
  }
  if (prompt->empty()) {
    return invalid_argument("prompt: is empty");
  }
  return *prompt;
}

// An integer has one spelling. Other numbers have several and could not be compared as written.
Result<std::string> read_answer(const Json& value) {
  if (value.is_null()) {
    return std::string();
  }
  if (const std::int64_t* integer = value.if_integer()) {
    return std::to_string(*integer);
  }
  if (const std::string* digits = value.if_large_integer()) {
    return *digits;
  }
  if (value.if_string() == nullptr) {
    return invalid_argument("answer: must be a string or an integer");
  }
  return *value.if_string();
}

enum class Assistant { kOptional, kRequired };

Result<std::string> read_messages(const Json& value, Assistant assistant) {
  const Json::Array* messages = value.if_array();
  if (messages == nullptr || messages->empty()) {
    return invalid_argument("messages: must be an array that is not empty");
  }
  bool has_assistant = false;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string location = "messages[" + std::to_string(i) + "]";
    if (message.if_object() == nullptr) {
      return invalid_argument(location + ": must be an object");
    }
    const std::string* role = value_or_null(message, "role").if_string();
    if (role == nullptr || role->empty()) {
      return invalid_argument(location + ".role: must be a string that is not empty");
    }
    const Json& content = value_or_null(message, "content");
    if (!content.is_null() && content.if_string() == nullptr && content.if_array() == nullptr) {
      return invalid_argument(location + ".content: must be a string, an array of parts, or null");
    }
    has_assistant = has_assistant || *role == "assistant";
  }
  if (assistant == Assistant::kRequired && !has_assistant) {
    return invalid_argument("messages: none is from the assistant, so there is nothing to learn");
  }
  // Messages become values of a template, whose integers have 64 bits.
  if (const std::string* digits = find_large_integer(value)) {
    return invalid_argument("messages: integer " + clipped(*digits, kMaxShownDigits) +
                            " does not fit 64 bits");
  }
  return compact_text(value);
}

// Returns 0 or 1, or nothing for any other value.
std::optional<std::uint8_t> read_bit(const Json& value) {
  if (const bool* flag = value.if_bool()) {
    return *flag ? 1 : 0;
  }
  const std::int64_t* integer = value.if_integer();
  if (integer == nullptr || *integer < 0 || *integer > 1) {
    return std::nullopt;
  }
  return static_cast<std::uint8_t>(*integer);
}

Result<SupervisedRow> read_tokens(const Json& ids_value, const Json& mask_value) {
  const Json::Array* ids = ids_value.if_array();
  const Json::Array* mask = mask_value.if_array();
  if (ids == nullptr || ids->empty()) {
    return invalid_argument("input_ids: must be an array that is not empty");
  }
  if (mask == nullptr) {
    return invalid_argument("loss_mask: must be an array");
  }
  if (mask->size() != ids->size()) {
    return invalid_argument("loss_mask: has " + std::to_string(mask->size()) + " entries, but " +
                            "input_ids has " + std::to_string(ids->size()));
  }
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kTokens;
  row.input_ids.reserve(ids->size());
  row.loss_mask.reserve(ids->size());
  constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < ids->size(); ++i) {
    const std::int64_t* id = (*ids)[i].if_integer();
    if (id == nullptr || *id < 0 || *id > kMaxId) {
      return invalid_argument("input_ids[" + std::to_string(i) +
                              "]: must be an integer from 0 to " + std::to_string(kMaxId));
    }
    const std::optional<std::uint8_t> bit = read_bit((*mask)[i]);
    if (!bit.has_value()) {
      return invalid_argument("loss_mask[" + std::to_string(i) + "]: must be 0 or 1");
    }
    row.input_ids.push_back(static_cast<std::int32_t>(*id));
    row.loss_mask.push_back(*bit);
  }
  return row;
}

}  // namespace

Result<PromptRow> parse_prompt_row(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_object(text));
  const Json& prompt = value_or_null(object, "prompt");
  const Json& messages = value_or_null(object, "messages");
  PromptRow row;
  if (!prompt.is_null() && !messages.is_null()) {
    return invalid_argument("has both prompt and messages");
  }
  if (!prompt.is_null()) {
    TIDEMILL_ASSIGN_OR_RETURN(row.prompt, read_prompt(prompt));
  } else if (!messages.is_null()) {
    TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(messages, Assistant::kOptional));
  } else {
    return invalid_argument("has neither prompt nor messages");
  }
  TIDEMILL_ASSIGN_OR_RETURN(row.reference_answer, read_answer(value_or_null(object, "answer")));
  row.fields = text;
  return row;
}

Result<SupervisedRow> parse_supervised_row(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_object(text));
  const Json& ids = value_or_null(object, "input_ids");
  const Json& messages = value_or_null(object, "messages");
  const Json& prompt = value_or_null(object, "prompt");
  const int forms =
      (ids.is_null() ? 0 : 1) + (messages.is_null() ? 0 : 1) + (prompt.is_null() ? 0 : 1);
  if (forms != 1) {
    return invalid_argument(forms == 0 ? "has none of prompt, messages and input_ids"
                                       : "has more than one of prompt, messages and input_ids");
  }
  if (!ids.is_null()) {
    return read_tokens(ids, value_or_null(object, "loss_mask"));
  }
  SupervisedRow row;
  if (!messages.is_null()) {
    row.kind = SupervisedRow::Kind::kMessages;
    TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(messages, Assistant::kRequired));
    return row;
  }
  TIDEMILL_ASSIGN_OR_RETURN(row.prompt, read_prompt(prompt));
  TIDEMILL_ASSIGN_OR_RETURN(row.reference_answer, read_answer(value_or_null(object, "answer")));
  if (row.reference_answer.empty()) {
    return invalid_argument("answer: is missing or empty, so there is nothing to learn");
  }
  return row;
}

}  // namespace tidemill::storage
