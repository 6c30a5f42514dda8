// SPDX-License-Identifier: Apache-2.0
// The options of a reward.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace tidemill::engines {

/// How a response is scored.
enum class RewardKind : std::uint8_t {
  kExactMatch,  // the response must equal the reference answer
  kNumber,      // the last number of the response must equal that of the reference answer
  kRegex,       // a pattern must match, or what it captures must equal the reference answer
  kCommand,     // a user's program scores the response
};

/// Describes one reward. A kind reads only the fields whose comment names it.
struct RewardOptions {
  RewardKind kind = RewardKind::kExactMatch;
  /// kNumber: the largest absolute difference that counts as equal; finite, >= 0.
  double tolerance = 1e-6;

  /// kRegex: a PCRE2 pattern, matched with UTF and Unicode properties.
  std::string pattern;

  /// kCommand: the program and its arguments. A program name without '/' is looked up in PATH.
  std::vector<std::string> command;
  /// kCommand: the time limit of a sample; > 0. It starts when the sample has been sent and all
  /// samples sent before it are done, so that a program that scores one sample after the other is
  /// not killed for the length of its queue. The first reply of a process may take longer; see
  /// `first_reply_timeout`.
  Duration timeout = std::chrono::seconds(30);
  /// kCommand: the maximum number of samples in flight; > 0.
  std::size_t max_in_flight = 16;
  /// kCommand: the engine gives up after this many exits, hangs or failed starts of the program in
  /// a row without a reply; > 0.
  std::size_t max_failures_in_a_row = 5;
  /// kCommand: the pause before a restart after the first failure; >= 0. It doubles with each
  /// further failure in a row, up to 30 s.
  Duration first_backoff = std::chrono::milliseconds(100);
  /// kCommand: the file to which the program's stderr is appended, up to 64 MiB. If empty, stderr
  /// is not written to a file.
  std::string stderr_path;
};

/// Returns the time limit of the first reply of a process whose samples have the limit `timeout`:
/// ten times as much, but at most a minute, and never less than `timeout`. A program may need that
/// time to load a model.
[[nodiscard]] constexpr Duration first_reply_timeout(Duration timeout) noexcept {
  constexpr Duration kMaxFirstReply = std::chrono::minutes(1);
  return timeout >= kMaxFirstReply ? timeout : std::min(10 * timeout, kMaxFirstReply);
}

}  // namespace tidemill::engines
