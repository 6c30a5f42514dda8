// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_parser.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

namespace tidemill::storage {
namespace {

// Keeps the keys of messages in file order, because templates print them.
using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxValues = 4'000'000;

Result<Json> parse_object(std::string_view text) {
  std::uint64_t values = 0;
  bool too_deep = false;
  const auto keep = [&](int depth, Json::parse_event_t event, const Json&) {
    ++values;
    const bool opens =
        event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    too_deep = too_deep || (opens && depth >= kMaxDepth);
    return !too_deep && values <= kMaxValues;
  };
  Json row;
  try {
    row = Json::parse(text.begin(), text.end(), keep);
  } catch (const Json::parse_error& error) {
    return invalid_argument("not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception&) {
    return invalid_argument("not JSON: a number is out of range");
  }
  if (too_deep) {
    return invalid_argument("nested deeper than 64 levels");
  }
  if (values > kMaxValues) {
    return invalid_argument("more than 4 million values");
  }
  if (!row.is_object()) {
    return invalid_argument("not a JSON object");
  }
  return row;
}

// Finds an integer in the messages of a row that no template value can hold. The parser that builds
// the row turns such an integer into a real.
class LargeIntegerFinder final : public nlohmann::json_sax<Json> {
public:
  [[nodiscard]] const std::string& found() const { return found_; }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return value <= kMax || take(std::to_string(value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return text.find_first_of(".eE") != std::string::npos || take(text);
  }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return open(); }
  bool key(string_t& name) override {
    in_messages_ = depth_ == 1 ? name == "messages" : in_messages_;
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

private:
  bool open() {
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool take(const std::string& digits) {
    found_ = in_messages_ ? digits : found_;
    return !in_messages_;
  }

  int depth_ = 0;
  bool in_messages_ = false;
  std::string found_;
};

// Messages become values of a template, whose integers have 64 bits.
Status check_integers(std::string_view text) {
  constexpr std::ptrdiff_t kSafeDigits = 18;  // always fit in 64 bits
  constexpr std::size_t kMaxShown = 40;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (auto begin = text.begin(); begin != text.end();) {
    const auto end = std::find_if_not(begin, text.end(), is_digit);
    if (end - begin > kSafeDigits) {
      LargeIntegerFinder finder;
      Json::sax_parse(text.begin(), text.end(), &finder);
      return finder.found().empty()
                 ? Status()
                 : invalid_argument("messages: integer " + finder.found().substr(0, kMaxShown) +
                                    " does not fit 64 bits");
    }
    begin = std::find_if(end, text.end(), is_digit);
  }
  return {};
}

// Returns the value of `key`, or null if it is absent.
const Json& value_or_null(const Json& object, const char* key) {
  static const Json nothing;
  const auto found = object.find(key);
  return found == object.end() ? nothing : *found;
}

Result<std::string> read_prompt(const Json& value) {
  if (!value.is_string()) {
    return invalid_argument("prompt: must be a string");
  }
  if (value.get_ref<const std::string&>().empty()) {
    return invalid_argument("prompt: is empty");
  }
  return value.get<std::string>();
}

// An integer has one spelling. Other numbers have several and could not be compared as written.
Result<std::string> read_answer(const Json& value) {
  if (value.is_null()) {
    return std::string();
  }
  if (value.is_number_integer()) {
    return value.dump();
  }
  if (!value.is_string()) {
    return invalid_argument("answer: must be a string or an integer");
  }
  return value.get<std::string>();
}

enum class Assistant { kOptional, kRequired };

// `text` is the whole row.
Result<std::string> read_messages(const Json& value, std::string_view text, Assistant assistant) {
  if (!value.is_array() || value.empty()) {
    return invalid_argument("messages: must be an array that is not empty");
  }
  bool has_assistant = false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string location = "messages[" + std::to_string(i) + "]";
    if (!value[i].is_object()) {
      return invalid_argument(location + ": must be an object");
    }
    const Json& role = value_or_null(value[i], "role");
    if (!role.is_string() || role.get_ref<const std::string&>().empty()) {
      return invalid_argument(location + ".role: must be a string that is not empty");
    }
    const Json& content = value_or_null(value[i], "content");
    if (!content.is_null() && !content.is_string() && !content.is_array()) {
      return invalid_argument(location + ".content: must be a string, an array of parts, or null");
    }
    has_assistant = has_assistant || role.get_ref<const std::string&>() == "assistant";
  }
  if (assistant == Assistant::kRequired && !has_assistant) {
    return invalid_argument("messages: none is from the assistant, so there is nothing to learn");
  }
  TIDEMILL_RETURN_IF_ERROR(check_integers(text));
  return value.dump();
}

Result<SupervisedRow> read_tokens(const Json& ids, const Json& mask) {
  if (!ids.is_array() || ids.empty()) {
    return invalid_argument("input_ids: must be an array that is not empty");
  }
  if (!mask.is_array()) {
    return invalid_argument("loss_mask: must be an array");
  }
  if (mask.size() != ids.size()) {
    return invalid_argument("loss_mask: has " + std::to_string(mask.size()) + " entries, but " +
                            "input_ids has " + std::to_string(ids.size()));
  }
  SupervisedRow row;
  row.kind = SupervisedRow::Kind::kTokens;
  row.input_ids.reserve(ids.size());
  row.loss_mask.reserve(ids.size());
  constexpr std::uint64_t kMaxId = std::numeric_limits<std::int32_t>::max();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!ids[i].is_number_unsigned() || ids[i].get<std::uint64_t>() > kMaxId) {
      return invalid_argument("input_ids[" + std::to_string(i) +
                              "]: must be an integer from 0 to " + std::to_string(kMaxId));
    }
    const bool is_bit = mask[i].is_number_unsigned() && mask[i].get<std::uint64_t>() <= 1;
    if (!is_bit && !mask[i].is_boolean()) {
      return invalid_argument("loss_mask[" + std::to_string(i) + "]: must be 0 or 1");
    }
    row.input_ids.push_back(ids[i].get<std::int32_t>());
    row.loss_mask.push_back(mask[i] == Json(true) || mask[i] == Json(1) ? 1 : 0);
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
    TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(messages, text, Assistant::kOptional));
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
    TIDEMILL_ASSIGN_OR_RETURN(row.messages, read_messages(messages, text, Assistant::kRequired));
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
