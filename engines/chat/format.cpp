// SPDX-License-Identifier: Apache-2.0
// Formats numbers and strings by a parsed specification, which comes from either syntax.
#include "engines/chat/format.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/text/utf8.hpp"
#include "engines/chat/markup.hpp"
#include "engines/chat/operators.hpp"
#include "engines/chat/parse_number.hpp"
#include "engines/chat/text.hpp"
#include "engines/chat/unicode.hpp"

namespace tidemill::engines::chat {
namespace {

using Kind = Value::Kind;

// Widths and precisions beyond this are refused.
constexpr std::int64_t kMaxWidth = 100'000;
constexpr std::int64_t kMaxPrecision = 300;

struct Spec {
  std::string fill = " ";
  char align = 0;   // < > ^ = or 0: depends on the type
  char sign = '-';  // - + or space
  bool alternate = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = 's';
};

// A cursor over a format string.
struct Cursor {
  std::string_view text;
  std::size_t pos = 0;

  [[nodiscard]] bool done() const { return pos >= text.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : text[pos]; }
  bool skip(char c) {
    if (peek() != c || done()) {
      return false;
    }
    ++pos;
    return true;
  }
  // Reads digits. Returns -1 if there are none.
  std::int64_t number() {
    std::int64_t value = -1;
    while (!done() && peek() >= '0' && peek() <= '9') {
      value = std::max<std::int64_t>(value, 0) * 10 + (text[pos++] - '0');
      if (value > kMaxWidth) {
        fail("a format width is too large");
      }
    }
    return value;
  }
};

std::string sign_of(bool negative, const Spec& spec) {
  if (negative) {
    return "-";
  }
  return spec.sign == '-' ? std::string() : std::string(1, spec.sign);
}

// Returns the digits of an integer, without sign, in the base that the type implies.
std::string integer_digits(std::int64_t value, const Spec& spec) {
  const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : 10;
  std::array<char, 72> buffer{};
  const std::uint64_t magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base).ptr;
  std::string digits(buffer.data(), end);
  if (spec.type == 'X') {
    digits = to_upper(digits);
  }
  const auto precision = static_cast<std::size_t>(std::max<std::int64_t>(spec.precision, 0));
  if (digits.size() < precision) {
    digits.insert(0, precision - digits.size(), '0');
  }
  if (spec.alternate && base == 16) {
    digits.insert(0, spec.type == 'x' ? "0x" : "0X");
  }
  if (spec.alternate && base == 8) {
    digits.insert(0, "0o");
  }
  return digits;
}

// Returns the digits of a float, without sign. glibc rounds exactly, like Python.
std::string float_digits(double value, const Spec& spec) {
  const bool upper = spec.type == 'F' || spec.type == 'E' || spec.type == 'G';
  if (std::isnan(value)) {
    return upper ? "NAN" : "nan";
  }
  if (std::isinf(value)) {
    return upper ? "INF" : "inf";
  }
  const auto precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const std::string format = std::string(spec.alternate ? "%#.*" : "%.*") + spec.type;
  std::array<char, 1024> buffer{};
  const int size = std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision,  // NOLINT
                                 std::fabs(value));
  return {buffer.data(), static_cast<std::size_t>(std::max(size, 0))};
}

// Pads sign and digits to the width.
std::string pad(const std::string& sign, const std::string& body, const Spec& spec,
                char default_align) {
  const auto size = static_cast<std::int64_t>(count_code_points(sign) + count_code_points(body));
  const std::int64_t missing = spec.width - size;
  if (missing <= 0) {
    return sign + body;
  }
  const auto fill = [&spec](std::int64_t count) {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) {
      text += spec.fill;
    }
    return text;
  };
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<': return sign + body + fill(missing);
    case '^': return fill(missing / 2) + sign + body + fill(missing - missing / 2);
    case '=': return sign + fill(missing) + body;
    default: return fill(missing) + sign + body;
  }
}

void check(const Spec& spec) {
  if (spec.precision > kMaxPrecision && spec.type != 's') {
    fail("a format precision is too large");
  }
}

std::string pad_text(std::string text, const Spec& spec, char default_align) {
  if (spec.precision >= 0) {
    text.resize(byte_offset(text, static_cast<std::size_t>(spec.precision)));
  }
  return pad("", text, spec, default_align);
}

