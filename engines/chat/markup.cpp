// SPDX-License-Identifier: Apache-2.0
#include "engines/chat/markup.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/text/utf8.hpp"
#include "engines/chat/html_entities.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/string_search.hpp"

namespace tidemill::engines::chat {
namespace {

constexpr std::size_t kNone = std::string_view::npos;
constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kLastCodePoint = 0x10FFFF;

// Returns the reference that replaces a character, or an empty text if the character remains.
std::string_view reference_of(char c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '\'': return "&#39;";
    case '"': return "&#34;";
    default: return {};
  }
}

// ---- Numeric references -------------------------------------------------------------------------

// What the HTML standard reads for &#128; to &#159;: Windows-1252.
constexpr std::array<char32_t, 32> kWindows1252 = {
    0x20AC, 0x81,   0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0x8D,   0x017D, 0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x9D,   0x017E, 0x0178};

bool is_noncharacter_or_control(char32_t c) {
  const bool is_control =
      (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F;
  return is_control || (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFEU) == 0xFFFEU;
}

// Appends the character with the number of a reference. Some numbers have no character.
void append_numbered(char32_t number, std::string& out) {
  if (number >= 0x80 && number <= 0x9F) {
    return append_utf8(kWindows1252[number - 0x80], out);
  }
  const bool is_surrogate = number >= 0xD800 && number <= 0xDFFF;
  if (number == 0 || is_surrogate || number > kLastCodePoint) {
    return append_utf8(kReplacement, out);
  }
  if (!is_noncharacter_or_control(number)) {
    append_utf8(number, out);
  }
}

std::optional<unsigned> digit_of(char c, unsigned base) {
  if (c >= '0' && c <= '9') {
    return static_cast<unsigned>(c - '0');
  }
  const auto lower = static_cast<char>(c | 0x20);
  if (base == 16 && lower >= 'a' && lower <= 'f') {
    return static_cast<unsigned>(lower - 'a') + 10U;
  }
  return std::nullopt;
}

// Reads "#" and a number from the text after "&". Returns the size of the reference, or 0 if there
// is none.
std::size_t put_numeric(std::string_view rest, std::string& out) {
  const bool is_hex = rest.size() > 1 && (rest[1] | 0x20) == 'x';
  const unsigned base = is_hex ? 16 : 10;
  std::size_t i = is_hex ? 2 : 1;
  const std::size_t first = i;
  char32_t number = 0;
  for (; i < rest.size(); ++i) {
    const auto digit = digit_of(rest[i], base);
    if (!digit) {
      break;
    }
    number = std::min<char32_t>(number * base + *digit, kLastCodePoint + 1);
  }
  if (i == first) {
    return 0;
  }
  append_numbered(number, out);
  return i < rest.size() && rest[i] == ';' ? i + 1 : i;
}

// ---- Named references ---------------------------------------------------------------------------

// Returns the size of the longest possible name at the start of the text after "&".
std::size_t name_size(std::string_view rest) {
  constexpr std::size_t kMaxCharacters = 32;
  constexpr std::string_view kEnds = "\t\n\f <&#;";
  std::size_t i = 0;
  for (std::size_t count = 0; count < kMaxCharacters && i < rest.size(); ++count) {
    if (kEnds.find(rest[i]) != kNone) {
      break;
    }
    i += read_utf8(rest, i).length;
  }
  return i;
}

// Reads a name from the text after "&". If it has no meaning, its longest beginning that HTML
// allows without a semicolon is taken. Returns the size of the reference.
std::size_t put_named(std::string_view rest, std::string& out) {
  const std::size_t size = name_size(rest);
  const std::string_view name = rest.substr(0, size);
  const bool has_semicolon = size > 0 && size < rest.size() && rest[size] == ';';
  const auto end = has_semicolon ? EntityEnd::kSemicolon : EntityEnd::kNone;
  if (const std::string_view text = find_html_entity(name, end); !text.empty()) {
    out.append(text);
    return size + (has_semicolon ? 1 : 0);
  }
  for (std::size_t part = has_semicolon ? size : size - std::min<std::size_t>(size, 1); part > 1;
       --part) {
    const std::string_view text = find_html_entity(name.substr(0, part), EntityEnd::kNone);
    if (!text.empty()) {
      out.append(text).append(name.substr(part));
      return size;
    }
  }
  out.append("&").append(name);
  return size;
}

}  // namespace

Value escaped_text(Runtime& runtime, std::string_view text) {
  std::size_t size = 0;
  for (const char c : text) {
    size += std::max<std::size_t>(reference_of(c).size(), 1);
  }
  runtime.budget.allocate(size);
  std::string out;
  out.reserve(size);
  for (const char c : text) {
    const std::string_view reference = reference_of(c);
    if (reference.empty()) {
      out.push_back(c);
    } else {
      out.append(reference);
    }
  }
  return Value::markup(std::move(out));
}

Value escaped(Runtime& runtime, const Value& value) {
  if (value.is_markup()) {
    return value;
  }
  return value.is_string() ? escaped_text(runtime, value.as_string())
                           : escaped_text(runtime, text_of(runtime, value));
}

Value string_like(const Value& model, std::string text) {
  return model.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

Value as_markup(Runtime& runtime, const Value& value) {
  if (value.is_markup()) {
    return value;
  }
  if (value.is_string()) {
    runtime.budget.allocate(value.as_string().size());
    return Value::markup(value.as_string());
  }
  if (!value.is_sequence()) {
    return value;
  }
  List items;
  for (const Value& item : value.as_sequence().items) {
    items.push_back(as_markup(runtime, item));
  }
  return make_sequence(runtime, std::move(items), value.as_sequence().kind);
}

std::string unescape_html(std::string_view text) {
  std::string out;
  while (true) {
    const std::size_t at = std::min(text.find('&'), text.size());
    out.append(text.substr(0, at));
    if (at == text.size()) {
      return out;
    }
    text.remove_prefix(at + 1);
    if (text.empty() || text.front() != '#') {
      text.remove_prefix(put_named(text, out));
      continue;
    }
    const std::size_t size = put_numeric(text, out);
    if (size == 0) {
      out.push_back('&');
    }
    text.remove_prefix(size);
  }
}

std::string strip_tags(std::string_view text) {
  std::string without;
  std::size_t done = 0;
  for (std::size_t begin = text.find('<'); begin != kNone; begin = text.find('<', done)) {
    const bool is_comment = text.substr(begin, 4) == "<!--";
    const std::size_t end = is_comment ? find_text(text, "-->", begin + 4) : text.find('>', begin);
    if (end == kNone) {
      break;
    }
    without.append(text.substr(done, begin - done));
    done = end + (is_comment ? 3 : 1);
  }
  without.append(text.substr(done));
  std::string spaced;
  for (const std::string_view word : split_at_space(without, -1, SearchFrom::kLeft)) {
    spaced.append(spaced.empty() ? "" : " ").append(word);
  }
  return unescape_html(spaced);
}

}  // namespace tidemill::engines::chat
