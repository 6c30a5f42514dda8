// SPDX-License-Identifier: Apache-2.0
#include "engines/constraint/json_rules.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/text/utf8.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int32_t kFractionDigits = 16;
constexpr std::int32_t kExponentDigits = 2;

// The characters with short escapes.
struct ShortEscape {
  char32_t code_point;
  std::string_view text;
};
constexpr std::array kShortEscapes = std::to_array<ShortEscape>({
    {'"', "\\\""},
    {'\\', "\\\\"},
    {'\b', "\\b"},
    {'\f', "\\f"},
    {'\n', "\\n"},
    {'\r', "\\r"},
    {'\t', "\\t"},
});

// Returns the content of a string as `literal` writes it. Bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text) {
  std::string valid;
  static_cast<void>(append_repaired_utf8(text, valid));
  std::string out;
  for (const char c : valid) {
    const auto code = static_cast<unsigned char>(c);
    const auto found = std::ranges::find_if(
        kShortEscapes, [&](const ShortEscape& one) { return one.code_point == code; });
    if (found != kShortEscapes.end()) {
      out += found->text;
    } else if (code < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += "\\u00";
      out += kHex[code / 16U];
      out += kHex[code % 16U];
    } else {
      out += c;
    }
  }
  return out;
}

bool contains(const CodePoints& set, char32_t c) {
  return std::ranges::any_of(
      set, [&](const CodePointRange& range) { return range.first <= c && c <= range.last; });
}

// Returns the part of `set` that strings contain as it is.
CodePoints unescaped(const CodePoints& set) {
  constexpr std::array kPlain = std::to_array<CodePointRange>(
      {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}});
  CodePoints out;
  for (const CodePointRange& range : set) {
    for (const CodePointRange& plain : kPlain) {
      const char32_t first = std::max(range.first, plain.first);
      const char32_t last = std::min(range.last, plain.last);
      if (first <= last) {
        out.push_back({first, last});
      }
    }
  }
  return out;
}

}  // namespace

Fragment JsonRules::separator(char separator) {
  return builder_.sequence(
      {builder_.text(std::string_view(&separator, 1)), builder_.optional(builder_.text(" "))});
}

Fragment JsonRules::literal(const Json& value) {
  std::vector<Fragment> parts;
  const auto add = [&](std::string_view text) { parts.push_back(builder_.text(text)); };
  if (const std::string* text = value.if_string()) {
    return builder_.text("\"" + escaped(*text) + "\"");
  }
  if (const Json::Array* items = value.if_array()) {
    add("[");
    for (std::size_t i = 0; i < items->size(); ++i) {
      if (i > 0) {
        parts.push_back(separator(','));
      }
      parts.push_back(literal((*items)[i]));
    }
    add("]");
    return builder_.sequence(parts);
  }
  if (const Json::Object* members = value.if_object()) {
    add("{");
    for (std::size_t i = 0; i < members->size(); ++i) {
      if (i > 0) {
        parts.push_back(separator(','));
      }
      add("\"" + escaped((*members)[i].name) + "\"");
      parts.push_back(separator(':'));
      parts.push_back(literal((*members)[i].value));
    }
    add("}");
    return builder_.sequence(parts);
  }
  std::string line = value.to_line();
  line.pop_back();  // the newline
  return builder_.text(line);
}

// -- strings --------------------------------------------------------------------------------------

// Returns one ASCII character that needs no escape.
Fragment JsonRules::plain() {
  const Fragment out = builder_.never();
  builder_.add_bytes(out.start, 0x20, 0x21, out.end);
  builder_.add_bytes(out.start, 0x23, 0x5B, out.end);
  builder_.add_bytes(out.start, 0x5D, 0x7F, out.end);
  return out;
}

// Returns one byte of `ranges`, which lists first and last bytes.
Fragment JsonRules::hex(std::string_view ranges) {
  const Fragment out = builder_.never();
  for (std::size_t i = 0; i + 1 < ranges.size(); i += 2) {
    builder_.add_bytes(out.start, static_cast<std::uint8_t>(ranges[i]),
                       static_cast<std::uint8_t>(ranges[i + 1]), out.end);
  }
  return out;
}

// Returns what follows "\u": a code point other than a surrogate, or a pair of surrogates.
Fragment JsonRules::unicode_escape() {
  constexpr std::string_view kAny = "09AFaf";
  const auto any = [&] { return hex(kAny); };
  const Fragment other = builder_.sequence({hex("09ACacEFef"), any(), any(), any()});
  const Fragment low_d = builder_.sequence({hex("DDdd"), hex("07"), any(), any()});
  const Fragment pair =
      builder_.sequence({hex("DDdd"), hex("89ABab"), any(), any(), builder_.text("\\u"),
                         hex("DDdd"), hex("CFcf"), any(), any()});
  return builder_.choice({other, low_d, pair});
}

