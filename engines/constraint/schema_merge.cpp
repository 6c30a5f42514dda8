// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/schema_merge.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr int kMaxMergeDepth = 32;
constexpr std::size_t kMaxNames = 1024;  // of properties, in each of two lists

std::size_t size_of(const Json& value) {
  return value.if_array() != nullptr    ? value.if_array()->size()
         : value.if_object() != nullptr ? value.if_object()->size()
                                        : 1;
}

Json* find_mutable(Json::Object& object, std::string_view name) {
  const auto found = std::ranges::find(object, name, &Json::Member::name);
  return found == object.end() ? nullptr : &found->value;
}

bool equal(const Json& a, const Json& b) {
  return a.to_line() == b.to_line();
}

Json::Array list_of(const Json& value) {
  return value.if_array() != nullptr ? *value.if_array() : Json::Array{value};
}

bool is_type(const Json& value, std::string_view name) {
  return value.if_string() != nullptr && *value.if_string() == name;
}

// Returns the types that both lists allow. "integer" is a part of "number".
Json merged_types(const Json& a, const Json& b) {
  Json::Array out;
  const Json::Array others = list_of(b);
  for (const Json& type : list_of(a)) {
    for (const Json& other : others) {
      if (equal(type, other) || (is_type(type, "integer") && is_type(other, "number"))) {
        out.push_back(type);
      } else if (is_type(type, "number") && is_type(other, "integer")) {
        out.push_back(other);
      }
    }
  }
  return out;
}

Json both(const Json& a, const Json& b) {
  return equal(a, b) ? a : Json(Json::Object{{"allOf", Json::Array{a, b}}});
}

Json merged_enums(const Json& a, const Json& b) {
  std::set<std::string> others;
  for (const Json& value : list_of(b)) {
    others.insert(value.to_line());
  }
  Json::Array out;
  for (const Json& value : list_of(a)) {
    if (others.contains(value.to_line())) {
      out.push_back(value);
    }
  }
  return out;
}

Json merged_properties(const Json& a, const Json& b) {
  Json::Object out = a.if_object() != nullptr ? *a.if_object() : Json::Object();
  for (const Json::Member& member : b.if_object() != nullptr ? *b.if_object() : Json::Object()) {
    if (Json* known = find_mutable(out, member.name)) {
      *known = both(*known, member.value);
    } else {
      out.push_back(member);
    }
  }
  return out;
}

Json merged_required(const Json& a, const Json& b) {
  Json::Array out = list_of(a);
  for (const Json& name : list_of(b)) {
    if (std::ranges::none_of(out, [&](const Json& known) { return equal(known, name); })) {
      out.push_back(name);
    }
  }
  return out;
}

// How two values of a keyword become one.
enum class Rule : std::uint8_t {
  kEqual,  // only equal values can be merged
  kTypes,
  kProperties,
  kRequired,
  kBoth,  // a schema: both hold
  kLargest,
  kSmallest,
  kEnum,
};
struct KeywordRule {
  std::string_view keyword;
  Rule rule;
};
constexpr std::array kRules = std::to_array<KeywordRule>({
    {"type", Rule::kTypes},
    {"properties", Rule::kProperties},
    {"required", Rule::kRequired},
    {"additionalProperties", Rule::kBoth},
    {"items", Rule::kBoth},
    {"minItems", Rule::kLargest},
    {"minLength", Rule::kLargest},
    {"minimum", Rule::kLargest},
    {"exclusiveMinimum", Rule::kLargest},
    {"maxItems", Rule::kSmallest},
    {"maxLength", Rule::kSmallest},
    {"maximum", Rule::kSmallest},
    {"exclusiveMaximum", Rule::kSmallest},
    {"enum", Rule::kEnum},
});

Result<Json> merged_values(std::string_view keyword, const Json& a, const Json& b) {
  if (equal(a, b)) {
    return a;
  }
  const auto found = std::ranges::find(kRules, keyword, &KeywordRule::keyword);
  const Rule rule = found == kRules.end() ? Rule::kEqual : found->rule;
  const double first = a.number().value_or(0.0);
  const double second = b.number().value_or(0.0);
  switch (rule) {
    case Rule::kTypes: return merged_types(a, b);
    case Rule::kProperties: return merged_properties(a, b);
    case Rule::kRequired: return merged_required(a, b);
    case Rule::kBoth: return both(a, b);
    case Rule::kEnum: return merged_enums(a, b);
    case Rule::kLargest: return first > second ? a : b;
    case Rule::kSmallest: return first < second ? a : b;
    default: break;
  }
  return invalid_argument("two different values of " + quote_unless_plain(keyword) +
                          " cannot be merged");
}

// Refuses an object without further properties if the other one has such.
Status check_closed(const Json& closed, const Json& other) {
  const Json* additional = closed.find("additionalProperties");
  const Json* others = other.find("properties");
  if (additional == nullptr || others == nullptr || others->if_object() == nullptr ||
      (additional->if_bool() != nullptr && *additional->if_bool())) {
    return {};
  }
  const Json* known = closed.find("properties");
  for (const Json::Member& member : *others->if_object()) {
    if (known == nullptr || known->find(member.name) == nullptr) {
      return invalid_argument("additionalProperties cannot be merged with other properties");
    }
  }
  return {};
}

