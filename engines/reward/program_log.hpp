// SPDX-License-Identifier: Apache-2.0
// What a program wrote to stderr: all of it in a file, the end of it in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "engines/reward/child_process.hpp"

namespace tidemill::engines {

/// Keeps the stderr of a program and of its successors.
class ProgramLog {
public:
  /// Appends to `path` from now on; an empty path keeps the end in memory alone.
  /// Errors: `kInvalidArgument` naming `path` when it cannot be opened.
  [[nodiscard]] static Result<ProgramLog> open(const std::string& path);

  /// Takes in what the program wrote. A file that is full (64 MiB) or cannot be written gets no
  /// more: a run does not end because of its log.
  void append(std::string_view bytes);
  /// Forgets the end kept in memory: what follows comes from another process.
  void start_over() { tail_.clear(); }
  /// Returns the last line that is not blank, fit for an error message; empty when there is none.
  [[nodiscard]] std::string last_line() const;

private:
  explicit ProgramLog(UniqueFd file) : file_(std::move(file)) {}

  UniqueFd file_;
  std::uint64_t written_ = 0;
  std::string tail_;
};

}  // namespace tidemill::engines