// Returns one character that is not a plain ASCII character.
Fragment JsonRules::not_plain() {
  if (!not_plain_.has_value()) {
    not_plain_ = builder_.declare_rule();
    std::vector<Fragment> escapes{builder_.text("/"),
                                  builder_.sequence({builder_.text("u"), unicode_escape()})};
    for (const ShortEscape& one : kShortEscapes) {
      escapes.push_back(builder_.text(one.text.substr(1)));
    }
    builder_.define_rule(*not_plain_,
                         builder_.choice({
                             builder_.sequence({builder_.text("\\"), builder_.choice(escapes)}),
                             builder_.code_point({{0x80, 0xD7FF}, {0xE000, 0x10FFFF}}),
                         }));
  }
  return builder_.call(*not_plain_);
}

Fragment JsonRules::any_string() {
  if (!string_.has_value()) {
    string_ = builder_.declare_rule();
    builder_.define_rule(*string_, string_of_length(0, GrammarBuilder::kUnbounded));
  }
  return builder_.call(*string_);
}

Fragment JsonRules::string_of_length(std::int32_t min, std::int32_t max) {
  const Fragment content = builder_.repeat(min, max, [this] {
    return builder_.choice({plain(), not_plain()});
  });
  return builder_.sequence({builder_.text("\""), content, builder_.text("\"")});
}

Fragment JsonRules::character(const CodePoints& set) {
  std::vector<Fragment> parts{builder_.code_point(unescaped(set))};
  for (const ShortEscape& one : kShortEscapes) {
    if (contains(set, one.code_point)) {
      parts.push_back(builder_.text(one.text));
    }
  }
  return builder_.choice(parts);
}

Fragment JsonRules::other_name(const std::vector<std::string>& names) {
  if (names.empty()) {
    return any_string();
  }
  const Fragment any = builder_.sequence(
      {builder_.text("\""), builder_.repeat(0, GrammarBuilder::kUnbounded, [this] {
         return character({{0, 0x10FFFF}});
       })});
  const Fragment out{any.start, builder_.add_state()};
  builder_.add_bytes(any.end, '"', '"', out.end);
  for (const std::string& name : names) {
    const Fragment known = builder_.text("\"" + escaped(name) + "\"");
    builder_.add_edge(any.start, known.start);
    builder_.add_veto(known.end, out.end);
  }
  return out;
}

// -- numbers --------------------------------------------------------------------------------------

Fragment JsonRules::digits(std::int32_t min, std::int32_t max) {
  return builder_.repeat(min, max, [this] { return builder_.byte_range('0', '9'); });
}

// Returns the digits from `min` to `max`, which have the same number of digits.
Fragment JsonRules::same_length(const std::string& min, const std::string& max) {
  const Fragment out = builder_.never();
  // By whether the digits so far equal those of min, and those of max.
  std::array<std::int32_t, 4> states{-1, -1, -1, out.start};
  for (std::size_t i = 0; i < min.size(); ++i) {
    std::array<std::int32_t, 4> next{-1, -1, -1, -1};
    for (std::size_t tight = 0; tight < 4; ++tight) {
      if (states[tight] < 0) {
        continue;
      }
      const char first = (tight & 1U) != 0 ? min[i] : '0';
      const char last = (tight & 2U) != 0 ? max[i] : '9';
      for (char digit = first; digit <= last; ++digit) {
        const std::size_t to = ((tight & 1U) != 0 && digit == first ? 1U : 0U) |
                               ((tight & 2U) != 0 && digit == last ? 2U : 0U);
        if (next[to] < 0) {
          next[to] = i + 1 == min.size() ? out.end : builder_.add_state();
        }
        builder_.add_bytes(states[tight], static_cast<std::uint8_t>(digit),
                           static_cast<std::uint8_t>(digit), next[to]);
      }
    }
    states = next;
  }
  return out;
}

// Returns the integers from `min` >= 0 to `max`, without leading zeros.
Fragment JsonRules::naturals(std::int64_t min, std::int64_t max) {
  std::vector<Fragment> parts;
  for (std::int64_t low = min; low <= max;) {
    const std::string first = std::to_string(low);
    const std::string nines(first.size(), '9');
    const std::int64_t high = std::min(max, std::int64_t{std::stoll(nines)});
    parts.push_back(same_length(first, std::to_string(high)));
    low = high + 1;
  }
  return builder_.choice(parts);
}

