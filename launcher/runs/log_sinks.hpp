// SPDX-License-Identifier: Apache-2.0
// The outputs of the program's log: the terminal and a file.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// Makes a sink that writes to stderr, in color if that is a terminal.
[[nodiscard]] std::unique_ptr<LogSink> make_stderr_sink();

/// Makes a sink that appends lines with date and time to the file at `path`.
/// Errors: `kUnavailable`, naming the file, if it cannot be opened.
[[nodiscard]] Result<std::unique_ptr<LogSink>> make_file_sink(const std::string& path);

}  // namespace tidemill::launcher
