// SPDX-License-Identifier: Apache-2.0
// The filters that work on one value: text, numbers, JSON. Filters on sequences are in
// sequence_filters.cpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/parse_number.hpp"
#include "engines/chat/sequence_filters.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/text_filters.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Kind = Value::Kind;

// ---- Text ---------------------------------------------------------------------------------------

// Returns a string unchanged and other values as text.
Value as_string(Runtime& runtime, const Value& input) {
  return input.is_string() ? input : Value(text_of(runtime, input));
}

// Calls a method of the string that the input is or prints.
Value call_method(Runtime& runtime, const Value& input, std::string_view name,
                  const Arguments& arguments) {
  return find_method(runtime, as_string(runtime, input), name).as_callable().call(arguments);
}

template <std::string (*map)(std::string_view)>
Value mapped(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("a text filter", arguments, {});
  const Value text = as_string(runtime, input);
  runtime.budget.allocate(9 * text.as_string().size());
  return string_like(text, map(text.as_string()));
}

// Words begin after white space and after - ( { [ <.
std::string title(std::string_view text) {
  std::string out;
  std::size_t begin = 0;
  const auto put_word = [&](std::size_t end) {
    if (begin == end) {
      return;
    }
    const std::string_view word = text.substr(begin, end - begin);
    const std::size_t first = read_utf8(word, 0).length;
    out += to_upper(word.substr(0, first)) + to_lower(word.substr(first));
  };
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const bool separates =
        is_space(step.code_point) ||
        (step.length == 1 && std::string_view("-({[<").find(text[i]) != std::string_view::npos);
    if (separates) {
      put_word(i);
      out.append(text.substr(i, step.length));
      begin = i + step.length;
    }
    i += step.length;
  }
  put_word(text.size());
  return out;
}

Value filter_title(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("title", arguments, {});
  const std::string text = text_of(runtime, input);
  runtime.budget.allocate(8 * text.size());
  return make_string(runtime, title(text));
}

Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  Arguments rest;
  if (bound.find(0) != nullptr) {
    rest.positional.push_back(*bound.find(0));
  }
  return call_method(runtime, input, "strip", rest);
}

Value replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"});
  const bool all = bound.find(2) == nullptr || bound.find(2)->is_none();
  return Value(replace_all(runtime.budget, text_of(runtime, input),
                           text_of(runtime, bound.require(0)), text_of(runtime, bound.require(1)),
                           all ? -1 : bound.integer(2, -1)));
}

Value string(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("string", arguments, {});
  return as_string(runtime, input);
}

Value format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes positional or named arguments, not both");
  }
  Value operand = make_sequence(runtime, arguments.positional, SequenceKind::kTuple);
  if (!arguments.named.empty()) {
    Dict named;
    for (const auto& [name, value] : arguments.named) {
      insert(runtime, named, Value(name), value);
    }
    operand = make_dict(runtime, std::move(named));
  }
  return apply(runtime, BinaryOp::kModulo, as_string(runtime, input), operand);
}

Value center(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("center", arguments, {"width"});
  Arguments rest;
  rest.positional.emplace_back(bound.integer(0, 80));
  return call_method(runtime, input, "center", rest);
}

Value wordcount(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("wordcount", arguments, {});
  const std::string text = text_of(runtime, input);
  std::int64_t words = 0;
  bool inside = false;
  for (const std::string_view character : characters_of(text)) {
    const char32_t c = read_utf8(character, 0).code_point;
    const bool in_word = is_alphabetic(c) || is_numeric(c) || c == U'_';
    words += in_word && !inside ? 1 : 0;
    inside = in_word;
  }
  return words;
}

// ---- Numbers ------------------------------------------------------------------------------------

std::int64_t truncated(double value) {
  if (!(value >= -9223372036854775808.0 && value < 9223372036854775808.0)) {
    fail("an integer result does not fit in 64 bits");
  }
  return static_cast<std::int64_t>(value);
}

Value to_int(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("int", arguments, {"default", "base"});
  Value when_none = bound.find(0) == nullptr ? Value(0) : *bound.find(0);
  require_defined(input);
  if (const auto integer = input.integer()) {
    return *integer;
  }
  if (input.is(Kind::kFloat)) {
    if (!std::isfinite(input.as_float())) {
      return when_none;
    }
    return truncated(input.as_float());
  }
  if (!input.is_string()) {
    return when_none;
  }
  runtime.budget.scan(input.as_string().size());
  const std::int64_t base = bound.integer(1, 10);
  if (base < 2 || base > 36) {
    fail("int: the base must be from 2 to 36");
  }
  std::int64_t value = 0;
  switch (parse_int(input.as_string(), static_cast<int>(base), value)) {
    case IntParse::kOk: return value;
    case IntParse::kTooLarge: fail("an integer result does not fit in 64 bits");
    case IntParse::kNoInteger: break;
  }
  const auto number = parse_float(input.as_string());
  if (!number || !std::isfinite(*number)) {
    return when_none;
  }
  return truncated(*number);
}

Value to_float(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("float", arguments, {"default"});
  Value when_none = bound.find(0) == nullptr ? Value(0.0) : *bound.find(0);
  require_defined(input);
  if (const auto number = input.number()) {
    return *number;
  }
  if (!input.is_string()) {
    return when_none;
  }
  runtime.budget.scan(input.as_string().size());
  const auto number = parse_float(input.as_string());
  return number ? Value(*number) : when_none;
}

