// SPDX-License-Identifier: Apache-2.0
// Checks a JSON value against a JSON Schema. It knows the keywords of draft-07 that the schemas
// here use. Any other keyword fails the check, so that no constraint is ignored.
#pragma once

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace tidemill::test {

class JsonSchemaCheck {
public:
  /// Returns the first problem of `value` as "location: problem", or "" if there is none.
  [[nodiscard]] static std::string problem(const nlohmann::json& schema,
                                           const nlohmann::json& value,
                                           const std::string& location = "") {
    for (const auto& [keyword, expected] : schema.items()) {
      if (std::string found = check_keyword(schema, keyword, expected, value, location);
          !found.empty()) {
        return found;
      }
    }
    return {};
  }

private:
  using json = nlohmann::json;

  static std::string check_keyword(const json& schema, const std::string& keyword,
                                   const json& expected, const json& value,
                                   const std::string& location) {
    const auto fail_if = [&](bool failed) { return failed ? location + ": " + keyword : ""; };
    if (keyword == "type") {
      return fail_if(!has_type(expected, value));
    }
    if (keyword == "enum") {
      return fail_if(std::find(expected.begin(), expected.end(), value) == expected.end());
    }
    if (keyword == "const") {
      return fail_if(value != expected);
    }
    if (keyword == "minimum") {
      return fail_if(value.is_number() && value < expected);
    }
    if (keyword == "exclusiveMinimum") {
      return fail_if(value.is_number() && value <= expected);
    }
    if (keyword == "maximum") {
      return fail_if(value.is_number() && value > expected);
    }
    if (keyword == "pattern") {
      return fail_if(value.is_string() &&
                     !std::regex_search(value.get<std::string>(), std::regex(expected)));
    }
    if (keyword == "anyOf") {
      std::string all;
      for (const json& alternative : expected) {
        const std::string found = problem(alternative, value, location);
        if (found.empty()) {
          return {};
        }
        all += (all.empty() ? "" : " | ") + found;
      }
      return location + ": none of (" + all + ")";
    }
    if (keyword == "items") {
      for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
        if (std::string found = problem(expected, value[i], location + "[]"); !found.empty()) {
          return found;
        }
      }
      return {};
    }
    if (keyword == "required") {
      for (const json& key : expected) {
        if (value.is_object() && !value.contains(key)) {
          return location + ": missing key " + key.get<std::string>();
        }
      }
      return {};
    }
    if (keyword == "properties") {
      for (const auto& [key, inside] : expected.items()) {
        if (value.is_object() && value.contains(key)) {
          const std::string found = problem(inside, value[key], location + '.' + key);
          if (!found.empty()) {
            return found;
          }
        }
      }
      return {};
    }
    if (keyword == "additionalProperties") {
      for (const auto& [key, inside] : value.items()) {
        if (value.is_object() && !schema.at("properties").contains(key)) {
          return location + ": unexpected key " + key;
        }
      }
      return expected == false ? "" : "additionalProperties: not false";
    }
    const bool annotation = keyword == "$schema" || keyword == "title" ||
                            keyword == "description" || keyword == "default";
    return annotation ? "" : "the schema has the unknown keyword " + keyword;
  }

  static bool has_type(const json& expected, const json& value) {
    if (expected.is_array()) {
      return std::any_of(expected.begin(), expected.end(),
                         [&value](const json& type) { return has_type(type, value); });
    }
    const std::string type = expected;
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
