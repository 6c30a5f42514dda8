// SPDX-License-Identifier: Apache-2.0
// `state.json` of a run's directory: how far the run is to go, and how its last process ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/file.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// What the file says. A process writes it when its first step begins and when it ends; one that
/// was killed leaves "running".
struct RunStateNote {
  std::string state;        // "running", "finished", "stopped" or "failed"
  std::uint64_t steps = 0;  // at the run's end
  std::string reason;       // why it stopped or failed, in one line; may be empty
};

/// Writes the note, whole or not at all. Errors: those of the file system.
[[nodiscard]] Status write_run_state(FileSystem& files, const std::filesystem::path& directory,
                                     const RunStateNote& note);

/// Reads the note; nothing if the run has none.
/// Errors: `kCorruptData` naming the file; those of the file system.
[[nodiscard]] Result<std::optional<RunStateNote>> read_run_state(
    const std::filesystem::path& directory);

}  // namespace tidemill::launcher
