// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/schema_compiler.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text/quote.hpp"
#include "engines/constraint/pattern.hpp"
#include "engines/constraint/schema_merge.hpp"

namespace tidemill::engines {
namespace {

// The keywords that are compiled, and the type of values to which each applies.
struct Keyword {
  std::string_view name;
  std::string_view type = {};  // empty: all
};
constexpr std::array kKeywords = std::to_array<Keyword>({
    {"$ref"},
    {"allOf"},
    {"anyOf"},
    {"oneOf"},
    {"enum"},
    {"const"},
    {"type"},
    {"properties", "object"},
    {"required", "object"},
    {"additionalProperties", "object"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"minItems", "array"},
    {"maxItems", "array"},
    {"minLength", "string"},
    {"maxLength", "string"},
    {"pattern", "string"},
    {"format", "string"},
    {"minimum", "number"},
    {"maximum", "number"},
    {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"},
});

constexpr std::array kTypes = std::to_array<std::string_view>(
    {"object", "array", "string", "number", "integer", "boolean", "null"});

// The formats of strings. Each pattern is a part of what the format allows: dates leave out 29
// February, addresses leave out quotes. Source: RFC 3339, RFC 4122, RFC 5321, RFC 2673.
#define TIDEMILL_DATE                                                               \
  R"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30))" \
  R"(|02-(0[1-9]|1\d|2[0-8])))"
#define TIDEMILL_HOUR R"(([01]\d|2[0-3]):[0-5]\d)"
#define TIDEMILL_TIME TIDEMILL_HOUR R"(:[0-5]\d(\.\d{1,6})?(Z|[+-])" TIDEMILL_HOUR ")"
#define TIDEMILL_BYTE R"((\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5]))"
struct Format {
  std::string_view name;
  std::string_view pattern;
};
constexpr std::array kFormats = std::to_array<Format>({
    {"date", "^" TIDEMILL_DATE "$"},
    {"time", "^" TIDEMILL_TIME "$"},
    {"date-time", "^" TIDEMILL_DATE "T" TIDEMILL_TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"email", R"(^[A-Za-z0-9_+-]{1,32}(\.[A-Za-z0-9_+-]{1,15}){0,2}@)"
              R"(([A-Za-z0-9]{1,31}(-[A-Za-z0-9]{1,31})?\.){1,4}[A-Za-z]{2,24}$)"},
    {"ipv4", "^" TIDEMILL_BYTE R"((\.)" TIDEMILL_BYTE "){3}$"},
});
#undef TIDEMILL_DATE
#undef TIDEMILL_HOUR
#undef TIDEMILL_TIME
#undef TIDEMILL_BYTE

std::string member(const std::string& path, std::string_view name) {
  return path + "." + quote_unless_plain(name);
}

std::string element(const std::string& path, std::size_t index) {
  return path + "[" + std::to_string(index) + "]";
}

bool is_of_type(const Json& value, std::string_view type) {
  const bool is_integer = value.if_integer() != nullptr || value.if_large_integer() != nullptr;
  if (type == "integer") {
    return is_integer ||
           (value.number().has_value() && std::trunc(*value.number()) == *value.number());
  }
  return (type == "object" && value.if_object() != nullptr) ||
         (type == "array" && value.if_array() != nullptr) ||
         (type == "string" && value.if_string() != nullptr) ||
         (type == "number" && value.number().has_value()) ||
         (type == "boolean" && value.if_bool() != nullptr) || (type == "null" && value.is_null());
}

const Json& everything() {
  static const Json all(true);
  return all;
}

// Returns the schema without `keyword`.
Json without(const Json& schema, std::string_view keyword) {
  Json::Object out;
  for (const Json::Member& one : *schema.if_object()) {
    if (one.name != keyword) {
      out.push_back(one);
    }
  }
  return out;
}

}  // namespace

Fragment SchemaCompiler::refuse(const std::string& path, const std::string& problem) {
  if (status_.ok()) {
    status_ = invalid_argument(path + ": " + problem);
    refused_ = path;
  }
  return builder_.never();
}

Fragment SchemaCompiler::compile(const std::string& path) {
  return nested(root_, path);
}

// Returns the rule of a schema, which is made at its first use, so that schemas may be recursive.
GrammarBuilder::RuleId SchemaCompiler::rule(const Json& schema, const std::string& path) {
  if (const auto found = known_.find(&schema); found != known_.end()) {
    return found->second;
  }
  const GrammarBuilder::RuleId made = builder_.declare_rule();
  known_.emplace(&schema, made);
  builder_.define_rule(made, value(schema, path));
  return made;
}

// Returns a schema inside another one. Simple types are a part of the outer rule.
Fragment SchemaCompiler::nested(const Json& schema, const std::string& path) {
  const Json* type = schema.find("type");
  if (type != nullptr && type->if_string() != nullptr && !restricts(schema, "type")) {
    return value(schema, path);
  }
  return builder_.call(rule(schema, path));
}

Fragment SchemaCompiler::value(const Json& schema, const std::string& path) {
  if (!status_.ok() || builder_.is_full()) {
    return builder_.never();
  }
  if (const bool* all = schema.if_bool()) {
    return *all ? rules_.any_value() : builder_.never();
  }
  if (schema.if_object() == nullptr) {
    return refuse(path, "a schema must be an object or a boolean");
  }
  if (depth_ >= kMaxSchemaDepth) {
    return refuse(path,
                  "more than " + std::to_string(kMaxSchemaDepth) + " schemas inside each other");
  }
  ++depth_;
  const Fragment out = restricted(schema, path);
  --depth_;
  return out;
}

bool SchemaCompiler::check_keywords(const Json& schema, const std::string& path) {
  for (const Json::Member& one : *schema.if_object()) {
    const bool known = std::ranges::find(kKeywords, one.name, &Keyword::name) != kKeywords.end();
    if (!known && !is_annotation(one.name)) {
      refuse(member(path, one.name), "this keyword is not supported");
      return false;
    }
  }
  return true;
}

Fragment SchemaCompiler::restricted(const Json& schema, const std::string& path) {
  if (!check_keywords(schema, path)) {
    return builder_.never();
  }
  if (schema.find("$ref") != nullptr && !restricts(schema, "$ref")) {
    return reference(schema, path);
  }
  if (schema.find("$ref") != nullptr || schema.find("allOf") != nullptr) {
    return flat(schema, path);
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (schema.find(keyword) != nullptr) {
      return alternatives(schema, keyword, path);
    }
  }
  if (schema.find("enum") != nullptr || schema.find("const") != nullptr) {
    return enumeration(schema, path);
  }
  const std::vector<std::string> types = types_of(schema, path);
  if (types.empty() && status_.ok() && schema.find("type") == nullptr) {
    return rules_.any_value();
  }
  std::vector<Fragment> parts;
  parts.reserve(types.size());
  for (const std::string& type : types) {
    parts.push_back(of_type(type, schema, path));
  }
  return builder_.choice(parts);
}

// -- combinations ---------------------------------------------------------------------------------

Fragment SchemaCompiler::reference(const Json& schema, const std::string& path) {
  const std::string* text = schema.find("$ref")->if_string();
  if (text == nullptr) {
    return refuse(member(path, "$ref"), "must be text");
  }
  const auto target = resolve_reference(root_, *text);
  if (!target.ok()) {
    return refuse(member(path, "$ref"), target.status().message());
  }
  return builder_.call(rule(*target.value(), path));
}

Fragment SchemaCompiler::flat(const Json& schema, const std::string& path) {
  auto merged_schema = flattened(root_, schema, merges_);
  if (!merged_schema.ok()) {
    return refuse(member(path, schema.find("allOf") != nullptr ? "allOf" : "$ref"),
                  merged_schema.status().message());
  }
  merged_.push_back(std::move(merged_schema).value());
  return value(merged_.back(), path);
}

// Returns the alternatives of `anyOf` or `oneOf`. Each must also satisfy the other keywords.
Fragment SchemaCompiler::alternatives(const Json& schema, const char* keyword,
                                      const std::string& path) {
  const Json::Array* list = schema.find(keyword)->if_array();
  const std::string where = member(path, keyword);
  if (list == nullptr || list->empty()) {
    return refuse(where, "must be a list of at least one schema");
  }
  if (list->size() > kMaxEnumValues) {
    return refuse(where, "at most " + std::to_string(kMaxEnumValues) + " schemas");
  }
  const bool alone = !restricts(schema, keyword);
  std::vector<Fragment> parts;
  for (std::size_t i = 0; i < list->size() && status_.ok(); ++i) {
    if (alone) {
      parts.push_back(nested((*list)[i], element(where, i)));
      continue;
    }
    const auto outer = flattened(root_, without(schema, keyword), merges_);
    const auto inner = flattened(root_, (*list)[i], merges_);
    const Status& failed = outer.ok() ? inner.status() : outer.status();
    auto both = failed.ok() ? merged(outer.value(), inner.value()) : Result<Json>(failed);
    if (!both.ok()) {
      return refuse(element(where, i), both.status().message());
    }
    merged_.push_back(std::move(both).value());
    parts.push_back(nested(merged_.back(), element(where, i)));
  }
  return builder_.choice(parts);
}

Fragment SchemaCompiler::enumeration(const Json& schema, const std::string& path) {
  for (const Json::Member& one : *schema.if_object()) {
    if (one.name != "enum" && one.name != "const" && one.name != "type" &&
        !is_annotation(one.name)) {
      return refuse(member(path, one.name), "is not supported beside enum or const");
    }
  }
  const Json* one_of = schema.find("enum");
  const Json* only = schema.find("const");
  if (one_of != nullptr && one_of->if_array() == nullptr) {
    return refuse(member(path, "enum"), "must be a list");
  }
  const Json::Array values = one_of != nullptr ? *one_of->if_array() : Json::Array{*only};
  if (values.size() > kMaxEnumValues) {
    return refuse(member(path, "enum"), "at most " + std::to_string(kMaxEnumValues) + " values");
  }
  const bool typed = schema.find("type") != nullptr;
  const std::vector<std::string> types =
      typed ? types_of(schema, path) : std::vector<std::string>();
  std::vector<Fragment> parts;
  for (const Json& one : values) {
    const bool fits = !typed || std::ranges::any_of(types, [&](const std::string& type) {
      return is_of_type(one, type);
    });
    if (fits && (only == nullptr || only->to_line() == one.to_line())) {
      parts.push_back(rules_.literal(one));
    }
  }
  return builder_.choice(parts);
}

// Returns the types that a schema allows: those that it names, or else those to which its keywords
// apply. None if there are no such keywords.
std::vector<std::string> SchemaCompiler::types_of(const Json& schema, const std::string& path) {
  std::vector<std::string> types;
  const Json* type = schema.find("type");
  if (type == nullptr) {
    for (const Keyword& one : kKeywords) {
      if (!one.type.empty() && schema.find(one.name) != nullptr &&
          std::ranges::find(types, one.type) == types.end()) {
        types.emplace_back(one.type);
      }
    }
    return types;
  }
  const Json::Array names = type->if_array() != nullptr ? *type->if_array() : Json::Array{*type};
  for (const Json& name : names) {
    if (name.if_string() == nullptr ||
        std::ranges::find(kTypes, *name.if_string()) == kTypes.end()) {
      refuse(member(path, "type"),
             "must be object, array, string, number, integer, boolean or null, or a list of these");
      return {};
    }
    types.push_back(*name.if_string());
  }
  return types;
}

Fragment SchemaCompiler::of_type(const std::string& type, const Json& schema,
                                 const std::string& path) {
  if (type == "object") {
    return object(schema, path);
  }
  if (type == "array") {
    return array(schema, path);
  }
  if (type == "string") {
    return string(schema, path);
  }
  if (type == "boolean") {
    return builder_.choice({builder_.text("true"), builder_.text("false")});
  }
  if (type == "null") {
    return builder_.text("null");
  }
  return number(schema, path, type == "integer");
}

SchemaCompiler::Counts SchemaCompiler::counts(const Json& schema, const char* min, const char* max,
                                              const std::string& path) {
  Counts out;
  for (const char* keyword : {min, max}) {
    const Json* value = schema.find(keyword);
    if (value == nullptr) {
      continue;
    }
    const std::int64_t* count = value->if_integer();
    if (count == nullptr || *count < 0 || *count > kMaxSchemaCount) {
      refuse(member(path, keyword),
             "must be an integer from 0 to " + std::to_string(kMaxSchemaCount));
      return {};
    }
    (keyword == min ? out.min : out.max) = static_cast<std::int32_t>(*count);
  }
  return out;
}

// -- objects and arrays ---------------------------------------------------------------------------

// Returns the schema of properties that are not listed, or null if there must be none. If a schema
// lists properties and does not mention others, there are none.
const Json* SchemaCompiler::additional_of(const Json& schema) {
  const Json* additional = schema.find("additionalProperties");
  if (additional == nullptr) {
    return schema.find("properties") != nullptr ? nullptr : &everything();
  }
  const bool* all = additional->if_bool();
  return all == nullptr ? additional : (*all ? &everything() : nullptr);
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties_of(const Json& schema,
                                                                    const std::string& path) {
  std::vector<Property> out;
  const Json* properties = schema.find("properties");
  const Json* required = schema.find("required");
  const Json::Object* members = properties == nullptr ? nullptr : properties->if_object();
  const Json::Array* names = required == nullptr ? nullptr : required->if_array();
  if ((properties != nullptr && members == nullptr) || (required != nullptr && names == nullptr)) {
    refuse(member(path, members == nullptr && properties != nullptr ? "properties" : "required"),
           "properties must be an object, and required a list of names");
    return {};
  }
  if ((members != nullptr ? members->size() : 0) + (names != nullptr ? names->size() : 0) >
      2 * kMaxProperties) {
    refuse(member(path, "properties"), "at most " + std::to_string(kMaxProperties) + " properties");
    return {};
  }
  if (members != nullptr) {
    for (const Json::Member& one : *members) {
      out.push_back({one.name, &one.value, false, member(member(path, "properties"), one.name)});
    }
  }
  const Json* additional = additional_of(schema);
  for (const Json& name : names != nullptr ? *names : Json::Array()) {
    if (name.if_string() == nullptr) {
      refuse(member(path, "required"), "must be a list of names");
      return {};
    }
    auto found = std::ranges::find(out, *name.if_string(), &Property::name);
    if (found == out.end()) {
      if (additional == nullptr && schema.find("additionalProperties") != nullptr) {
        refuse(member(path, "required"), quote(*name.if_string()) + " is not a property");
        return {};
      }
      out.push_back({*name.if_string(), additional != nullptr ? additional : &everything(), false,
                     member(path, "additionalProperties")});
      found = out.end() - 1;
    }
    found->required = true;
  }
  return out;
}

// Properties are in the order of the schema, and others follow. `names[i]` is the state before the
// name of property i or a later one, `values[i]` the state after the value of a property before i.
Fragment SchemaCompiler::object(const Json& schema, const std::string& path) {
  const std::vector<Property> properties = properties_of(schema, path);
  const Json* additional = additional_of(schema);
  if (!status_.ok()) {
    return builder_.never();
  }
  if (properties.empty() && additional == &everything()) {
    return rules_.any_object();
  }
  const std::size_t count = properties.size();
  std::vector<std::int32_t> names;
  std::vector<std::int32_t> values;
  std::size_t last_required = 0;  // one more than its index
  for (std::size_t i = 0; i <= count; ++i) {
    names.push_back(builder_.add_state());
    values.push_back(builder_.add_state());
    last_required = i < count && properties[i].required ? i + 1 : last_required;
  }
  const Fragment open = builder_.text("{");
  const Fragment close = builder_.text("}");
  builder_.add_edge(open.end, names[0]);
  if (last_required == 0) {
    builder_.add_edge(open.end, close.start);
  }
  const auto add_member = [&](std::int32_t from, Fragment name, Fragment content, std::int32_t to) {
    const Fragment whole = builder_.sequence({name, rules_.separator(':'), content});
    builder_.add_edge(from, whole.start);
    builder_.add_edge(whole.end, to);
  };
  for (std::size_t i = 0; i < count && status_.ok(); ++i) {
    add_member(names[i], rules_.literal(properties[i].name),
               nested(*properties[i].schema, properties[i].path), values[i + 1]);
    if (!properties[i].required) {
      builder_.add_edge(names[i], names[i + 1]);
    }
  }
  for (std::size_t i = 0; i <= count; ++i) {
    const Fragment comma = rules_.separator(',');
    builder_.add_edge(values[i], comma.start);
    builder_.add_edge(comma.end, names[i]);
    if (i >= last_required) {
      builder_.add_edge(values[i], close.start);
    }
  }
  if (additional != nullptr) {
    std::vector<std::string> known;
    known.reserve(count);
    for (const Property& one : properties) {
      known.push_back(one.name);
    }
    add_member(names[count], rules_.other_name(known),
               nested(*additional, member(path, "additionalProperties")), values[count]);
  }
  return {open.start, close.end};
}

// Items are as `prefixItems` says, and the others as `items`. If there are only `prefixItems`,
// others follow only as far as `minItems` requires.
Fragment SchemaCompiler::array(const Json& schema, const std::string& path) {
  Counts range = counts(schema, "minItems", "maxItems", path);
  const Json* prefix = schema.find("prefixItems");
  const Json* items = schema.find("items");
  if (prefix != nullptr && prefix->if_array() == nullptr) {
    return refuse(member(path, "prefixItems"), "must be a list of schemas");
  }
  if (items != nullptr && items->if_array() != nullptr) {
    return refuse(member(path, "items"), "must be a schema; use prefixItems for a list of them");
  }
  const Json::Array first = prefix != nullptr ? *prefix->if_array() : Json::Array();
  const auto num_first = static_cast<std::int32_t>(std::min(first.size(), kMaxEnumValues + 1));
  if (first.size() > kMaxEnumValues) {
    return refuse(member(path, "prefixItems"),
                  "at most " + std::to_string(kMaxEnumValues) + " schemas");
  }
  if (prefix != nullptr && items == nullptr) {
    range.max = std::min(range.max, std::max(range.min, num_first));
  }
  if (range.min > range.max) {
    return builder_.never();
  }
  const Json& others = items != nullptr ? *items : everything();
  const auto item = [&](std::int32_t index) {
    const auto at = static_cast<std::size_t>(index);
    return index < num_first
               ? nested((*prefix->if_array())[at], element(member(path, "prefixItems"), at))
               : nested(others, member(path, "items"));
  };
  const Fragment open = builder_.text("[");
  const Fragment close = builder_.text("]");
  std::int32_t at = open.end;
  for (std::int32_t i = 0; status_.ok() && !builder_.is_full(); ++i) {
    if (i >= range.min) {
      builder_.add_edge(at, close.start);
    }
    if (i >= range.max) {
      break;
    }
    const Fragment one = i == 0 ? item(i) : builder_.sequence({rules_.separator(','), item(i)});
    builder_.add_edge(at, one.start);
    const bool repeats =
        range.max == GrammarBuilder::kUnbounded && i > 0 && i >= num_first && i >= range.min;
    if (repeats) {
      builder_.add_edge(one.end, at);
      break;
    }
    at = one.end;
  }
  return {open.start, close.end};
}

// -- strings and numbers --------------------------------------------------------------------------

Fragment SchemaCompiler::string(const Json& schema, const std::string& path) {
  const Json* pattern = schema.find("pattern");
  const Json* format = schema.find("format");
  const bool counted = schema.find("minLength") != nullptr || schema.find("maxLength") != nullptr;
  if (pattern == nullptr && format == nullptr) {
    const Counts length = counts(schema, "minLength", "maxLength", path);
    return counted ? (length.min <= length.max ? rules_.string_of_length(length.min, length.max)
                                               : builder_.never())
                   : rules_.any_string();
  }
  const char* keyword = pattern != nullptr ? "pattern" : "format";
  if (counted || (pattern != nullptr && format != nullptr)) {
    return refuse(member(path, keyword),
                  "is supported only without the other one and without minLength and maxLength");
  }
  const std::string* text = schema.find(keyword)->if_string();
  if (text == nullptr) {
    return refuse(member(path, keyword), "must be text");
  }
  std::string_view regex = *text;
  if (pattern == nullptr) {
    const auto found = std::ranges::find(kFormats, *text, &Format::name);
    if (found == kFormats.end()) {
      return refuse(member(path, keyword),
                    "must be date, time, date-time, uuid, email or ipv4; no other is supported");
    }
    regex = found->pattern;
  }
  const auto content = pattern_content(regex, builder_, rules_);
  if (!content.ok()) {
    return refuse(member(path, keyword), content.status().message());
  }
  return builder_.sequence({builder_.text("\""), content.value(), builder_.text("\"")});
}

std::optional<NumberBound> SchemaCompiler::bound(const Json& schema, const char* inclusive,
                                                 const char* exclusive, bool is_min,
                                                 bool is_integer, const std::string& path) {
  std::optional<NumberBound> tightest;
  for (const char* keyword : {inclusive, exclusive}) {
    const Json* value = schema.find(keyword);
    if (value == nullptr) {
      continue;
    }
    const auto number = value->number();
    if (!number.has_value() || std::abs(*number) > static_cast<double>(kMaxInteger) ||
        (!is_integer && std::trunc(*number) != *number)) {
      refuse(member(path, keyword),
             "must be an integer of at most 18 digits; other limits are not supported");
      return std::nullopt;
    }
    NumberBound one{
        value->if_integer() != nullptr
            ? *value->if_integer()
            : static_cast<std::int64_t>(is_min ? std::ceil(*number) : std::floor(*number)),
        keyword == exclusive && std::trunc(*number) == *number};
    one.value = std::clamp(one.value, -kMaxInteger, kMaxInteger);
    const bool tighter = !tightest.has_value() ||
                         (is_min ? one.value > tightest->value : one.value < tightest->value) ||
                         (one.value == tightest->value && one.exclusive);
    tightest = tighter ? one : *tightest;
  }
  return tightest;
}

Fragment SchemaCompiler::number(const Json& schema, const std::string& path, bool is_integer) {
  const NumberRange range{bound(schema, "minimum", "exclusiveMinimum", true, is_integer, path),
                          bound(schema, "maximum", "exclusiveMaximum", false, is_integer, path)};
  return is_integer ? rules_.integer(range) : rules_.number(range);
}

}  // namespace tidemill::engines
