// SPDX-License-Identifier: Apache-2.0
// Private to engines/constraint/. The parts of JSON texts as fragments of an automaton.
//
// Texts are compact, except that one space may follow a colon and a comma, as models write it. No
// text contains unbounded white space. Numbers have at most 18 digits before and 16 after the point
// and two of an exponent, so that all are finite. Strings are valid UTF-8, and escapes of
// surrogates come in pairs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json/json.hpp"
#include "engines/constraint/grammar_builder.hpp"

namespace tidemill::engines {

/// The largest magnitude of the integers that are generated.
inline constexpr std::int64_t kMaxInteger = 999'999'999'999'999'999;

/// One end of a range of numbers.
struct NumberBound {
  std::int64_t value = 0;
  bool exclusive = false;
};

/// The numbers from `min` to `max`. An absent end is unbounded.
struct NumberRange {
  std::optional<NumberBound> min;
  std::optional<NumberBound> max;
};

/// Makes fragments of JSON. Each function returns a fragment that matches what its comment says.
/// Parts that many places use are rules, made at their first use.
/// Threads: one call at a time. `builder` must outlive it.
class JsonRules {
public:
  explicit JsonRules(GrammarBuilder& builder) : builder_(builder) {}

  /// Matches a separator, ':' or ',', with an optional space.
  [[nodiscard]] Fragment separator(char separator);
  /// Matches exactly this value. Strings have only the escapes that they need.
  [[nodiscard]] Fragment literal(const Json& value);
  /// Match any value, any object, and any string.
  [[nodiscard]] Fragment any_value();
  [[nodiscard]] Fragment any_object();
  [[nodiscard]] Fragment any_string();
  /// Matches strings of `min` to `max` characters.
  [[nodiscard]] Fragment string_of_length(std::int32_t min, std::int32_t max);
  /// Matches one character of `set` inside a string. Of the control characters, only those with a
  /// short escape are generated.
  [[nodiscard]] Fragment character(const CodePoints& set);
  /// Matches the strings that are none of `names`. Their escapes are those of `literal`, so that
  /// none spells a name in another way.
  [[nodiscard]] Fragment other_name(const std::vector<std::string>& names);
  /// Match the integers and the numbers of a range.
  [[nodiscard]] Fragment integer(const NumberRange& range);
  [[nodiscard]] Fragment number(const NumberRange& range);

private:
  struct Magnitudes {
    std::int64_t min = 0;
    std::int64_t max = 0;
    bool above_min = false;
    bool below_max = false;
  };

  [[nodiscard]] Fragment plain();
  [[nodiscard]] Fragment hex(std::string_view ranges);
  [[nodiscard]] Fragment unicode_escape();
  [[nodiscard]] Fragment not_plain();
  [[nodiscard]] Fragment digits(std::int32_t min, std::int32_t max);
  [[nodiscard]] Fragment same_length(const std::string& min, const std::string& max);
  [[nodiscard]] Fragment naturals(std::int64_t min, std::int64_t max);
  [[nodiscard]] Fragment reals(const Magnitudes& range);
  [[nodiscard]] Fragment any_number();
  void define_value();

  GrammarBuilder& builder_;
  std::optional<GrammarBuilder::RuleId> string_;
  std::optional<GrammarBuilder::RuleId> not_plain_;
  std::optional<GrammarBuilder::RuleId> number_;
  std::optional<GrammarBuilder::RuleId> value_;
  std::optional<GrammarBuilder::RuleId> object_;
};

}  // namespace tidemill::engines
