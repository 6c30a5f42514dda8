// SPDX-License-Identifier: Apache-2.0
// Carries out a configured run in its directory, for `run` and `resume`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "configs/load.hpp"
#include "launcher/command.hpp"
#include "storage/checkpoint/commit_folder.hpp"

namespace tidemill::launcher {

/// What happens if `metrics.jsonl` or `samples.jsonl` lacks what the last commit recorded.
enum class OnLostRecords : std::uint8_t { kRefuse, kAccept };

/// The directory and the configuration of a run.
struct RunContext {
  std::filesystem::path directory;  // exists
  configs::RunConfig config;
  storage::OnDamage on_damage = storage::OnDamage::kRefuse;
  OnLostRecords on_lost_records = OnLostRecords::kRefuse;
  /// Replaces the content of `run.yaml` when the first step is about to begin. Empty: it stays.
  std::string run_yaml;
  /// The directory was made for this run. It is removed if the run is refused before its first
  /// step.
  bool fresh = false;
};

/// Carries out a run to its end, or until it is interrupted. The first SIGINT, SIGTERM or SIGHUP
/// ends the run after the current step, with a commit; the second one ends the process immediately.
/// Shows progress, and prints the outcome of the run and where its result is.
/// Errors: one line that says what went wrong. The last commit remains usable.
[[nodiscard]] Status execute_run(const RunContext& context, Session& session);

}  // namespace tidemill::launcher
