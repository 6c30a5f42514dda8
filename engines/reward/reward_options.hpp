// SPDX-License-Identifier: Apache-2.0
// What a user may say about how answers are rewarded.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace tidemill::engines {

/// How an answer is judged.
enum class RewardKind : std::uint8_t {
  kExactMatch,  // the response is the reference answer
  kNumber,      // the last number of the response is the reference number
  kRegex,       // a pattern matches, or what it captures is the reference answer
  kCommand,     // a program of the user's judges
};

/// Describes one reward. Fields that a kind does not name are ignored by it.
struct RewardOptions {
  RewardKind kind = RewardKind::kExactMatch;
  /// kNumber: largest absolute difference that still counts as equal; finite, >= 0.
  double tolerance = 1e-6;

  /// kRegex: a PCRE2 pattern, matched with UTF and Unicode properties.
  std::string pattern;

  /// kCommand: program and arguments; a program without '/' is looked up in PATH.
  std::vector<std::string> command;
  /// kCommand: time limit of a sample. It runs from the moment when the sample was sent and all
  /// samples sent before it were answered, so that a program that judges one after the other is
  /// not blamed for its queue.
  Duration timeout = std::chrono::seconds(30);
  /// kCommand: most samples the program is asked to judge at one time; > 0.
  std::size_t max_in_flight = 16;
  /// kCommand: the engine gives up after so many ends or hangs of the program in a row without one
  /// answer between them; > 0.
  std::size_t max_failures_in_a_row = 5;
  /// kCommand: pause before the second start in a row; doubles with each further one, to 30 s.
  Duration first_backoff = std::chrono::milliseconds(100);
  /// kCommand: file that gets all the program writes to stderr, appended, up to 64 MiB; empty:
  /// none.
  std::string stderr_path;
};

}  // namespace tidemill::engines
