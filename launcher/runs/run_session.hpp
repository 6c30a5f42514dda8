// SPDX-License-Identifier: Apache-2.0
// Carries out a configured run in its directory, for `run` and `resume`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/files/held_directory.hpp"
#include "configs/load.hpp"
#include "launcher/command.hpp"
#include "storage/checkpoint/commit_folder.hpp"

namespace tidemill::launcher {

/// What happens if `metrics.jsonl` or `samples.jsonl` lacks what the last commit recorded.
enum class OnLostRecords : std::uint8_t { kRefuse, kAccept };

/// The directory and the configuration of a run.
struct RunContext {
  std::filesystem::path directory;  // exists
  /// `directory`, kept open, so that nothing is written elsewhere if it is renamed or removed.
  std::shared_ptr<const HeldDirectory> held;
  configs::RunConfig config;
  std::string config_text;  // the resolved configuration, which commits contain
  /// Checks the configuration against that of the last commit, which is empty if it is unknown.
  /// Returns a line for the log, or an empty one. May be empty.
  std::function<Result<std::string>(const std::string& committed)> check_config;
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
/// Shows progress, and prints the outcome of the run and where its result is. A resumed run that is
/// refused before its first step leaves `state.json` and the log as they were.
/// Errors: one line that says what went wrong. The last commit remains usable.
[[nodiscard]] Status execute_run(const RunContext& context, Session& session);

}  // namespace tidemill::launcher
