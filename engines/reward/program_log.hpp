// SPDX-License-Identifier: Apache-2.0
// Records what a program writes to stderr: all of it in a file, and its end in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward/child_process.hpp"

namespace tidemill::engines {

/// Records the stderr of a program and of the processes that replace it.
class ProgramLog {
public:
  /// Creates a log that appends to `path`. If `path` is empty, only the end is kept, in memory.
  /// Errors: `kInvalidArgument` naming `path` if it cannot be opened.
  [[nodiscard]] static Result<ProgramLog> open(const std::string& path);

  /// Records bytes that the program wrote. After 64 MiB, or after a failed write, nothing more is
  /// written to the file, because a run must not fail because of its log.
  void append(std::string_view bytes);
  /// Clears the end kept in memory. The engine calls this when it has restarted the program.
  void clear_tail() { tail_.clear(); }
  /// Returns the last line that is not blank, in a form fit for an error message, or an empty
  /// string.
  [[nodiscard]] std::string last_line() const;

private:
  explicit ProgramLog(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
  std::uint64_t written_ = 0;
  std::string tail_;
};

}  // namespace tidemill::engines
