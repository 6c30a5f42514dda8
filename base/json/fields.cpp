// SPDX-License-Identifier: Apache-2.0
#include "base/json/fields.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/text/quote.hpp"

namespace tidemill {
namespace {

std::string describe(IntegerRange range) {
  if (range.max == std::numeric_limits<std::int64_t>::max()) {
    return "an integer of at least " + std::to_string(range.min);
  }
  return "an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

std::string describe(RealRange range) {
  std::ostringstream text;
  text << "a number";
  if (range.min != RealRange().min) {
    text << " of at least " << range.min;
  }
  if (range.max != RealRange().max) {
    text << (range.min != RealRange().min ? " and" : " of") << " at most " << range.max;
  }
  return text.str();
}

bool is_in_range(const Json& value, IntegerRange range) {
  const std::int64_t* integer = value.if_integer();
  return integer != nullptr && *integer >= range.min && *integer <= range.max;
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string location, std::string prefix)
    : object_(object), location_(std::move(location)), prefix_(std::move(prefix)) {
  if (object_.if_object() == nullptr) {
    refused_ = prefix_.empty() ? "" : prefix_.substr(0, prefix_.size() - 1);
    std::string place =
        location_.empty() || refused_.empty() ? location_ + refused_ : location_ + ": " + refused_;
    place = place.empty() ? "the document" : place;
    status_ = invalid_argument(place + ": must be a JSON object");
  }
}

void JsonFields::refuse(std::string_view name, std::string_view problem) {
  const std::string path = prefix_ + quote_unless_plain(name);
  std::string text = location_.empty() ? path : location_ + ": " + path;
  text += ": ";
  text += problem;
  if (status_.ok()) {
    refused_ = path;
  }
  refuse(invalid_argument(std::move(text)));
}

void JsonFields::refuse(const Status& status) {
  if (status_.ok()) {
    status_ = status;
  }
}

void JsonFields::refuse_others(std::initializer_list<std::string_view> names) {
  const Json::Object* members = object_.if_object();
  for (std::size_t i = 0; members != nullptr && i < members->size(); ++i) {
    if (std::find(names.begin(), names.end(), (*members)[i].name) == names.end()) {
      refuse((*members)[i].name, "unknown field");
    }
  }
}

const Json* JsonFields::find(std::string_view name) const noexcept {
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->if_bool() == nullptr) {
    refuse(name, "must be true or false");
    return std::nullopt;
  }
  return *value->if_bool();
}

std::optional<std::int64_t> JsonFields::integer(std::string_view name, IntegerRange range) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!is_in_range(*value, range)) {
    // `describe` does not mention the largest integer of 64 bits.
    const bool is_above = value->number().value_or(0.0) >= 0x1p63 &&
                          range.max == std::numeric_limits<std::int64_t>::max();
    refuse(name, is_above ? "must be an integer of at most " + std::to_string(range.max)
                          : "must be " + describe(range));
    return std::nullopt;
  }
  return *value->if_integer();
}

std::int64_t JsonFields::required_integer(std::string_view name, IntegerRange range) {
  if (!has(name)) {
    refuse(name, "missing; must be " + describe(range));
  }
  return integer(name, range).value_or(0);
}

std::optional<double> JsonFields::real(std::string_view name, RealRange range) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<double> number = value->number();
  if (!number || !std::isfinite(*number) || *number < range.min || *number > range.max) {
    refuse(name, "must be " + describe(range));
    return std::nullopt;
  }
  return number;
}

double JsonFields::required_real(std::string_view name, RealRange range) {
  if (!has(name)) {
    refuse(name, "missing; must be " + describe(range));
  }
  return real(name, range).value_or(0.0);
}

std::optional<std::string> JsonFields::string(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->if_string() == nullptr) {
    refuse(name, "must be a string");
    return std::nullopt;
  }
  return *value->if_string();
}

std::optional<std::vector<std::string>> JsonFields::strings(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (const std::string* text = value->if_string()) {
    return std::vector<std::string>{*text};
  }
  std::vector<std::string> out;
  const Json::Array* items = value->if_array();
  for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
    if (const std::string* text = (*items)[i].if_string()) {
      out.push_back(*text);
    }
  }
  if (items == nullptr || out.size() != items->size()) {
    refuse(name, "must be a list of strings");
    return std::nullopt;
  }
  return out;
}

std::optional<std::vector<std::int64_t>> JsonFields::integers(std::string_view name,
                                                              IntegerRange range) {
  const Json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::vector<std::int64_t> out;
  if (is_in_range(*value, range)) {
    return std::vector<std::int64_t>{*value->if_integer()};
  }
  const Json::Array* items = value->if_array();
  for (std::size_t i = 0; items != nullptr && i < items->size(); ++i) {
    if (is_in_range((*items)[i], range)) {
      out.push_back(*(*items)[i].if_integer());
    }
  }
  if (items == nullptr || out.size() != items->size()) {
    refuse(name, "must be " + describe(range) + ", or a list of these");
    return std::nullopt;
  }
  return out;
}

}  // namespace tidemill
