// SPDX-License-Identifier: Apache-2.0
// A process of our own that is timed from outside: when it printed each line, and its memory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// A line of the standard output, and when it came.
struct TimedLine {
  double seconds = 0.0;  // since the process was started
  std::string text;
};

/// What a process printed and took.
struct TimedProcess {
  std::vector<TimedLine> lines;
  /// Its largest resident set, in bytes: looked at twenty times a second and at each line. What the
  /// system counts for a child would include the memory of the parent it was forked from.
  double peak_bytes = 0.0;
};

/// Runs `command` in `directory` and waits until it ends; what it says on standard error is kept in
/// the file `said` there.
/// Errors: `kUnavailable` when it cannot be started, ends with another code than 0 (with the last
/// line it said), or is not done after `patience`, when it is killed.
[[nodiscard]] Result<TimedProcess> run_timed(const std::vector<std::string>& command,
                                             const std::filesystem::path& directory,
                                             Duration patience);

}  // namespace tidemill::launcher
