// SPDX-License-Identifier: Apache-2.0
// The directory of a run: how it gets its name, and what says that it is one.
#pragma once

#include <filesystem>
#include <string>

#include "configs/load.hpp"

namespace tidemill::launcher {

/// Returns the local time, "YYYY-MM-DDTHH:MM:SS".
[[nodiscard]] std::string local_time();

/// Makes the directory of a new run under `runs/`: the name of the options, which must be free, or
/// the file's stem, stem-2, ...; writes `started`, the local time, and `run.yaml`, the resolved
/// configuration, into it. A directory that a killed process left before its `run.yaml` was there
/// is free.
/// Errors: `kInvalidArgument` for a name that is taken; those of the file system.
[[nodiscard]] Result<std::filesystem::path> make_run_directory(
    const Schema<configs::RunConfig>& schema, const configs::RunConfig& config,
    const std::string& file);

/// Returns when the run in `directory` was begun: local time, "YYYY-MM-DDTHH:MM:SS".
/// Errors: those of the file system.
[[nodiscard]] Result<std::string> read_started(const std::filesystem::path& directory);

}  // namespace tidemill::launcher
