// SPDX-License-Identifier: Apache-2.0
// The filters for HTML and URLs, and the ones that shorten, indent or format text.
#include "engines/chat/text_filters.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/parse_number.hpp"
#include "engines/chat/string_search.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

// ---- URLs ---------------------------------------------------------------------------------------

// Where a part of a URL is used: in a path, where "/" remains, or in a query, where a space becomes
// "+".
enum class UrlPart : std::uint8_t { kPath, kQuery };

void append_quoted(Runtime& runtime, const Value& value, UrlPart part, std::string& out) {
  constexpr std::string_view kSafe =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const std::string text = text_of(runtime, value);
  runtime.budget.allocate(3 * text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (kSafe.find(c) != std::string_view::npos || (part == UrlPart::kPath && c == '/')) {
      out.push_back(c);
    } else if (part == UrlPart::kQuery && c == ' ') {
      out.push_back('+');
    } else {
      out.push_back('%');
      out.push_back(kHex[byte >> 4U]);
      out.push_back(kHex[byte & 0xFU]);
    }
  }
}

// Returns the pairs of a query string: the items of a mapping, or each pair of a sequence.
std::vector<std::pair<Value, Value>> query_pairs(Runtime& runtime, const Value& input) {
  std::vector<std::pair<Value, Value>> pairs;
  if (input.is_dict()) {
    for (const Dict::Entry& entry : input.as_dict().entries()) {
      pairs.emplace_back(entry.key, entry.value);
    }
    return pairs;
  }
  for (const Value& item : iterate(runtime, input)) {
    require_defined(item);
    List pair = iterate(runtime, item);
    if (pair.size() != 2) {
      fail("urlencode: the input must be text, a mapping or a sequence of pairs");
    }
    pairs.emplace_back(std::move(pair[0]), std::move(pair[1]));
  }
  return pairs;
}

// ---- Sizes --------------------------------------------------------------------------------------

double size_in_bytes(Runtime& runtime, const Value& input) {
  require_defined(input);
  if (const auto number = input.number()) {
    return *number;
  }
  if (!input.is_string()) {
    fail("filesizeformat: the input must be a number, not " + std::string(input.type_name()));
  }
  return parsed_number(runtime, input).as_float();
}

// Formats with the given number of decimals. glibc rounds exactly, like Python.
std::string with_decimals(double value, int decimals) {
  std::array<char, 400> buffer{};
  const int size = std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);  // NOLINT
  return {buffer.data(), static_cast<std::size_t>(size)};
}

// ---- Wrapped and shortened text -----------------------------------------------------------------

bool is_xml_name(std::string_view name) {
  return name.find_first_of(" \t\n\r\f\v/>=") == std::string_view::npos;
}

// Returns the width of `indent` as text. It is markup if it was given as markup or the input is.
Value indentation_of(Runtime& runtime, const BoundArguments& bound, const Value& input) {
  if (bound.find(0) != nullptr && bound.find(0)->is_string()) {
    return input.is_markup() ? as_markup(runtime, *bound.find(0)) : *bound.find(0);
  }
  const std::int64_t width = std::max<std::int64_t>(bound.integer(0, 4), 0);
  runtime.budget.allocate(static_cast<std::uint64_t>(width));
  return string_like(input, std::string(static_cast<std::size_t>(width), ' '));
}

// Joins lines with line ends and indents those after the first one.
std::string indented(Runtime& runtime, const std::vector<std::string_view>& lines,
                     const std::string& indentation, bool indents_empty_lines) {
  std::string out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    runtime.budget.allocate(lines[i].size() + indentation.size() + 1);
    if (i > 0) {
      out += '\n';
    }
    if (i > 0 && (indents_empty_lines || !lines[i].empty())) {
      out += indentation;
    }
    out += lines[i];
  }
  return out;
}

}  // namespace

// ---- HTML ---------------------------------------------------------------------------------------

Value filter_escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("escape", arguments, {});
  return escaped(runtime, input);
}

Value filter_forceescape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("forceescape", arguments, {});
  return escaped_text(runtime, text_of(runtime, input));
}

Value filter_safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("safe", arguments, {});
  return input.is_markup() ? input : Value::markup(text_of(runtime, input));
}

Value filter_striptags(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("striptags", arguments, {});
  const std::string text = text_of(runtime, input);
  runtime.budget.allocate(3 * text.size());
  return make_string(runtime, strip_tags(text));
}

