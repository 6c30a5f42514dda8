// SPDX-License-Identifier: Apache-2.0
// Makes the directories of new runs.
#pragma once

#include <filesystem>
#include <string>

#include "configs/load.hpp"

namespace tidemill::launcher {

/// Returns the local time, "YYYY-MM-DDTHH:MM:SS".
[[nodiscard]] std::string local_time();

/// Makes the directory of a new run under `runs/`. Its name is that of the options, which must not
/// be in use, or else the first of stem, stem-2, ... of `file` that is not in use. Writes `started`
/// (the local time), `state.json` and `run.yaml` (the resolved configuration) into it. A directory
/// that a killed process left before it wrote `run.yaml` is not in use. Errors: `kInvalidArgument`
/// if the name is in use; those of the file system.
[[nodiscard]] Result<std::filesystem::path> make_run_directory(
    const Schema<configs::RunConfig>& schema, const configs::RunConfig& config,
    const std::string& file);

/// Returns when the run in `directory` began: local time, "YYYY-MM-DDTHH:MM:SS".
/// Errors: those of the file system.
[[nodiscard]] Result<std::string> read_started(const std::filesystem::path& directory);

}  // namespace tidemill::launcher
