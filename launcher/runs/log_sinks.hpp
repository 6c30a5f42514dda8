// SPDX-License-Identifier: Apache-2.0
// Where a program's log goes: the terminal, a file.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// Makes a sink that writes to stderr, in colour on a terminal.
[[nodiscard]] std::unique_ptr<LogSink> make_stderr_sink();

/// Makes a sink that appends to the file at `path`, each line with date and time.
/// Errors: `kUnavailable` naming the file if it cannot be opened.
[[nodiscard]] Result<std::unique_ptr<LogSink>> make_file_sink(const std::string& path);

}  // namespace tidemill::launcher
