// SPDX-License-Identifier: Apache-2.0
// The outputs of the program's log: the terminal and the file of a run.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files/held_directory.hpp"
#include "base/log.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// The name of a run's log in its directory.
inline constexpr const char* kRunLogFile = "log.txt";

/// Makes a sink that writes to stderr, in color if that is a terminal.
[[nodiscard]] std::unique_ptr<LogSink> make_stderr_sink();

/// Appends lines with date and time to the log of a run. Keeps lines in memory until the file is
/// opened, so that a run that is refused leaves the log as it was.
///
/// Threads: safe to use concurrently.
class RunLogSink final : public LogSink {
public:
  explicit RunLogSink(std::shared_ptr<const HeldDirectory> directory)
      : directory_(std::move(directory)) {}
  ~RunLogSink() override;

  /// Checks that the file, if it exists, can be appended to. Changes nothing.
  /// Errors: `kInvalidArgument` naming the file if it is not a regular one; `kUnavailable`.
  [[nodiscard]] Status check() const;
  /// Opens the file, unless it is open, and writes the lines that were kept.
  /// Errors: as `open_for_append`.
  [[nodiscard]] Status open();

  /// A line that cannot be written, e.g. because the disk is full, is lost.
  void write(const LogRecord& record) override;
  void flush() override {}

private:
  void append(const std::string& line) const;

  std::shared_ptr<const HeldDirectory> directory_;
  std::mutex mutex_;
  int descriptor_ = -1;
  std::vector<std::string> kept_;  // lines before the file was opened
};

}  // namespace tidemill::launcher
