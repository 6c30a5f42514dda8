// SPDX-License-Identifier: Apache-2.0
// The rules that score a response by its text alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Scores responses.
class RewardRule {
public:
  RewardRule() = default;
  RewardRule(const RewardRule&) = delete;
  RewardRule& operator=(const RewardRule&) = delete;
  virtual ~RewardRule() = default;

  /// Returns 1 for a correct response and 0 for a wrong one.
  /// Errors: if the response cannot be scored; see the functions that create rules.
  /// Threads: one call at a time.
  [[nodiscard]] virtual Result<double> score(const RewardRequest& request) = 0;
};

/// Returns `text` without the ASCII white space at its ends (space, \t, \n, \v, \f, \r).
[[nodiscard]] std::string_view trim(std::string_view text) noexcept;

/// Returns the last number of `text`, which is scanned from left to right, or nullopt.
///
/// A number is `[sign] digits [. digits] [e [sign] digits]`, or `[sign] . digits ...`:
/// - Digits are 0-9. Commas may group thousands, if all groups are complete: "1,234,567" is one
///   number, "12,34" and "1234,567" are two.
/// - A sign is "+", "-" or U+2212 directly before the number, unless it follows an ASCII letter or
///   digit, ")" or "]": the last number of "3-4" is 4, of "= -4" it is -4.
/// - A point that no digit follows is not part of the number: the last number of "is 42." is 42.
/// - Digits inside words count: the last number of "x2" is 2. Fractions, percent signs and units
///   are not interpreted.
/// A number that does not fit a double ("1e999") is returned as NaN, which equals no number.
[[nodiscard]] std::optional<double> last_number(std::string_view text);

/// Creates the rule of kExactMatch. A response is correct if its trimmed bytes equal those of the
/// reference answer.
/// Errors of `score`: `kInvalidArgument` if the row has no reference answer.
[[nodiscard]] std::unique_ptr<RewardRule> make_exact_match_rule();

/// Creates the rule of kNumber. A response is correct if |last number of the response - last number
/// of the reference answer| <= `tolerance`, computed in double. A response without a number is
/// wrong.
///
/// Errors: `kInvalidArgument` if `tolerance` is negative or not finite.
/// Errors of `score`: `kInvalidArgument` if the reference answer has no number or its last number
/// is not finite.
[[nodiscard]] Result<std::unique_ptr<RewardRule>> make_number_rule(double tolerance);

/// Creates the rule of kRegex. A response is correct if the pattern matches somewhere in it. If the
/// pattern has a group named `answer`, the text that the group captured in the first match must
/// also equal the reference answer, both trimmed. Bytes of the response that are not valid UTF-8
/// match nothing.
///
/// Errors: `kInvalidArgument` if the pattern is empty, longer than 65536 bytes or malformed, in the
/// last case with the offset.
/// Errors of `score`: `kInvalidArgument` if a match takes more than a million steps or 64 MiB, or
/// fails otherwise, or if the pattern has a group `answer` and the row has no reference answer.
[[nodiscard]] Result<std::unique_ptr<RewardRule>> make_regex_rule(const std::string& pattern);

}  // namespace tidemill::engines