std::string put_integer(std::int64_t value, const Spec& spec) {
  return pad(sign_of(value < 0, spec), integer_digits(value, spec), spec, '>');
}

std::string put_float(double value, const Spec& spec) {
  return pad(sign_of(std::signbit(value) && !std::isnan(value), spec), float_digits(value, spec),
             spec, '>');
}

// ---- % ------------------------------------------------------------------------------------------

class PercentFormatter {
public:
  PercentFormatter(Runtime& runtime, const Value& format, const Arguments& arguments,
                   UnusedArguments unused)
      : runtime_(runtime),
        cursor_{format.as_string()},
        escapes_(format.is_markup()),
        arguments_(arguments),
        unused_(unused) {}

  std::string run() {
    while (!cursor_.done()) {
      const std::size_t percent =
          std::min(cursor_.text.find('%', cursor_.pos), cursor_.text.size());
      append(std::string(cursor_.text.substr(cursor_.pos, percent - cursor_.pos)));
      cursor_.pos = percent;
      if (cursor_.skip('%')) {
        conversion();
      }
    }
    if (next_ < arguments_.positional.size() && unused_ == UnusedArguments::kRefused) {
      fail("not all arguments converted during string formatting");
    }
    return std::move(out_);
  }

private:
  void append(const std::string& text) {
    runtime_.budget.allocate(text.size());
    out_ += text;
  }

  const Value& next_argument() {
    if (next_ >= arguments_.positional.size()) {
      fail("not enough arguments for format string");
    }
    return arguments_.positional[next_++];
  }

  const Value& named_argument() {
    const std::size_t close = cursor_.text.find(')', cursor_.pos);
    if (close == std::string_view::npos) {
      fail("incomplete format key");
    }
    const std::string_view name = cursor_.text.substr(cursor_.pos, close - cursor_.pos);
    cursor_.pos = close + 1;
    for (const auto& argument : arguments_.named) {
      if (argument.first == name) {
        return argument.second;
      }
    }
    fail("no argument '" + std::string(name) + "' for the format string");
  }

  std::int64_t width_or_star() {
    if (!cursor_.skip('*')) {
      return cursor_.number();
    }
    const auto value = next_argument().integer();
    if (!value || std::abs(*value) > kMaxWidth) {
      fail("* wants int");
    }
    return *value;
  }

  void conversion() {
    if (cursor_.skip('%')) {
      return append("%");
    }
    const Value* value = cursor_.skip('(') ? &named_argument() : nullptr;
    Spec spec;
    bool zero = false;
    while (true) {
      if (cursor_.skip('-')) {
        spec.align = '<';
      } else if (cursor_.skip('0')) {
        zero = true;
      } else if (cursor_.skip('+')) {
        spec.sign = '+';
      } else if (cursor_.skip(' ')) {
        if (spec.sign == '-') {
          spec.sign = ' ';
        }
      } else if (cursor_.skip('#')) {
        spec.alternate = true;
      } else {
        break;
      }
    }
    spec.width = width_or_star();
    if (spec.width < -1) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (cursor_.skip('.')) {
      spec.precision = std::max<std::int64_t>(width_or_star(), 0);
    }
    while (cursor_.skip('l') || cursor_.skip('h') || cursor_.skip('L')) {
    }
    if (cursor_.done()) {
      fail("incomplete format");
    }
    spec.type = cursor_.text[cursor_.pos++];
    check(spec);
    if (zero && spec.align == 0 &&
        std::string_view("diufFeEgGxXo").find(spec.type) != std::string_view::npos) {
      spec.align = '=';
      spec.fill = "0";
    }
    append(convert(value != nullptr ? *value : next_argument(), spec));
  }

  // Returns the argument of a conversion in markup: text is escaped, numbers are parsed from text.
  Value wrapped(const Value& value, char type) {
    switch (type) {
      case 's': return escaped(runtime_, value);
      case 'r': return escaped(runtime_, make_string(runtime_, to_repr(value, runtime_.budget)));
      case 'd':
      case 'i':
      case 'u': return value.is_string() ? parsed_integer(runtime_, value) : value;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': return value.is_string() ? parsed_number(runtime_, value) : value;
      default: fail(std::string("markup does not support the format character '") + type + "'");
    }
  }

