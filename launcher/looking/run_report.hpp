// SPDX-License-Identifier: Apache-2.0
// How a run stands, as its directory tells. Reads alone, also while the run goes on.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "base/result.hpp"

namespace tidemill::launcher {

/// One line of `metrics.jsonl`.
struct MetricsLine {
  std::string kind;  // "train" or "eval"
  std::int64_t step = 0;
  std::map<std::string, double> figures;  // those that are finite numbers
};

/// Parses a line; nothing if it is none.
[[nodiscard]] std::optional<MetricsLine> parse_metrics_line(std::string_view line);

/// What is known of a run.
struct RunReport {
  std::filesystem::path directory;
  std::string name;
  std::string workflow;
  std::filesystem::path model;  // as run.yaml names it
  /// "running", "finished", "stopped" or "failed"; "damaged" when the directory does not say.
  std::string state;
  std::string reason;                   // why, where that is known
  std::int64_t step = 0;                // the last recorded one
  std::optional<std::int64_t> steps;    // at the run's end
  std::map<std::string, double> train;  // figures of the last training step
  std::map<std::string, double> eval;   // of the last evaluation
  std::time_t written = 0;              // when the run last wrote something down
};

/// Returns whether a folder is that of a run, damaged or not.
[[nodiscard]] bool is_run(const std::filesystem::path& directory);

/// Looks at one run. What is damaged is said in the report.
[[nodiscard]] RunReport look_at_run(const std::filesystem::path& directory);

/// Finds the directory that a user means by `run`: a path, or a name under `runs/`.
/// Errors: `kNotFound`.
[[nodiscard]] Result<std::filesystem::path> find_run(const std::string& run);

}  // namespace tidemill::launcher