// Rounds the decimal expansion, half to even, like Python's round(). glibc prints doubles exactly.
double round_decimal(double value, std::int64_t precision) {
  if (!std::isfinite(value) || precision > 300) {
    return value;
  }
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::isinf(scale) ? 0.0 : std::nearbyint(value / scale) * scale;
  }
  std::array<char, 700> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(precision),
                value);  // NOLINT
  return std::strtod(buffer.data(), nullptr);
}

std::int64_t round_integer(std::int64_t value, std::int64_t precision) {
  if (precision >= 0) {
    return value;
  }
  if (precision < -18) {
    return 0;
  }
  std::int64_t scale = 1;
  for (std::int64_t i = precision; i < 0; ++i) {
    scale *= 10;
  }
  std::int64_t rest = value % scale;
  if (rest < 0) {
    rest += scale;
  }
  const std::int64_t floor = value - rest;
  const bool up = rest > scale - rest || (rest == scale - rest && (floor / scale) % 2 != 0);
  std::int64_t result = 0;
  if (__builtin_add_overflow(floor, up ? scale : 0, &result)) {
    fail("an integer result does not fit in 64 bits");
  }
  return result;
}

Value round(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("round", arguments, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const std::string method = bound.find(1) != nullptr && bound.find(1)->is_string()
                                 ? bound.find(1)->as_string()
                                 : "common";
  require_defined(input);
  const auto number = input.number();
  if (!number) {
    fail("round: the input must be a number, not " + std::string(input.type_name()));
  }
  if (method == "common") {
    if (const auto integer = input.integer()) {
      return round_integer(*integer, precision);
    }
    return round_decimal(*number, precision);
  }
  if (method != "ceil" && method != "floor") {
    fail("method must be common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return (method == "ceil" ? std::ceil(*number * scale) : std::floor(*number * scale)) / scale;
}

Value absolute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("abs", arguments, {});
  require_defined(input);
  if (!input.is_number()) {
    fail("bad operand type for abs()");
  }
  if (input.is(Kind::kFloat)) {
    return std::fabs(input.as_float());
  }
  const std::int64_t value = *input.integer();
  return value < 0 ? apply(runtime, UnaryOp::kNegate, Value(value)) : Value(value);
}

// ---- The rest -----------------------------------------------------------------------------------

Value default_value(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("default", arguments, {"default_value", "boolean"});
  if (!input.is_undefined() && (!bound.flag(1, false) || input.truthy())) {
    return input;
  }
  return bound.find(0) == nullptr ? Value("") : *bound.find(0);
}

Value attr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("attr", arguments, {"name"});
  if (!bound.require(0).is_string()) {
    fail("attr: the name must be a string");
  }
  const std::string& name = bound.require(0).as_string();
  require_defined(input);
  if (input.is(Kind::kNamespace)) {
    return get_attribute(runtime, input, name);
  }
  Value method = find_method(runtime, input, name);
  if (!method.is_undefined()) {
    return method;
  }
  return Value::undefined("'" + std::string(input.type_name()) + " object' has no attribute '" +
                          name + "'");
}

Value tojson(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("tojson", arguments,
                             {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = bound.flag(0, false);
  format.sort_keys = bound.flag(3, false);
  const Value* indent_by = bound.find(1);
  if (indent_by != nullptr && indent_by->is_string()) {
    format.indent = indent_by->as_string();
  } else if (indent_by != nullptr && !indent_by->is_none()) {
    const std::int64_t width = std::max<std::int64_t>(bound.integer(1, 0), 0);
    runtime.budget.allocate(static_cast<std::uint64_t>(width));
    format.indent = std::string(static_cast<std::size_t>(width), ' ');
  }
  if (bound.find(2) != nullptr && !bound.find(2)->is_none()) {
    const List separators = iterate(runtime, *bound.find(2));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail("tojson: separators must be two strings");
    }
    format.item_separator = separators[0].as_string();
    format.key_separator = separators[1].as_string();
  }
  return Value(to_json(input, format, runtime.budget));
}

// A random choice would give a different text each time.
Value random(Runtime& /*runtime*/, const Value& /*input*/, const Arguments& /*arguments*/) {
  fail("the filter 'random' is not supported, because rendering must be deterministic");
}

constexpr std::array<std::pair<std::string_view, Filter>, 54> kFilters = {{
    {"abs", absolute},
    {"attr", attr},
    {"batch", filter_batch},
    {"capitalize", mapped<capitalize>},
    {"center", center},
    {"count", filter_length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"first", filter_first},
    {"float", to_float},
    {"forceescape", filter_forceescape},
    {"format", format},
    {"groupby", filter_groupby},
    {"indent", filter_indent},
    {"int", to_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", mapped<to_lower>},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"pprint", filter_pprint},
    {"random", random},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", replace},
    {"reverse", filter_reverse},
    {"round", round},
    {"safe", filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"string", string},
    {"striptags", filter_striptags},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", filter_truncate},
    {"unique", filter_unique},
    {"upper", mapped<to_upper>},
    {"urlencode", filter_urlencode},
    {"urlize", filter_urlize},
    {"wordcount", wordcount},
    {"wordwrap", filter_wordwrap},
    {"xmlattr", filter_xmlattr},
}};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* found = std::find_if(kFilters.begin(), kFilters.end(),
                                   [name](const auto& entry) { return entry.first == name; });
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace tidemill::engines::chat
