// SPDX-License-Identifier: Apache-2.0
// Runs a child process and measures when it prints each line, and its memory.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::bench {

/// A line of standard output, and when it was read.
struct TimedLine {
  double seconds = 0.0;  // since the process was started
  std::string text;
};

/// The output and the memory of a process.
struct TimedProcess {
  std::vector<TimedLine> lines;
  /// Its largest resident set, polled twenty times a second and at each line. The system's own
  /// count for a child would include the memory of the parent that it was forked from. Units:
  /// bytes.
  double peak_bytes = 0.0;
};

/// Runs `command` in `directory` and blocks until it ends. Its standard error goes to the file
/// `said` in `directory`.
/// Errors: `kUnavailable` if it cannot be started, if its exit code is not 0 (with the last line of
/// standard error), or if it has not ended after `timeout` and was killed.
[[nodiscard]] Result<TimedProcess> run_timed(const std::vector<std::string>& command,
                                             const std::filesystem::path& directory,
                                             Duration timeout);

}  // namespace tidemill::bench
