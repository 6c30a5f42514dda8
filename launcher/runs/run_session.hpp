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
  /// Made for this run: removed again when the run is refused before its first step.
  bool fresh = false;
};

/// Runs to the end, or until the user interrupts: SIGINT or SIGTERM once ends the run after its
/// step and commits, a second time at once. Shows progress, and ends with what the run came to and
/// where the result is.
/// Errors: one line saying what went wrong; the last commit stands.
[[nodiscard]] Status carry_out(const RunPlace& place, Session& session);

}  // namespace tidemill::launcher
