// SPDX-License-Identifier: Apache-2.0
// Checks a JSON value against a JSON Schema, for the words of draft-07 that our schemas use. A word
// that it does not know fails the check, so that no constraint is passed over.
#pragma once

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace tidemill::test {

class JsonSchemaCheck {
public:
  /// Returns what is wrong with `value`, as "place: problem"; "" if nothing is.
  [[nodiscard]] static std::string problem(const nlohmann::json& schema,
                                           const nlohmann::json& value,
                                           const std::string& place = "") {
    for (const auto& [word, wanted] : schema.items()) {
      if (std::string found = one(schema, word, wanted, value, place); !found.empty()) {
        return found;
      }
    }
    return {};
  }

private:
  using json = nlohmann::json;

  static std::string one(const json& schema, const std::string& word, const json& wanted,
                         const json& value, const std::string& place) {
    const auto fail_if = [&](bool failed) { return failed ? place + ": " + word : ""; };
    if (word == "type") {
      return fail_if(!has_type(wanted, value));
    }
    if (word == "enum") {
      return fail_if(std::find(wanted.begin(), wanted.end(), value) == wanted.end());
    }
    if (word == "const") {
      return fail_if(value != wanted);
    }
    if (word == "minimum") {
      return fail_if(value.is_number() && value < wanted);
    }
    if (word == "exclusiveMinimum") {
      return fail_if(value.is_number() && value <= wanted);
    }
    if (word == "maximum") {
      return fail_if(value.is_number() && value > wanted);
    }
    if (word == "pattern") {
      return fail_if(value.is_string() &&
                     !std::regex_search(value.get<std::string>(), std::regex(wanted)));
    }
    if (word == "anyOf") {
      std::string all;
      for (const json& alternative : wanted) {
        const std::string found = problem(alternative, value, place);
        if (found.empty()) {
          return {};
        }
        all += (all.empty() ? "" : " | ") + found;
      }
      return place + ": none of (" + all + ")";
    }
    if (word == "items") {
      for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
        if (std::string found = problem(wanted, value[i], place + "[]"); !found.empty()) {
          return found;
        }
      }
      return {};
    }
    if (word == "required") {
      for (const json& key : wanted) {
        if (value.is_object() && !value.contains(key)) {
          return place + ": misses " + key.get<std::string>();
        }
      }
      return {};
    }
    if (word == "properties") {
      for (const auto& [key, inside] : wanted.items()) {
        if (value.is_object() && value.contains(key)) {
          const std::string found = problem(inside, value[key], place + '.' + key);
          if (!found.empty()) {
            return found;
          }
        }
      }
      return {};
    }
    if (word == "additionalProperties") {
      for (const auto& [key, inside] : value.items()) {
        if (value.is_object() && !schema.at("properties").contains(key)) {
          return place + ": has " + key;
        }
      }
      return wanted == false ? "" : "additionalProperties: not false";
    }
    const bool remark =
        word == "$schema" || word == "title" || word == "description" || word == "default";
    return remark ? "" : "a schema with the word " + word;
  }

  static bool has_type(const json& wanted, const json& value) {
    if (wanted.is_array()) {
      return std::any_of(wanted.begin(), wanted.end(),
                         [&value](const json& type) { return has_type(type, value); });
    }
    const std::string type = wanted;
    return type == "object"    ? value.is_object()
           : type == "array"   ? value.is_array()
           : type == "string"  ? value.is_string()
           : type == "boolean" ? value.is_boolean()
           : type == "null"    ? value.is_null()
           : type == "number"  ? value.is_number()
                               : type == "integer" && value.is_number() &&
                                    value.get<double>() == std::floor(value.get<double>());
  }
};

}  // namespace tidemill::test
