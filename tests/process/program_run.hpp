// SPDX-License-Identifier: Apache-2.0
// The built `tidemill` program as a process of its own, for tests that kill and interrupt it.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tidemill::test {

/// An upper bound that only a hang reaches: a test fails then, and nothing else hangs on it.
inline constexpr std::chrono::seconds kHang{120};

/// How a process ended, and what it printed.
struct Ended {
  int code = 0;    // exit status; -1 when a signal ended it
  int signal = 0;  // 0 when it exited
  std::string out;
  std::string err;

  /// Returns everything, for the message of a failed expectation.
  [[nodiscard]] std::string describe() const;
  /// Returns the last line of standard error.
  [[nodiscard]] std::string last_error_line() const;
};

/// Returns the program, followed by `arguments`.
[[nodiscard]] std::vector<std::string> tidemill(std::vector<std::string> arguments);

/// A process that was started, in a process group of its own. Killed and collected with the object.
class ProgramRun {
public:
  /// Starts `command` (program first, looked up in PATH) in `folder`. Dies when it cannot.
  ProgramRun(const std::filesystem::path& folder, const std::vector<std::string>& command);
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;
  ~ProgramRun();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Sends `signal` to the process alone.
  void send(int signal) const;
  /// Waits until it has ended, at most for `time`; returns whether it has.
  [[nodiscard]] bool ended_within(std::chrono::microseconds time) const;
  /// Reads its standard error until `text` has appeared in it; false when it ended without, or
  /// hangs.
  [[nodiscard]] bool wait_for_error_text(const std::string& text);
  /// Waits for its end; nothing when it takes longer than `hang`. Call once.
  [[nodiscard]] std::optional<Ended> finish(std::chrono::seconds hang = kHang);

private:
  bool read_some(int timeout_ms);

  pid_t pid_ = 0;
  int pid_descriptor_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string out_text_;
  std::string err_text_;
};

}  // namespace tidemill::test
