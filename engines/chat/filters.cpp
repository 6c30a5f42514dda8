// SPDX-License-Identifier: Apache-2.0
// The filters that work on one value: text, numbers, JSON. Filters on sequences are in
// sequence_filters.cpp.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/utf8.hpp"
#include "engines/chat/builtins.hpp"
#include "engines/chat/format.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/sequence_filters.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Kind = Value::Kind;

// ---- Text ---------------------------------------------------------------------------------------

template <std::string (*map)(std::string_view)>
Value mapped(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("a text filter", arguments, {});
  const std::string text = text_of(runtime, input);
  runtime.budget.allocate(8 * text.size());
  return make_string(runtime, map(text));
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

Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("trim", arguments, {"chars"});
  Arguments rest;
  if (bound.find(0) != nullptr) {
    rest.positional.push_back(*bound.find(0));
  }
  const Value text = make_string(runtime, text_of(runtime, input));
  return find_method(runtime, text, "strip").as_callable().call(rest);
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
  return input.is_string() ? input : Value(text_of(runtime, input));
}

Value format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes positional or named arguments, not both");
  }
  return Value(
      format_percent(runtime, text_of(runtime, input), arguments, UnusedArguments::kRefused));
}

Value center(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("center", arguments, {"width"});
  Arguments rest;
  rest.positional.emplace_back(bound.integer(0, 80));
  const Value text = make_string(runtime, text_of(runtime, input));
  return find_method(runtime, text, "center").as_callable().call(rest);
}

Value indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  std::string indentation;
  if (bound.find(0) != nullptr && bound.find(0)->is_string()) {
    indentation = bound.find(0)->as_string();
  } else {
    const std::int64_t width = std::max<std::int64_t>(bound.integer(0, 4), 0);
    runtime.budget.allocate(static_cast<std::uint64_t>(width));
    indentation.assign(static_cast<std::size_t>(width), ' ');
  }
  require_defined(input);
  if (!input.is_string()) {
    fail("indent: the input must be a str");
  }
  const std::string text = input.as_string() + "\n";
  const auto lines = split_lines(text, /*keep_ends=*/false);
  std::string out = bound.flag(1, false) ? indentation : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    runtime.budget.allocate(lines[i].size() + indentation.size() + 1);
    if (i > 0) {
      out += '\n';
    }
    if (i > 0 && (bound.flag(2, false) || !lines[i].empty())) {
      out += indentation;
    }
    out += lines[i];
  }
  return Value(std::move(out));
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

// Parses a number like Python's float(), with white space around it and underscores between digits.
std::optional<double> parse_float(std::string_view text) {
  std::string plain(strip(text));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] != '_') {
      continue;
    }
    const auto digit = [&plain](std::size_t k) {
      return k < plain.size() && plain[k] >= '0' && plain[k] <= '9';
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  const bool has_plus = !plain.empty() && plain.front() == '+';
  if (has_plus) {
    plain.erase(0, 1);
  }
  if (has_plus && !plain.empty() && plain.front() == '-') {
    return std::nullopt;
  }
  double value = 0;
  const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (parsed.ptr != plain.data() + plain.size() || plain.empty()) {
    return std::nullopt;
  }
  if (parsed.ec == std::errc::result_out_of_range) {
    return std::strtod(plain.c_str(), nullptr);
  }
  if (parsed.ec != std::errc()) {
    return std::nullopt;
  }
  return value;
}

enum class IntParse : std::uint8_t { kOk, kNoInteger, kTooLarge };

// Parses an integer like Python's int().
IntParse parse_int(std::string_view text, int base, std::int64_t& value) {
  std::string plain(strip(text));
  std::string sign;
  if (!plain.empty() && (plain[0] == '-' || plain[0] == '+')) {
    if (plain[0] == '-') {
      sign = "-";
    }
    plain.erase(0, 1);
  }
  const auto has_prefix = [&plain](char letter) {
    return plain.size() > 2 && plain[0] == '0' && (plain[1] | 0x20) == letter;
  };
  if ((base == 16 && has_prefix('x')) || (base == 8 && has_prefix('o')) ||
      (base == 2 && has_prefix('b'))) {
    plain.erase(0, 2);
  }
  const bool bad_underscore = plain.empty() || plain.front() == '_' || plain.back() == '_' ||
                              plain.find("__") != std::string::npos || plain.front() == '-' ||
                              plain.front() == '+';
  if (bad_underscore) {
    return IntParse::kNoInteger;
  }
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  plain.insert(0, sign);
  const auto parsed = std::from_chars(plain.data(), plain.data() + plain.size(), value, base);
  if (parsed.ptr != plain.data() + plain.size()) {
    return IntParse::kNoInteger;
  }
  return parsed.ec == std::errc() ? IntParse::kOk : IntParse::kTooLarge;
}

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
    const std::int64_t width = std::clamp<std::int64_t>(bound.integer(1, 0), 0, 100);
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

Value safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return string(runtime, input, arguments);
}

constexpr std::array<std::pair<std::string_view, Filter>, 39> kFilters = {{
    {"abs", absolute},
    {"attr", attr},
    {"capitalize", mapped<capitalize>},
    {"center", center},
    {"count", filter_length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"float", to_float},
    {"format", format},
    {"indent", indent},
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
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", replace},
    {"reverse", filter_reverse},
    {"round", round},
    {"safe", safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"string", string},
    {"sum", filter_sum},
    {"title", mapped<title>},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", filter_unique},
    {"upper", mapped<to_upper>},
    {"wordcount", wordcount},
}};

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* found = std::find_if(kFilters.begin(), kFilters.end(),
                                   [name](const auto& entry) { return entry.first == name; });
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace tidemill::engines::chat
