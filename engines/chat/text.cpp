// SPDX-License-Identifier: Apache-2.0
// Writes values as Python's str and repr, and as JSON.
#include "engines/chat/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/text/utf8.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

void append(std::string_view text, Budget& budget, std::string& out) {
  budget.allocate(text.size());
  out.append(text);
}

// Returns "\xNN", "\uNNNN" or "\UNNNNNNNN".
std::string hex_escape(char32_t c) {
  std::array<char, 16> buffer{};
  const auto value = static_cast<unsigned>(c);
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  const int length = std::snprintf(buffer.data(), buffer.size(), format, value);  // NOLINT
  return {buffer.data(), static_cast<std::size_t>(length)};
}

std::string string_repr(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const bool has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const char32_t c = step.code_point;
    if (c == static_cast<char32_t>(quote) || c == U'\\') {
      out.append("\\").append(text, i, 1);
    } else if (c == U'\n') {
      out.append("\\n");
    } else if (c == U'\r') {
      out.append("\\r");
    } else if (c == U'\t') {
      out.append("\\t");
    } else if (!is_printable(c)) {
      out.append(hex_escape(c));
    } else {
      out.append(text, i, step.length);
    }
    i += step.length;
  }
  out.push_back(quote);
  return out;
}

void append_repr(const Value& value, Budget& budget, std::string& out);

void append_items(const List& items, Budget& budget, std::string& out) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) {
      append(", ", budget, out);
    }
    first = false;
    append_repr(item, budget, out);
  }
}

void append_sequence(const Sequence& sequence, Budget& budget, std::string& out) {
  switch (sequence.kind) {
    case SequenceKind::kList:
      out.push_back('[');
      append_items(sequence.items, budget, out);
      out.push_back(']');
      return;
    case SequenceKind::kTuple:
      out.push_back('(');
      append_items(sequence.items, budget, out);
      out.append(sequence.items.size() == 1 ? ",)" : ")");
      return;
    case SequenceKind::kView:
      out.append("dict_view([");
      append_items(sequence.items, budget, out);
      out.append("])");
      return;
    case SequenceKind::kGenerator: fail("a generator cannot be printed; add '| list'");
  }
}

void append_dict(const Dict& dict, Budget& budget, std::string& out) {
  out.push_back('{');
  bool first = true;
  for (const Dict::Entry& entry : dict.entries()) {
    if (!first) {
      append(", ", budget, out);
    }
    first = false;
    append_repr(entry.key, budget, out);
    append(": ", budget, out);
    append_repr(entry.value, budget, out);
  }
  out.push_back('}');
}

void append_repr(const Value& value, Budget& budget, std::string& out) {
  budget.step();
  if (value.is_undefined()) {
    return append("Undefined", budget, out);
  }
  if (!value.is_string()) {
    return append_text(value, budget, out);
  }
  budget.allocate(value.as_string().size());
  append(value.is_markup() ? "Markup(" : "", budget, out);
  append(string_repr(value.as_string()), budget, out);
  append(value.is_markup() ? ")" : "", budget, out);
}

// ---- JSON ---------------------------------------------------------------------------------------

std::string json_string(const std::string& text, bool ensure_ascii) {
  std::string out = "\"";
  const auto put_unit = [&out](unsigned unit) {
    std::array<char, 16> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "\\u%04x", unit);  // NOLINT
    out.append(buffer.data());
  };
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = read_utf8(text, i);
    const char32_t c = step.code_point;
    static constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
    static constexpr std::string_view kLetters = "\"\\nrtbf";
    const std::size_t known = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (known != std::string_view::npos) {
      out.append("\\").append(kLetters.substr(known, 1));
    } else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      put_unit(static_cast<unsigned>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const auto rest = static_cast<unsigned>(c) - 0x10000U;
      put_unit(0xD800U + (rest >> 10U));
      put_unit(0xDC00U + (rest & 0x3FFU));
    } else {
      out.append(text, i, step.length);
    }
    i += step.length;
  }
  return out + "\"";
}

std::string json_float(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  return float_repr(value);
}

class JsonWriter {
public:
  JsonWriter(const JsonFormat& format, Budget& budget)
      : format_(format),
        budget_(budget),
        item_separator_(format.item_separator.value_or(format.indent ? "," : ", ")),
        key_separator_(format.key_separator.value_or(": ")) {}

  std::string write(const Value& value) {
    put(value, 0);
    return std::move(out_);
  }

private:
  void put(std::string_view text) { append(text, budget_, out_); }