Value filter_xmlattr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("xmlattr", arguments, {"autospace"});
  require_defined(input);
  if (!input.is_dict()) {
    fail("xmlattr: the input must be a mapping, not " + std::string(input.type_name()));
  }
  std::string out;
  for (const Dict::Entry& entry : input.as_dict().entries()) {
    if (entry.value.is_none() || entry.value.is_undefined()) {
      continue;
    }
    if (!entry.key.is_string() || !is_xml_name(entry.key.as_string())) {
      fail("Invalid character in attribute name: " + to_repr(entry.key, runtime.budget));
    }
    const bool has_space = !out.empty() || bound.flag(0, true);
    const Value name = escaped(runtime, entry.key);
    const Value value = escaped(runtime, entry.value);
    runtime.budget.allocate(name.as_string().size() + value.as_string().size() + 4);
    out.append(has_space ? " " : "").append(name.as_string());
    out.append("=\"").append(value.as_string()).append("\"");
  }
  return Value(std::move(out));
}

// ---- URLs and sizes -----------------------------------------------------------------------------

Value filter_urlencode(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("urlencode", arguments, {});
  std::string out;
  if (!input.is_undefined() && !input.is_dict() && !input.is_sequence()) {
    append_quoted(runtime, input, UrlPart::kPath, out);
    return Value(std::move(out));
  }
  for (const auto& [key, value] : query_pairs(runtime, input)) {
    out.append(out.empty() ? "" : "&");
    append_quoted(runtime, key, UrlPart::kQuery, out);
    out.push_back('=');
    append_quoted(runtime, value, UrlPart::kQuery, out);
  }
  return Value(std::move(out));
}

Value filter_filesizeformat(Runtime& runtime, const Value& input, const Arguments& arguments) {
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  const BoundArguments bound("filesizeformat", arguments, {"binary"});
  const double bytes = size_in_bytes(runtime, input);
  const bool binary = bound.flag(0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) {
    return "1 Byte";
  }
  if (bytes < base) {
    if (std::isinf(bytes)) {
      fail("cannot convert float infinity to integer");
    }
    return make_string(runtime, with_decimals(std::trunc(bytes) + 0.0, 0) + " Bytes");
  }
  // Up to 1000^9, powers are exact in a long double, so that the limits of units are exact.
  long double unit = static_cast<long double>(base) * base;
  std::size_t prefix = 0;
  while (prefix + 1 < kPrefixes.size() && !(static_cast<long double>(bytes) < unit)) {
    unit *= base;
    ++prefix;
  }
  std::string name(1, kPrefixes[prefix]);
  if (binary) {
    name[0] = static_cast<char>(name[0] & ~0x20);  // KiB, but kB
    name += 'i';
  }
  const double scaled = base * bytes / static_cast<double>(unit);
  return make_string(runtime, with_decimals(scaled, 1) + " " + name + "B");
}

// ---- Layout -------------------------------------------------------------------------------------

Value filter_truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const std::int64_t size = bound.integer(0, 255);
  const Value end = bound.find(2) == nullptr ? Value("...") : *bound.find(2);
  const bool has_leeway = bound.find(3) != nullptr && !bound.find(3)->is_none();
  const std::int64_t leeway = has_leeway ? bound.integer(3, 0) : 5;
  const std::int64_t kept = size - length(runtime, end);
  if (kept < 0 || leeway < 0) {
    fail("truncate: the length must be at least that of the end, and the leeway not negative");
  }
  if (length(runtime, input) - leeway <= size) {
    return input;
  }
  if (!input.is_string()) {
    fail("truncate: the input must be a str, not " + std::string(input.type_name()));
  }
  std::string text =
      input.as_string().substr(0, byte_offset(input.as_string(), static_cast<std::size_t>(kept)));
  if (!bound.flag(1, false)) {
    text.resize(std::min(text.rfind(' '), text.size()));
  }
  runtime.budget.allocate(text.size());
  return apply(runtime, BinaryOp::kAdd, string_like(input, std::move(text)), end);
}

Value filter_indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const BoundArguments bound("indent", arguments, {"width", "first", "blank"});
  require_defined(input);
  if (!input.is_string()) {
    fail("indent: the input must be a str");
  }
  const Value indentation = indentation_of(runtime, bound, input);
  const bool indents_empty_lines = bound.flag(2, false);
  const Value text = make_string(runtime, input.as_string() + "\n");
  auto lines = split_lines(text.as_string(), /*keep_ends=*/false);
  // Only the indentation is markup: the lines that it is added to are escaped.
  const bool escapes = indentation.is_markup() && !input.is_markup();
  std::vector<Value> escaped_lines;
  for (std::size_t i = indents_empty_lines ? 0 : 1; escapes && i < lines.size(); ++i) {
    escaped_lines.push_back(escaped_text(runtime, lines[i]));
    lines[i] = escaped_lines.back().as_string();
  }
  std::string joined = indented(runtime, lines, indentation.as_string(), indents_empty_lines);
  const bool is_markup = input.is_markup() || (escapes && indents_empty_lines);
  Value out = is_markup ? Value::markup(std::move(joined)) : Value(std::move(joined));
  return bound.flag(1, false) ? apply(runtime, BinaryOp::kAdd, indentation, out) : out;
}

}  // namespace tidemill::engines::chat
