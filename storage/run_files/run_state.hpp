// SPDX-License-Identifier: Apache-2.0
// Reads and writes `state.json` in a run's directory: its total steps, and how its last process
// ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::storage {

/// The name of the file.
inline constexpr const char* kRunStateFile = "state.json";

/// The content of the file. A process writes it when it makes the directory, before its first step,
/// and when it ends. If the process is killed, the file therefore still says "running".
struct RunStateNote {
  std::string state;        // "running", "finished", "stopped" or "failed"
  std::uint64_t steps = 0;  // total steps of the run; 0 before its first step
  std::string reason;       // why it stopped or failed, in one line; empty if unknown
};

/// Writes the file atomically. Errors: those of the file system.
[[nodiscard]] Status write_run_state(FileSystem& files, const std::filesystem::path& directory,
                                     const RunStateNote& note);

/// Reads the file. Returns nothing if it does not exist.
/// Errors: `kCorruptData` naming the file; those of the file system.
[[nodiscard]] Result<std::optional<RunStateNote>> read_run_state(
    const std::filesystem::path& directory);

}  // namespace tidemill::storage
