// SPDX-License-Identifier: Apache-2.0
// The rules that judge an answer by its text alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::engines {

/// Judges one answer. A value: 1 for right, 0 for wrong. A failure: it cannot be judged.
class RewardRule {
public:
  RewardRule() = default;
  RewardRule(const RewardRule&) = delete;
  RewardRule& operator=(const RewardRule&) = delete;
  virtual ~RewardRule() = default;

  /// Threads: one call at a time.
  [[nodiscard]] virtual Result<double> judge(const RewardRequest& request) = 0;
};

/// Returns `text` without the ASCII white space at its ends (space, \t, \n, \v, \f, \r).
[[nodiscard]] std::string_view trim(std::string_view text) noexcept;

/// Returns the last number of `text`, read from left to right, or nothing.
///
/// A number is `[sign] digits [. digits] [e [sign] digits]`, or `[sign] . digits ...`:
/// - digits are 0-9; thousands may be grouped by commas, wholly and rightly: "1,234,567" is one
///   number, "12,34" and "1234,567" are two;
/// - a sign is "+", "-" or U+2212 directly before the number, unless an ASCII letter or digit, or
///   ")" or "]", stands before it: "3-4" ends in 4, "= -4" in -4;
/// - a point without a digit behind it is not part of the number: "is 42." ends in 42;
/// - digits inside words count ("x2" ends in 2); fractions, percent signs and units are not read.
/// A number that no double can hold ("1e999") is returned as NaN, which equals nothing.
[[nodiscard]] std::optional<double> last_number(std::string_view text);

/// Makes the rule of kExactMatch: response and reference are the same bytes once trimmed.
/// Its `judge` fails with `kInvalidArgument` when the row has no reference answer.
[[nodiscard]] std::unique_ptr<RewardRule> make_exact_match_rule();

/// Makes the rule of kNumber: |last number of the response - last number of the reference| <=
/// `tolerance`, both as doubles; a response without a number is wrong.
///
/// Errors: `kInvalidArgument` when `tolerance` is negative or not finite. Its `judge` fails with
/// `kInvalidArgument` when the reference has no finite number.
[[nodiscard]] Result<std::unique_ptr<RewardRule>> make_number_rule(double tolerance);

/// Makes the rule of kRegex: right when the pattern matches somewhere in the response; a pattern
/// with a group named `answer` is right when what that group captured in the first match is the
/// reference once both are trimmed. Bytes of the response that are not UTF-8 match nothing.
///
/// Errors: `kInvalidArgument` naming the offset when the pattern is empty or malformed. Its `judge`
/// fails with `kResourceExhausted` when a match takes more than a million steps or 64 MiB, and with
/// `kInvalidArgument` when the group `answer` has no reference to be compared with.
[[nodiscard]] Result<std::unique_ptr<RewardRule>> make_regex_rule(const std::string& pattern);

}  // namespace tidemill::engines
