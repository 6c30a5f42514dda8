// SPDX-License-Identifier: Apache-2.0
// Parses JSON text into values, which keep the order of keys.
#include <utility>

#include "base/json/json.hpp"
#include "base/text/clip.hpp"
#include "engines/chat/value.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kMaxShownDigits = 40;

Result<Value> to_value(const Json& json) {
  if (const bool* flag = json.if_bool()) {
    return Value(*flag);
  }
  if (const std::int64_t* integer = json.if_integer()) {
    return Value(*integer);
  }
  if (const std::string* digits = json.if_large_integer()) {
    return corrupt_data("integer " + clipped(*digits, kMaxShownDigits) +
                        " does not fit in 64 bits");
  }
  if (const std::string* text = json.if_string()) {
    return Value(*text);
  }
  if (const Json::Array* items = json.if_array()) {
    List list;
    list.reserve(items->size());
    for (const Json& item : *items) {
      TIDEMILL_ASSIGN_OR_RETURN(Value value, to_value(item));
      list.push_back(std::move(value));
    }
    return Value::sequence(std::move(list));
  }
  if (const Json::Object* members = json.if_object()) {
    Dict dict;
    for (const Json::Member& member : *members) {
      TIDEMILL_ASSIGN_OR_RETURN(Value value, to_value(member.value));
      dict.insert(Value(member.name), std::move(value));
    }
    return Value(std::move(dict));
  }
  const std::optional<double> real = json.number();
  return real.has_value() ? Value(*real) : Value();
}

}  // namespace

Result<Value> Value::parse_json(std::string_view text) {
  TIDEMILL_ASSIGN_OR_RETURN(const Json json, tidemill::parse_json(text));
  return to_value(json);
}

}  // namespace tidemill::engines::chat