  std::string convert(const Value& given, const Spec& spec) {
    const Value value = escapes_ ? wrapped(given, spec.type) : given;
    switch (spec.type) {
      case 's': return pad_text(text_of(runtime_, value), spec, '>');
      case 'r':
        return pad_text(escapes_ ? value.as_string() : to_repr(value, runtime_.budget), spec, '>');
      case 'c':
        if (value.is_string() && count_code_points(value.as_string()) == 1) {
          return pad_text(value.as_string(), spec, '>');
        }
        fail("%c requires a single character");
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return put_integer(integer_of(value, spec.type), spec);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const auto number = value.number();
        if (!number) {
          fail("must be real number, not " + std::string(value.type_name()));
        }
        return put_float(*number, spec);
      }
      default: fail(std::string("unsupported format character '") + spec.type + "'");
    }
  }

  static std::int64_t integer_of(const Value& value, char type) {
    if (const auto integer = value.integer()) {
      return *integer;
    }
    const bool truncates = type == 'd' || type == 'i' || type == 'u';
    if (!truncates || !value.is(Kind::kFloat)) {
      fail(std::string("%") + type + " format: a number is required, not " +
           std::string(value.type_name()));
    }
    if (!(std::fabs(value.as_float()) < 9.2e18)) {
      fail("an integer result does not fit in 64 bits");
    }
    return static_cast<std::int64_t>(value.as_float());
  }

  Runtime& runtime_;
  Cursor cursor_;
  bool escapes_;
  const Arguments& arguments_;
  UnusedArguments unused_;
  std::size_t next_ = 0;
  std::string out_;
};

// ---- {} -----------------------------------------------------------------------------------------

class BraceFormatter {
public:
  BraceFormatter(Runtime& runtime, const Value& format, const Arguments& arguments)
      : runtime_(runtime),
        cursor_{format.as_string()},
        escapes_(format.is_markup()),
        arguments_(arguments) {}

  std::string run() {
    while (!cursor_.done()) {
      const char c = cursor_.text[cursor_.pos++];
      if (c == '{' && !cursor_.skip('{')) {
        field();
      } else if (c == '}' && !cursor_.skip('}')) {
        fail("Single '}' encountered in format string");
      } else {
        append(std::string(1, c));
      }
    }
    return std::move(out_);
  }

private:
  void append(const std::string& text) {
    runtime_.budget.allocate(text.size());
    out_ += text;
  }

