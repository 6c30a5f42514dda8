// SPDX-License-Identifier: Apache-2.0
// The code words that begin the message of every refusal in this folder.
//
// A refusal is a `kInvalidArgument` status whose message reads "code: location and reason", for
// example "non_finite: rewards[3] (sample 17) is nan". Code words are stable, since tests and
// users' scripts match them.
#pragma once

#include <string>
#include <string_view>

#include "base/status.hpp"

namespace tidemill::engines {

/// An input holds NaN or an infinity at a position that is read.
inline constexpr std::string_view kNonFinite = "non_finite";
/// A result is NaN or an infinity.
inline constexpr std::string_view kNonFiniteResult = "non_finite_result";
/// A mask holds something other than 0 and 1.
inline constexpr std::string_view kBadMask = "bad_mask";
/// A token weight is negative.
inline constexpr std::string_view kBadWeight = "bad_weight";
/// An option is outside its range, or contradicts another.
inline constexpr std::string_view kBadOption = "bad_option";
/// A column is missing or has the wrong number of elements.
inline constexpr std::string_view kBadShape = "bad_shape";
/// A length is negative.
inline constexpr std::string_view kBadLength = "bad_length";
/// A count is negative.
inline constexpr std::string_view kBadCount = "bad_count";
/// A group has a single member, and the caller asked to refuse such groups.
inline constexpr std::string_view kSingletonGroup = "singleton_group";

/// Returns the failure "code: text".
[[nodiscard]] inline Status refuse(std::string_view code, std::string_view text) {
  return invalid_argument(std::string(code).append(": ").append(text));
}

}  // namespace tidemill::engines
