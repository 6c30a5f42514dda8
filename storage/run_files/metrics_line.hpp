// SPDX-License-Identifier: Apache-2.0
// The lines of `metrics.jsonl`: one for each step and each evaluation of a run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::storage {

/// The name of the file in a run directory.
inline constexpr const char* kMetricsFile = "metrics.jsonl";

/// The metrics of one step or evaluation.
struct MetricsLine {
  std::string kind;  // "train" or "eval"
  std::uint64_t step = 0;
  std::map<std::string, double> metrics;  // by name, with a unit suffix
  friend bool operator==(const MetricsLine&, const MetricsLine&) = default;
};

/// Returns `line` as a JSON object with a final newline: `kind`, `step`, and the metrics sorted by
/// name. A metric that is not finite becomes null.
[[nodiscard]] std::string write_metrics_line(const MetricsLine& line);

/// Parses a line, with or without its newline. Members that are not numbers are left out.
/// Errors: `kCorruptData` naming the field, or the byte of invalid JSON.
[[nodiscard]] Result<MetricsLine> parse_metrics_line(std::string_view text);

}  // namespace tidemill::storage