  void field() {
    const std::size_t close = cursor_.text.find('}', cursor_.pos);
    if (close == std::string_view::npos) {
      fail("expected '}' before end of string");
    }
    std::string_view name = cursor_.text.substr(cursor_.pos, close - cursor_.pos);
    cursor_.pos = close + 1;
    std::string_view spec_text;
    if (const std::size_t colon = name.find(':'); colon != std::string_view::npos) {
      spec_text = name.substr(colon + 1);
      name = name.substr(0, colon);
    }
    char conversion = '\0';
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      if (name.back() != 'r' && name.back() != 's') {
        fail("Unknown conversion specifier");
      }
      conversion = name.back();
      name.remove_suffix(2);
    }
    if (spec_text.find('{') != std::string_view::npos || name.find('[') != std::string_view::npos) {
      fail("nested fields and [...] in str.format are not supported");
    }
    Value value = lookup(name);
    if (conversion != '\0') {
      value = conversion == 'r' ? Value(to_repr(value, runtime_.budget))
                                : Value(text_of(runtime_, value));
    }
    if (!value.is_string() && !value.is_number()) {
      if (!spec_text.empty()) {
        fail("unsupported format string for a value of type " + std::string(value.type_name()));
      }
      value = Value(text_of(runtime_, value));
    }
    append(escapes_ ? put_escaped(value, spec_text) : put(value, spec_text));
  }

  // Returns a field of markup. Markup in it remains as it is.
  std::string put_escaped(const Value& value, std::string_view spec_text) {
    if (!value.is_markup()) {
      const Value text = make_string(runtime_, put(value, spec_text));
      return escaped(runtime_, text).as_string();
    }
    if (!spec_text.empty()) {
      fail("Unsupported format specification for Markup.");
    }
    return value.as_string();
  }

  Value lookup(std::string_view name) {
    const std::size_t dot = std::min(name.find('.'), name.size());
    const std::string_view first = name.substr(0, dot);
    Value value;
    if (first.empty()) {
      value = positional(next_++);
    } else if (std::isdigit(static_cast<unsigned char>(first.front())) != 0) {
      Cursor digits{first};
      value = positional(static_cast<std::size_t>(digits.number()));
    } else {
      value = named(first);
    }
    if (dot == name.size()) {
      return value;
    }
    return get_path(runtime_, value, Value(name.substr(dot + 1)));
  }

  Value positional(std::size_t index) const {
    if (index >= arguments_.positional.size()) {
      fail("Replacement index " + std::to_string(index) +
           " out of range for positional args tuple");
    }
    return arguments_.positional[index];
  }

  Value named(std::string_view name) const {
    for (const auto& argument : arguments_.named) {
      if (argument.first == name) {
        return argument.second;
      }
    }
    fail("no argument '" + std::string(name) + "' for the format string");
  }

  // [[fill]align][sign][#][0][width][.precision][type]
  static Spec parse(std::string_view text) {
    Spec spec;
    spec.type = '\0';
    Cursor cursor{text};
    const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
    if (!text.empty()) {
      const std::size_t first = read_utf8(text, 0).length;
      if (text.size() > first && is_align(text[first])) {
        spec.fill = text.substr(0, first);
        spec.align = text[first];
        cursor.pos = first + 1;
      } else if (is_align(text[0])) {
        spec.align = text[0];
        cursor.pos = 1;
      }
    }
    if (cursor.peek() == '+' || cursor.peek() == '-' || cursor.peek() == ' ') {
      spec.sign = cursor.text[cursor.pos++];
    }
    spec.alternate = cursor.skip('#');
    if (spec.fill == " " && cursor.skip('0')) {
      spec.fill = "0";
    }
    spec.width = cursor.number();
    if (cursor.skip('.')) {
      spec.precision = cursor.number();
      if (spec.precision < 0) {
        fail("Format specifier missing precision");
      }
    }
    if (!cursor.done()) {
      spec.type = cursor.text[cursor.pos++];
    }
    if (!cursor.done()) {
      fail("Invalid format specifier");
    }
    check(spec);
    return spec;
  }

  // Formats a string or a number.
  std::string put(const Value& value, std::string_view spec_text) {
    Spec spec = parse(spec_text);
    if (value.is_string() || spec_text.empty()) {
      return put_text(value, spec);
    }
    if (spec.align == 0 && spec.fill == "0") {
      spec.align = '=';
    }
    if (spec.type == '\0' && value.integer()) {
      spec.type = 'd';
    }
    const bool for_integer = std::string_view("dxXo").find(spec.type) != std::string_view::npos;
    const bool for_float = std::string_view("eEfFgG").find(spec.type) != std::string_view::npos;
    if (spec.type == '\0' && value.is(Kind::kFloat) && spec.precision < 0) {
      return pad(sign_of(std::signbit(value.as_float()), spec),
                 float_repr(std::fabs(value.as_float())), spec, '>');
    }
    if (for_integer && value.integer()) {
      if (spec.precision >= 0) {
        fail("Precision not allowed in integer format specifier");
      }
      return put_integer(*value.integer(), spec);
    }
    if (for_float && value.number()) {
      return put_float(*value.number(), spec);
    }
    refuse(value);
  }

  // Formats a string, or any value without a specification.
  std::string put_text(const Value& value, const Spec& spec) const {
    if (spec.type != '\0' && spec.type != 's') {
      refuse(value);
    }
    if (spec.sign != '-') {
      fail("Sign not allowed in string format specifier");
    }
    if (spec.alternate) {
      fail("Alternate form (#) not allowed in string format specifier");
    }
    if (spec.align == '=') {
      fail("'=' alignment not allowed in string format specifier");
    }
    return pad_text(text_of(runtime_, value), spec, '<');
  }

  [[noreturn]] static void refuse(const Value& value) {
    fail("this format specification is not supported for a value of type " +
         std::string(value.type_name()));
  }

  Runtime& runtime_;
  Cursor cursor_;
  bool escapes_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
  std::string out_;
};

}  // namespace

Value format_percent(Runtime& runtime, const Value& format, const Arguments& arguments,
                     UnusedArguments unused) {
  return string_like(format, PercentFormatter(runtime, format, arguments, unused).run());
}

Value format_braces(Runtime& runtime, const Value& format, const Arguments& arguments) {
  return string_like(format, BraceFormatter(runtime, format, arguments).run());
}

}  // namespace tidemill::engines::chat