  void put(const Value& value, std::size_t level) {
    budget_.step();
    switch (value.kind()) {
      case Value::Kind::kNone: return put("null");
      case Value::Kind::kBool: return put(value.as_bool() ? "true" : "false");
      case Value::Kind::kInt: return put(std::to_string(value.as_int()));
      case Value::Kind::kFloat: return put(json_float(value.as_float()));
      case Value::Kind::kString:
        budget_.allocate(value.as_string().size());
        return put(json_string(value.as_string(), format_.ensure_ascii));
      case Value::Kind::kSequence:
        if (value.is_sequence(SequenceKind::kList) || value.is_sequence(SequenceKind::kTuple)) {
          return put_list(value.as_sequence().items, level);
        }
        break;
      case Value::Kind::kDict: return put_dict(value.as_dict(), level);
      case Value::Kind::kUndefined:
      case Value::Kind::kNamespace:
      case Value::Kind::kCallable:
      case Value::Kind::kLoop: break;
    }
    fail("Object of type " + std::string(value.type_name()) + " is not JSON serializable");
  }

  void put_line(std::size_t level) {
    if (!format_.indent) {
      return;
    }
    put("\n");
    for (std::size_t i = 0; i < level; ++i) {
      put(*format_.indent);
    }
  }

  void put_list(const List& items, std::size_t level) {
    if (items.empty()) {
      return put("[]");
    }
    put("[");
    bool first = true;
    for (const Value& item : items) {
      if (!first) {
        put(item_separator_);
      }
      first = false;
      put_line(level + 1);
      put(item, level + 1);
    }
    put_line(level);
    put("]");
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Value::Kind::kString: return key.as_string();
      case Value::Kind::kNone: return "null";
      case Value::Kind::kBool: return key.as_bool() ? "true" : "false";
      case Value::Kind::kInt: return std::to_string(key.as_int());
      case Value::Kind::kFloat: return json_float(key.as_float());
      default: fail("keys of JSON objects cannot be of type " + std::string(key.type_name()));
    }
  }

  // Orders keys as values, like Python. Strings and numbers cannot be compared with each other.
  static bool key_less(const Value& a, const Value& b) {
    if (a.is_string() && b.is_string()) {
      return a.as_string() < b.as_string();
    }
    if (a.integer() && b.integer()) {
      return *a.integer() < *b.integer();
    }
    if (a.is_number() && b.is_number()) {
      return *a.number() < *b.number();
    }
    fail("'<' not supported between keys of type " + std::string(a.type_name()) + " and " +
         std::string(b.type_name()));
  }

  void put_dict(const Dict& dict, std::size_t level) {
    if (dict.size() == 0) {
      return put("{}");
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) {
      entries.push_back(&entry);
    }
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return key_less(a->key, b->key); });
    }
    put("{");
    bool first = true;
    for (const Dict::Entry* entry : entries) {
      if (!first) {
        put(item_separator_);
      }
      first = false;
      put_line(level + 1);
      put(json_string(key_text(entry->key), format_.ensure_ascii));
      put(key_separator_);
      put(entry->value, level + 1);
    }
    put_line(level);
    put("}");
  }

  const JsonFormat& format_;
  Budget& budget_;
  std::string item_separator_;
  std::string key_separator_;
  std::string out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value > 0 ? "inf" : "-inf";
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 std::chars_format::scientific)
                       .ptr;
  // d.ddde[+-]xx
  std::string text(buffer.data(), end);
  const std::size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);  // NOLINT(cert-err34-c): always a number
  if (exponent < -4 || exponent >= 16) {
    return text;
  }
  const bool negative = text[0] == '-';
  std::string digits = text.substr(negative ? 1 : 0, e - (negative ? 1 : 0));
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  if (exponent < 0) {
    digits = "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() < whole) {
      digits.append(whole - digits.size(), '0');
    }
    digits.insert(whole, ".");
    if (digits.back() == '.') {
      digits.push_back('0');
    }
  }
  return negative ? "-" + digits : digits;
}

void append_text(const Value& value, Budget& budget, std::string& out) {
  switch (value.kind()) {
    case Value::Kind::kNone: return append("None", budget, out);
    case Value::Kind::kUndefined: return;
    case Value::Kind::kBool: return append(value.as_bool() ? "True" : "False", budget, out);
    case Value::Kind::kInt: return append(std::to_string(value.as_int()), budget, out);
    case Value::Kind::kFloat: return append(float_repr(value.as_float()), budget, out);
    case Value::Kind::kString: return append(value.as_string(), budget, out);
    case Value::Kind::kSequence: return append_sequence(value.as_sequence(), budget, out);
    case Value::Kind::kDict: return append_dict(value.as_dict(), budget, out);
    case Value::Kind::kNamespace:
    case Value::Kind::kCallable:
    case Value::Kind::kLoop: break;
  }
  fail("a " + std::string(value.type_name()) + " cannot be printed");
}

std::string to_text(const Value& value, Budget& budget) {
  std::string out;
  append_text(value, budget, out);
  return out;
}

std::string to_repr(const Value& value, Budget& budget) {
  std::string out;
  append_repr(value, budget, out);
  return out;
}

std::string to_json(const Value& value, const JsonFormat& format, Budget& budget) {
  return JsonWriter(format, budget).write(value);
}

}  // namespace tidemill::engines::chat
