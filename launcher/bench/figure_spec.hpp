// SPDX-License-Identifier: Apache-2.0
// One row of the table of figures, and the rows by theme.
#pragma once

#include <optional>
#include <vector>

#include "launcher/bench/bench_model.hpp"

namespace tidemill::launcher {

/// Where a figure's work is done: on a model open here, or by processes that open it themselves.
enum class Place { kHere, kOwnProcess };

/// How a figure is measured. A new one is a row in the file of its theme.
struct FigureSpec {
  const char* name;
  BenchModelOptions model;
  const char* unit;
  const char* peer;
  /// Measures once.
  Result<double> (*run)(BenchModel& bench);
  /// Returns what it is compared with, once it has been measured; may open the model anew.
  Result<double> (*peer_value)(BenchModel& bench, const engines::MachinePeaks& peaks,
                               const FigureSpec& spec);
  Place place = Place::kHere;
};

constexpr const char* kTokensPerSecond = "tok/s";
constexpr const char* kMatmulPeak = "matmul peak";

/// Return the rows of a theme, in the order they are measured.
[[nodiscard]] std::vector<FigureSpec> generation_figures();
[[nodiscard]] std::vector<FigureSpec> training_figures();
[[nodiscard]] std::vector<FigureSpec> memory_figures();
[[nodiscard]] std::vector<FigureSpec> grpo_figures();
[[nodiscard]] std::vector<FigureSpec> adapter_figures();
[[nodiscard]] std::vector<FigureSpec> sharing_figures();

}  // namespace tidemill::launcher
