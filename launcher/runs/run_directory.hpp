// SPDX-License-Identifier: Apache-2.0
// Makes the directories of new runs, and checks where they are.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/files/held_directory.hpp"
#include "configs/load.hpp"

namespace tidemill::launcher {

/// Returns the local time, "YYYY-MM-DDTHH:MM:SS".
[[nodiscard]] std::string local_time();

/// The directory of a new run.
struct NewRunDirectory {
  std::filesystem::path path;
  std::shared_ptr<const HeldDirectory> held;
  bool taken_over = false;  // another run, which had not begun, left it
};

/// Makes the directory of a new run under `runs/`. Its name is that of the options, which must not
/// be in use, or else the first of stem, stem-2, ... of `file` that is not in use. Writes `started`
/// (the local time), `state.json` and `run.yaml` (the resolved configuration) into it.
///
/// A name is not in use if its directory contains only what a run leaves there, lacks `run.yaml` or
/// `started`, and holds neither commits nor records. Such a run cannot be resumed: its process was
/// killed before it began. These files are then removed.
/// Errors: `kInvalidArgument` if the name is in use; those of the file system.
[[nodiscard]] Result<NewRunDirectory> make_run_directory(const Schema<configs::RunConfig>& schema,
                                                         const configs::RunConfig& config,
                                                         const std::string& file);

/// Returns when the run in `directory` began: local time, "YYYY-MM-DDTHH:MM:SS".
/// Errors: those of the file system.
[[nodiscard]] Result<std::string> read_started(const std::filesystem::path& directory);

/// Checks that the directory of a run is still at its path.
/// Errors: `kUnavailable` in one line that says where it is now.
[[nodiscard]] Status check_in_place(const HeldDirectory& directory);

}  // namespace tidemill::launcher
