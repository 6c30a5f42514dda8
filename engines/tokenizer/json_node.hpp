// SPDX-License-Identifier: Apache-2.0
// The objects of a tokenizer.json, with the paths that error messages begin with.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/json/json.hpp"
#include "base/result.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "base/text/utf8.hpp"

namespace tidemill::engines {

/// Returns the refusal of a feature. `what` is its name or value.
[[nodiscard]] inline Status unsupported(const std::string& field, const std::string& what) {
  return {Errc::kUnimplemented, field + ": " + what + " is not supported"};
}

/// Returns the refusal of a field that is wrong.
[[nodiscard]] inline Status malformed(const std::string& field, const std::string& why) {
  return corrupt_data(field.empty() ? why : field + ": " + why);
}

/// Returns a value as text, shortened for an error message.
[[nodiscard]] inline std::string preview(const Json& value) {
  std::string text = value.to_line();
  text.pop_back();  // the newline
  return clipped(text);
}

/// A JSON object and the path that leads to it.
class JsonNode {
public:
  /// Errors: `kCorruptData` if `value` is not an object.
  [[nodiscard]] static Result<JsonNode> of(const Json& value, std::string path) {
    if (value.if_object() == nullptr) {
      return malformed(path, "must be an object, not " + preview(value));
    }
    return JsonNode(&value, std::move(path));
  }

  /// Returns the path of a member.
  [[nodiscard]] std::string path_of(std::string_view key) const {
    const std::string shown_key = quote_unless_plain(key);
    return path_.empty() ? shown_key : path_ + "." + shown_key;
  }
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Returns the member, or nullptr if it is absent or null.
  [[nodiscard]] const Json* find(std::string_view key) const {
    const Json* found = value_->find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }

  /// Return a member of a type. Errors: `kCorruptData` if it is absent or has another type.
  [[nodiscard]] Result<const Json*> require(std::string_view key) const {
    const Json* found = find(key);
    if (found == nullptr) {
      return malformed(path_of(key), "missing");
    }
    return found;
  }

  [[nodiscard]] Result<JsonNode> object(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    return JsonNode::of(*value, path_of(key));
  }

  [[nodiscard]] Result<const Json::Array*> array(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    if (value->if_array() == nullptr) {
      return malformed(path_of(key), "must be a list, not " + preview(*value));
    }
    return value->if_array();
  }

  [[nodiscard]] Result<std::string> string(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json* value, require(key));
    if (value->if_string() == nullptr) {
      return malformed(path_of(key), "must be a string, not " + preview(*value));
    }
    return *value->if_string();
  }

  /// Returns a string of one character. Errors: as `string`.
  [[nodiscard]] Result<std::string> character(std::string_view key) const {
    TIDEMILL_ASSIGN_OR_RETURN(std::string text, string(key));
    if (text.empty() || read_utf8(text, 0).length != text.size()) {
      return malformed(path_of(key), "must be one character, not " + preview(text));
    }
    return text;
  }

  [[nodiscard]] Result<bool> boolean(std::string_view key, bool when_absent) const {
    const Json* value = find(key);
    if (value == nullptr) {
      return when_absent;
    }
    if (value->if_bool() == nullptr) {
      return malformed(path_of(key), "must be true or false, not " + preview(*value));
    }
    return *value->if_bool();
  }

  [[nodiscard]] Result<std::string> type() const { return string("type"); }

  /// Refuses all members but the known ones, because others could change what the tokenizer does.
  [[nodiscard]] Status allow_only(std::initializer_list<const char*> known) const {
    for (const Json::Member& member : *value_->if_object()) {
      const auto is_key = [&member](const char* key) { return member.name == key; };
      if (std::none_of(known.begin(), known.end(), is_key)) {
        return unsupported(path_of(member.name), "this field");
      }
    }
    return {};
  }

private:
  JsonNode(const Json* value, std::string path) : value_(value), path_(std::move(path)) {}

  const Json* value_;
  std::string path_;
};

/// Returns the path of an element of a list.
[[nodiscard]] inline std::string indexed(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

}  // namespace tidemill::engines
