// SPDX-License-Identifier: Apache-2.0
// Reports the state of a run from its directory, which it only reads. The run may be in progress.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/result.hpp"

namespace tidemill::launcher {

/// The state of a run.
struct RunReport {
  std::filesystem::path directory;
  std::string name;
  std::string workflow;
  std::filesystem::path model;  // as run.yaml names it
  /// "running", "finished", "stopped" or "failed"; "damaged" if the directory cannot be read.
  std::string state;
  std::string reason;                   // why it has this state, if known
  std::int64_t step = 0;                // the last recorded step
  std::optional<std::int64_t> steps;    // total steps of the run, if known
  std::map<std::string, double> train;  // metrics of the last training step
  std::map<std::string, double> eval;   // metrics of the last evaluation
  std::time_t written = 0;              // when the run last recorded something; 0: unknown
};

/// Returns whether `directory` is that of a run, damaged or not.
[[nodiscard]] bool is_run(const std::filesystem::path& directory);

/// Reads the state of a run. If the directory is damaged, the report says so.
[[nodiscard]] RunReport read_run_report(const std::filesystem::path& directory);

/// Finds the directory of `run`, which is a path or a name under `runs/`.
/// Errors: `kNotFound`; `kInvalidArgument` if `run` is empty.
[[nodiscard]] Result<std::filesystem::path> find_run(const std::string& run);

}  // namespace tidemill::launcher