Result<Json> flattened_at(const Json& root, const Json& schema, int depth, int& merges) {
  if (depth > kMaxMergeDepth) {
    return invalid_argument("more than " + std::to_string(kMaxMergeDepth) +
                            " allOf and $ref inside each other");
  }
  if (++merges > kMaxMerges) {
    return invalid_argument("more than " + std::to_string(kMaxMerges) + " schemas to merge");
  }
  if (const bool* all = schema.if_bool()) {
    return Json(*all ? Json::Object{} : Json::Object{{"enum", Json::Array{}}});
  }
  if (schema.if_object() == nullptr) {
    return invalid_argument("a schema must be an object or a boolean");
  }
  Json::Object own;
  for (const Json::Member& member : *schema.if_object()) {
    if (member.name != "$ref" && member.name != "allOf" && !is_annotation(member.name)) {
      own.push_back(member);
    }
  }
  Json out = std::move(own);
  if (const Json* reference = schema.find("$ref")) {
    if (reference->if_string() == nullptr) {
      return invalid_argument("$ref must be text");
    }
    TIDEMILL_ASSIGN_OR_RETURN(const Json* target, resolve_reference(root, *reference->if_string()));
    TIDEMILL_ASSIGN_OR_RETURN(const Json part, flattened_at(root, *target, depth + 1, merges));
    TIDEMILL_ASSIGN_OR_RETURN(out, merged(out, part));
  }
  if (const Json* all = schema.find("allOf")) {
    if (all->if_array() == nullptr) {
      return invalid_argument("allOf must be a list");
    }
    for (const Json& one : *all->if_array()) {
      TIDEMILL_ASSIGN_OR_RETURN(const Json part, flattened_at(root, one, depth + 1, merges));
      TIDEMILL_ASSIGN_OR_RETURN(out, merged(out, part));
    }
  }
  return out;
}

}  // namespace

bool is_annotation(std::string_view keyword) noexcept {
  constexpr std::array kAnnotations = std::to_array<std::string_view>(
      {"title", "description", "default", "examples", "$comment", "$schema", "$id", "$defs",
       "definitions", "deprecated", "readOnly", "writeOnly"});
  return std::ranges::find(kAnnotations, keyword) != kAnnotations.end() ||
         keyword.starts_with("x-");
}

bool restricts(const Json& schema, std::string_view except) noexcept {
  const Json::Object* members = schema.if_object();
  return members != nullptr && std::ranges::any_of(*members, [&](const Json::Member& member) {
           return member.name != except && !is_annotation(member.name);
         });
}

Result<const Json*> resolve_reference(const Json& root, std::string_view reference) {
  const auto missing = [&] { return invalid_argument("there is nothing at " + quote(reference)); };
  if (reference != "#" && !reference.starts_with("#/")) {
    return invalid_argument(
        "only references within the schema, such as #/$defs/NAME, are supported");
  }
  const Json* at = &root;
  for (std::size_t begin = 2; begin <= reference.size() && reference.size() > 1;) {
    const std::size_t end = std::min(reference.find('/', begin), reference.size());
    std::string name;
    for (std::size_t i = begin; i < end; ++i) {
      const bool escaped = reference[i] == '~' && i + 1 < end;
      name += !escaped ? reference[i] : (reference[++i] == '1' ? '/' : '~');
    }
    begin = end + 1;
    if (const Json::Array* items = at->if_array()) {
      std::size_t index = items->size();
      std::from_chars(name.data(), name.data() + name.size(), index);
      if (index >= items->size()) {
        return missing();
      }
      at = &(*items)[index];
    } else {
      at = at->find(name);
    }
    if (at == nullptr) {
      return missing();
    }
  }
  return at;
}

Result<Json> merged(const Json& a, const Json& b) {
  for (const char* keyword : {"properties", "required"}) {
    const Json* first = a.find(keyword);
    const Json* second = b.find(keyword);
    if (first != nullptr && second != nullptr && size_of(*first) + size_of(*second) > kMaxNames) {
      return invalid_argument("at most " + std::to_string(kMaxNames) + " properties are merged");
    }
  }
  TIDEMILL_RETURN_IF_ERROR(check_closed(a, b));
  TIDEMILL_RETURN_IF_ERROR(check_closed(b, a));
  Json::Object out = *a.if_object();
  for (const Json::Member& member : *b.if_object()) {
    if (Json* known = find_mutable(out, member.name)) {
      TIDEMILL_ASSIGN_OR_RETURN(*known, merged_values(member.name, *known, member.value));
    } else {
      out.push_back(member);
    }
  }
  return Json(std::move(out));
}

Result<Json> flattened(const Json& root, const Json& schema, int& merges) {
  return flattened_at(root, schema, 0, merges);
}

}  // namespace tidemill::engines