Fragment JsonRules::integer(const NumberRange& range) {
  const auto shift = [](const std::optional<NumberBound>& bound, std::int64_t by,
                        std::int64_t otherwise) {
    const std::int64_t value =
        bound.has_value() ? bound->value + (bound->exclusive ? by : 0) : otherwise;
    return std::clamp(value, -kMaxInteger, kMaxInteger);
  };
  const std::int64_t min = shift(range.min, 1, -kMaxInteger);
  const std::int64_t max = shift(range.max, -1, kMaxInteger);
  return builder_.choice(
      {naturals(std::max<std::int64_t>(min, 0), max),
       builder_.sequence({builder_.text("-"), naturals(std::max<std::int64_t>(-max, 1), -min)})});
}

// Returns the numbers of a range of magnitudes, without sign and exponent.
Fragment JsonRules::reals(const Magnitudes& range) {
  const auto fraction = [&] {
    return builder_.optional(builder_.sequence({builder_.text("."), digits(1, kFractionDigits)}));
  };
  std::vector<Fragment> parts;
  if (range.min < range.max) {
    if (range.above_min) {
      // A fraction with a digit other than 0.
      const Fragment zeros =
          builder_.repeat(0, kFractionDigits / 2, [this] { return builder_.text("0"); });
      parts.push_back(
          builder_.sequence({builder_.text(std::to_string(range.min) + "."), zeros,
                             builder_.byte_range('1', '9'), digits(0, kFractionDigits / 2)}));
    } else {
      parts.push_back(builder_.sequence({naturals(range.min, range.min), fraction()}));
    }
    parts.push_back(builder_.sequence({naturals(range.min + 1, range.max - 1), fraction()}));
  }
  const bool has_max = range.min < range.max || (range.min == range.max && !range.above_min);
  if (has_max && !range.below_max) {
    const Fragment zeros = builder_.sequence(
        {builder_.text("."),
         builder_.repeat(1, kFractionDigits, [this] { return builder_.text("0"); })});
    parts.push_back(builder_.sequence({naturals(range.max, range.max), builder_.optional(zeros)}));
  }
  return builder_.choice(parts);
}

Fragment JsonRules::any_number() {
  if (!number_.has_value()) {
    number_ = builder_.declare_rule();
    const Fragment fraction = builder_.sequence({builder_.text("."), digits(1, kFractionDigits)});
    const Fragment exponent = builder_.sequence(
        {hex("EEee"), builder_.optional(hex("++--")), digits(1, kExponentDigits)});
    builder_.define_rule(
        *number_,
        builder_.sequence({builder_.optional(builder_.text("-")), naturals(0, kMaxInteger),
                           builder_.optional(fraction), builder_.optional(exponent)}));
  }
  return builder_.call(*number_);
}

Fragment JsonRules::number(const NumberRange& range) {
  if (!range.min.has_value() && !range.max.has_value()) {
    return any_number();
  }
  const NumberBound min = range.min.value_or(NumberBound{-kMaxInteger, false});
  const NumberBound max = range.max.value_or(NumberBound{kMaxInteger, false});
  std::vector<Fragment> parts;
  if (max.value >= 0) {
    const bool clips = min.value < 0;
    parts.push_back(
        reals({clips ? 0 : min.value, max.value, !clips && min.exclusive, max.exclusive}));
  }
  if (min.value < 0) {
    const bool clips = max.value > 0;
    parts.push_back(builder_.sequence(
        {builder_.text("-"),
         reals({clips ? 0 : -max.value, -min.value, !clips && max.exclusive, min.exclusive})}));
  }
  return builder_.choice(parts);
}

// -- any values -----------------------------------------------------------------------------------

// Defines the rules of values and objects, which call each other. An object within a value is a
// part of its rule, so that each level of nesting is one frame.
void JsonRules::define_value() {
  if (value_.has_value()) {
    return;
  }
  value_ = builder_.declare_rule();
  object_ = builder_.declare_rule();
  const auto list = [&](std::string_view open, std::string_view close, auto item) {
    const Fragment rest = builder_.repeat(0, GrammarBuilder::kUnbounded, [&] {
      return builder_.sequence({separator(','), item()});
    });
    return builder_.sequence({builder_.text(open),
                              builder_.optional(builder_.sequence({item(), rest})),
                              builder_.text(close)});
  };
  const auto member = [&] {
    return builder_.sequence({any_string(), separator(':'), builder_.call(*value_)});
  };
  builder_.define_rule(*object_, list("{", "}", member));
  builder_.define_rule(
      *value_,
      builder_.choice({any_string(), any_number(), builder_.text("true"), builder_.text("false"),
                       builder_.text("null"), list("{", "}", member),
                       list("[", "]", [&] { return builder_.call(*value_); })}));
}

Fragment JsonRules::any_value() {
  define_value();
  return builder_.call(*value_);
}

Fragment JsonRules::any_object() {
  define_value();
  return builder_.call(*object_);
}

}  // namespace tidemill::engines
