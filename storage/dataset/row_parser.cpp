// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_parser.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "base/json/json.hpp"
#include "base/text/clip.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kMaxShownDigits = 40;
constexpr std::size_t kMaxShownMembers = 8;
constexpr std::size_t kMaxShownName = 40;
// The label of a token that is not a target, in files of other trainers.
constexpr std::int64_t kNoTarget = -100;

Result<Json> parse_object(std::string_view text) {
  Result<Json> row = parse_json(text);
  if (!row.ok()) {
    // Files of other formats, and JSON objects that are spread over several lines.
    const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
    const bool is_row = text.substr(begin).starts_with("{") && text.substr(begin) != "{";
    return invalid_argument(row.status().message() +
                            (is_row ? "" : "; expected JSON Lines, one object per line"));
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

Result<std::string> read_text(const Json& value, const std::string& key) {
  const std::string* text = value.if_string();
  if (text == nullptr) {
    return invalid_argument(key + ": must be a string");
  }
  if (text->empty()) {
    return invalid_argument(key + ": is empty");
  }
  return *text;
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

// Messages and tools become values of a template, whose integers have 64 bits.
Status check_integers(const Json& value, const std::string& key) {
  const std::string* digits = find_large_integer(value);
  return digits == nullptr
             ? Status()
             : invalid_argument(key + ": integer " + clipped(*digits, kMaxShownDigits) +
                                " does not fit 64 bits");
}

// Refuses a message that asks for what rendering and training would ignore.
Status check_message(const Json& message, const std::string& location) {
  if (!value_or_null(message, "function_call").is_null()) {
    return invalid_argument(location + ".function_call: is not supported; use tool_calls");
  }
  const Json& calls = value_or_null(message, "tool_calls");
  if (!calls.is_null() && calls.if_array() == nullptr) {
    return invalid_argument(location + ".tool_calls: must be an array");
  }
  return {};
}

enum class Assistant { kOptional, kRequired };

Result<std::string> read_messages(const Json& value, const std::string& key, Assistant assistant) {
  const Json::Array* messages = value.if_array();
  if (messages == nullptr || messages->empty()) {
    return invalid_argument(key + ": must be an array that is not empty");
  }
  bool has_assistant = false;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string location = key + "[" + std::to_string(i) + "]";
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
    TIDEMILL_RETURN_IF_ERROR(check_message(message, location));
    has_assistant = has_assistant || *role == "assistant";
  }
  if (assistant == Assistant::kRequired && !has_assistant) {
    return invalid_argument(key + ": none is from the assistant, so there is nothing to learn");
  }
  TIDEMILL_RETURN_IF_ERROR(check_integers(value, key));
  return compact_text(value);
}

// Returns the text of the member `tools` of a row with messages, or "" if it has none. Refuses
// other members of OpenAI's rows that would be ignored.
Result<std::string> read_tools(const Json& object) {
  for (const auto& [name, remedy] :
       {std::pair{"functions", "use tools"}, std::pair{"function_call", "use tools"},
        std::pair{"parallel_tool_calls", "remove it, because it does not change the training"}}) {
    if (!value_or_null(object, name).is_null()) {
      return invalid_argument(std::string(name) + ": is not supported; " + remedy);
    }
  }
  const Json& tools = value_or_null(object, "tools");
  if (tools.is_null()) {
    return std::string();
  }
  if (tools.if_array() == nullptr) {
    return invalid_argument("tools: must be an array");
  }
  for (std::size_t i = 0; i < tools.if_array()->size(); ++i) {
    const Json& function = value_or_null((*tools.if_array())[i], "function");
    if (value_or_null(function, "name").if_string() == nullptr) {
      return invalid_argument("tools[" + std::to_string(i) + "]: must be a function with a name");
    }
  }
  TIDEMILL_RETURN_IF_ERROR(check_integers(tools, "tools"));
  return tools.if_array()->empty() ? std::string() : compact_text(tools);
}

// Checks the member `weight` of messages: 0 excludes a message of the assistant from the loss.
Status check_weights(const Json& messages) {
  bool has_target = false;
  for (std::size_t i = 0; i < messages.if_array()->size(); ++i) {
    const Json& message = (*messages.if_array())[i];
    const bool is_assistant = *value_or_null(message, "role").if_string() == "assistant";
    const Json& weight = value_or_null(message, "weight");
    const std::string location = "messages[" + std::to_string(i) + "].weight: ";
    if (!weight.is_null() && !is_assistant) {
      return invalid_argument(location + "only messages of the assistant may have one");
    }
    const std::int64_t* number = weight.if_integer();
    if (!weight.is_null() && (number == nullptr || *number < 0 || *number > 1)) {
      return invalid_argument(location + "must be 0 or 1");
    }
    has_target = has_target || (is_assistant && (number == nullptr || *number == 1));
  }
  return has_target
             ? Status()
             : invalid_argument(
                   "messages: every assistant message has weight 0, so the row has no target");
}

// Refuses the member `weight` of messages of which none or all are targets.
Status refuse_weights(const Json& messages, const std::string& key) {
  for (std::size_t i = 0; i < messages.if_array()->size(); ++i) {
    if (!value_or_null((*messages.if_array())[i], "weight").is_null()) {
      return invalid_argument(key + "[" + std::to_string(i) + "].weight: use the member messages");
    }
  }
  return {};
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

Result<std::vector<std::int32_t>> read_ids(const Json& value) {
  const Json::Array* items = value.if_array();
  if (items == nullptr || items->empty()) {
    return invalid_argument("input_ids: must be an array that is not empty");
  }
  constexpr std::int64_t kMaxId = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> ids;
  ids.reserve(items->size());
  for (const Json& item : *items) {
    const std::int64_t* id = item.if_integer();
    if (id == nullptr || *id < 0 || *id > kMaxId) {
      return invalid_argument("input_ids[" + std::to_string(ids.size()) +
                              "]: must be an integer from 0 to " + std::to_string(kMaxId));
    }
    ids.push_back(static_cast<std::int32_t>(*id));
  }
  return ids;
}

// Returns the list `value` with one item for each token.
Result<const Json::Array*> read_list(const Json& value, const std::string& key,
                                     std::size_t num_ids) {
  const Json::Array* items = value.if_array();
  if (items == nullptr) {
    return invalid_argument(key + ": must be an array");
  }
  if (items->size() != num_ids) {
    return invalid_argument(key + ": has " + std::to_string(items->size()) +
                            " entries, but input_ids has " + std::to_string(num_ids));
  }
  return items;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Padding would be trained on, and a mask of another name would be ignored.
Status check_other_masks(const Json& object, std::size_t num_ids) {
  for (const auto& [name, value] : *object.if_object()) {
    const bool mask = ends_with(name, "_mask") || ends_with(name, "_masks");
    if (mask && name != "attention_mask" && !value.is_null()) {
      return invalid_argument(clipped(name, kMaxShownName) +
                              ": is not read; use loss_mask or labels");
    }
  }
  const Json& attention = value_or_null(object, "attention_mask");
  if (attention.is_null()) {
    return {};
  }
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* items,
                            read_list(attention, "attention_mask", num_ids));
  const bool all_ones = std::all_of(items->begin(), items->end(),
                                    [](const Json& item) { return read_bit(item) == 1; });
  return all_ones ? Status()
                  : invalid_argument("attention_mask: must be all 1; remove the padding");
}

Result<SupervisedRow> read_tokens(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kTokens;
  TIDEMILL_ASSIGN_OR_RETURN(row.input_ids, read_ids(value_or_null(object, "input_ids")));
  TIDEMILL_RETURN_IF_ERROR(check_other_masks(object, row.input_ids.size()));
  row.loss_mask.assign(row.input_ids.size(), 1);
  row.loss_mask.front() = 0;
  return row;
}

Result<SupervisedRow> read_masked_tokens(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kTokens;
  TIDEMILL_ASSIGN_OR_RETURN(row.input_ids, read_ids(value_or_null(object, "input_ids")));
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* mask, read_list(value_or_null(object, "loss_mask"),
                                                               "loss_mask", row.input_ids.size()));
  row.loss_mask.reserve(mask->size());
  for (const Json& item : *mask) {
    const std::optional<std::uint8_t> bit = read_bit(item);
    if (!bit.has_value()) {
      return invalid_argument("loss_mask[" + std::to_string(row.loss_mask.size()) +
                              "]: must be 0 or 1");
    }
    row.loss_mask.push_back(*bit);
  }
  return row;
}

Status refuse_label(std::size_t index, std::int32_t id) {
  const std::string i = std::to_string(index);
  return invalid_argument("labels[" + i + "]: must be -100 or input_ids[" + i + "], " +
                          std::to_string(id));
}

// Labels have the index of their token; the loss moves them by one.
Result<SupervisedRow> read_labeled_tokens(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kTokens;
  TIDEMILL_ASSIGN_OR_RETURN(row.input_ids, read_ids(value_or_null(object, "input_ids")));
  TIDEMILL_ASSIGN_OR_RETURN(const Json::Array* labels, read_list(value_or_null(object, "labels"),
                                                                 "labels", row.input_ids.size()));
  row.loss_mask.reserve(labels->size());
  for (const Json& item : *labels) {
    const std::size_t i = row.loss_mask.size();
    const std::int64_t* label = item.if_integer();
    if (label == nullptr || (*label != kNoTarget && *label != row.input_ids[i])) {
      return refuse_label(i, row.input_ids[i]);
    }
    row.loss_mask.push_back(*label == kNoTarget || i == 0 ? 0 : 1);
  }
  return row;
}

Result<SupervisedRow> read_whole_text(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kText;
  TIDEMILL_ASSIGN_OR_RETURN(row.text, read_text(value_or_null(object, "text"), "text"));
  return row;
}

Result<SupervisedRow> read_prompt_and_answer(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kPromptAnswer;
  TIDEMILL_ASSIGN_OR_RETURN(row.prompt, read_text(value_or_null(object, "prompt"), "prompt"));
  TIDEMILL_ASSIGN_OR_RETURN(row.reference_answer, read_answer(value_or_null(object, "answer")));
  if (row.reference_answer.empty()) {
    return invalid_argument("answer: is empty, so there is nothing to learn");
  }
  return row;
}

Result<SupervisedRow> read_prompt_and_completion(const Json& object) {
  const Json& prompt = value_or_null(object, "prompt");
  const Json& completion = value_or_null(object, "completion");
  SupervisedRow row;
  if (prompt.if_array() == nullptr && completion.if_array() == nullptr) {
    row.kind = SupervisedRow::Kind::kContinuedText;
    TIDEMILL_ASSIGN_OR_RETURN(row.prompt, read_text(prompt, "prompt"));
    TIDEMILL_ASSIGN_OR_RETURN(row.continuation, read_text(completion, "completion"));
    return row;
  }
  if (prompt.if_array() == nullptr || completion.if_array() == nullptr) {
    return invalid_argument("prompt and completion: must be two strings or two arrays of messages");
  }
  row.kind = SupervisedRow::Kind::kContinuedChat;
  TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(prompt, "prompt", Assistant::kOptional));
  TIDEMILL_ASSIGN_OR_RETURN(row.continuation,
                            read_messages(completion, "completion", Assistant::kRequired));
  TIDEMILL_RETURN_IF_ERROR(refuse_weights(prompt, "prompt"));
  TIDEMILL_RETURN_IF_ERROR(refuse_weights(completion, "completion"));
  TIDEMILL_ASSIGN_OR_RETURN(row.tools, read_tools(object));
  return row;
}

Result<SupervisedRow> read_conversation(const Json& object) {
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kMessages;
  const Json& messages = value_or_null(object, "messages");
  TIDEMILL_ASSIGN_OR_RETURN(row.messages,
                            read_messages(messages, "messages", Assistant::kRequired));
  TIDEMILL_RETURN_IF_ERROR(check_weights(messages));
  TIDEMILL_ASSIGN_OR_RETURN(row.tools, read_tools(object));
  return row;
}

// The members that decide the kind of a row to train on. Others are ignored.
constexpr std::array<std::string_view, 8> kDeciding{"text",     "prompt",    "answer", "completion",
                                                    "messages", "input_ids", "labels", "loss_mask"};

// A kind of row to train on: those of `kDeciding` that it has, and how it is read.
struct RowKind {
  std::vector<std::string_view> members;  // in the order of `kDeciding`
  Result<SupervisedRow> (*read)(const Json& object);
};

const std::vector<RowKind>& row_kinds() {
  static const std::vector<RowKind> kinds{
      {{"text"}, read_whole_text},
      {{"prompt", "answer"}, read_prompt_and_answer},
      {{"prompt", "completion"}, read_prompt_and_completion},
      {{"messages"}, read_conversation},
      {{"answer", "messages"}, read_conversation},  // as in rows with prompts
      {{"input_ids"}, read_tokens},
      {{"input_ids", "labels"}, read_labeled_tokens},
      {{"input_ids", "loss_mask"}, read_masked_tokens},
  };
  return kinds;
}

// Returns the names of the members that are not null: "prompt, text". Long lists are cut.
std::string member_names(const Json& object) {
  std::string names;
  std::size_t count = 0;
  for (const Json::Member& member : *object.if_object()) {
    if (member.value.is_null()) {
      continue;
    }
    if (++count > kMaxShownMembers) {
      return names + ", ...";
    }
    names += names.empty() ? "" : ", ";
    names += clipped(member.name, kMaxShownName);
  }
  return names.empty() ? "no members" : names;
}

Status refuse_kind(const Json& object) {
  for (const char* preference : {"preferred_output", "chosen"}) {
    if (object.find(preference) != nullptr) {
      return invalid_argument("has " + std::string(preference) +
                              ": preference rows are not supported");
    }
  }
  return invalid_argument("has " + member_names(object) +
                          "; needs exactly one of: text | prompt, answer | prompt, completion | "
                          "messages | input_ids (labels or loss_mask are optional)");
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
  if (prompt.if_array() != nullptr) {
    TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(prompt, "prompt", Assistant::kOptional));
  } else if (!prompt.is_null()) {
    TIDEMILL_ASSIGN_OR_RETURN(row.prompt, read_text(prompt, "prompt"));
  } else if (!messages.is_null()) {
    TIDEMILL_ASSIGN_OR_RETURN(row.messages,
                              read_messages(messages, "messages", Assistant::kOptional));
  } else {
    return invalid_argument("has " + member_names(object) +
                            "; needs exactly one of: prompt | messages");
  }
  if (!row.messages.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(row.tools, read_tools(object));
  }
  TIDEMILL_ASSIGN_OR_RETURN(row.reference_answer, read_answer(value_or_null(object, "answer")));
  row.fields = text;
  // Line breaks outside strings are white space, and inside they are escaped.
  std::replace(row.fields.begin(), row.fields.end(), '\n', ' ');
  return row;
}

Result<SupervisedRow> parse_supervised_row(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_object(text));
  std::vector<std::string_view> members;
  for (const std::string_view name : kDeciding) {
    if (const Json* value = object.find(name); value != nullptr && !value->is_null()) {
      members.push_back(name);
    }
  }
  for (const RowKind& kind : row_kinds()) {
    if (members == kind.members) {
      return kind.read(object);
    }
  }
  return refuse_kind(object);
}

}  // namespace tidemill::storage
