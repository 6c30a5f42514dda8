// SPDX-License-Identifier: Apache-2.0
// Runs the built `tidemill` program as a separate process, for tests that kill and interrupt it.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tidemill::test {

/// Time after which a process counts as hanging, and the test fails.
inline constexpr std::chrono::seconds kHang{120};

/// How a process ended, and what it printed.
struct Ended {
  int code = 0;    // exit status; -1 if a signal ended it
  int signal = 0;  // 0 if it exited
  std::string out;
  std::string err;

  /// Returns all members as text, for the message of a failed expectation.
  [[nodiscard]] std::string describe() const;
  /// Returns the last line of standard error.
  [[nodiscard]] std::string last_error_line() const;
};

/// Returns the command line of the program with `arguments`.
[[nodiscard]] std::vector<std::string> tidemill(std::vector<std::string> arguments);

/// A child process in its own process group. The destructor kills it and waits for it.
class ProgramRun {
public:
  /// Starts `command`, whose first word is a program that is searched for in PATH, in `folder`.
  /// Aborts if it cannot be started.
  ProgramRun(const std::filesystem::path& folder, const std::vector<std::string>& command);
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;
  ~ProgramRun();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Sends `signal` to the process only, not to its group.
  void send(int signal) const;
  /// Waits for the process to end, but at most for `time`. Returns whether it has ended.
  [[nodiscard]] bool ended_within(std::chrono::microseconds time) const;
  /// Reads standard error until `text` has appeared. Returns false if the process ends without it
  /// or hangs.
  [[nodiscard]] bool wait_for_error_text(const std::string& text);
  /// Waits for the process to end. Returns nothing if that takes longer than `hang`. Must be called
  /// at most once.
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
