// SPDX-License-Identifier: Apache-2.0
// Carries a configured run out in its directory: what `run` and `resume` share.
#pragma once

#include <filesystem>
#include <string>

#include "configs/load.hpp"
#include "launcher/command.hpp"
#include "storage/checkpoint/commit_folder.hpp"

namespace tidemill::launcher {

/// Where a run lives and what it is.
struct RunPlace {
  std::filesystem::path directory;  // exists
  configs::RunConfig config;
  storage::OnDamage on_damage = storage::OnDamage::kRefuse;
};

/// Makes the directory of a new run under `runs/`: the name of the options, which must be free, or
/// the file's stem, stem-2, ...; writes `run.yaml`, the resolved configuration, into it. A
/// directory that a killed process left before its `run.yaml` was there is free. Errors:
/// `kInvalidArgument` for a name that is taken; those of the file system.
[[nodiscard]] Result<std::filesystem::path> make_run_directory(
    const Schema<configs::RunConfig>& schema, const configs::RunConfig& config,
    const std::string& file);

/// Runs to the end, or until the user interrupts: SIGINT or SIGTERM once ends the run after its
/// step and commits, a second time at once. Shows progress, and ends with where the result is.
/// Errors: one line saying what went wrong; the last commit stands.
[[nodiscard]] Status carry_out(const RunPlace& place, Session& session);

}  // namespace tidemill::launcher
