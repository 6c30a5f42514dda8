// SPDX-License-Identifier: Apache-2.0
// Defines the figures, grouped by topic.
#pragma once

#include <optional>
#include <vector>

#include "bench/bench_model.hpp"

namespace tidemill::bench {

/// Where a figure is measured: on a model opened in this process, in this process without a model,
/// or in a separate process that opens it itself.
enum class RunsIn { kThisProcess, kThisProcessWithoutModel, kOwnProcess };

/// Whether a figure is measured with all others, or only if it is named, because it takes minutes
/// on the model that it is defined for.
enum class Selection { kByDefault, kByName };

/// How a figure is measured. To add a figure, add an element to the list of its topic.
struct FigureSpec {
  const char* name;
  BenchModelOptions model;
  const char* unit;
  const char* peer;
  /// Measures once.
  Result<double> (*run)(BenchModel& bench);
  /// Returns the value that the figure is compared with. Called after the measurement; may reopen
  /// the model.
  Result<double> (*peer_value)(BenchModel& bench, const engines::MachinePeaks& peaks,
                               const FigureSpec& spec);
  RunsIn runs_in = RunsIn::kThisProcess;
  Selection selection = Selection::kByDefault;
  /// How often the figure is measured, as in `EngineBenchOptions`.
  int repetitions = 5;
  /// Adds notes to those of `bench`. Called between the measurement and `peer_value`; may reopen
  /// the model. Null: `run` has added all notes.
  Status (*annotate)(BenchModel& bench, const Figure& figure, const FigureSpec& spec) = nullptr;
};

constexpr const char* kTokensPerSecond = "tok/s";
constexpr const char* kMatmulPeak = "matmul peak";

/// Return the figures of a topic, in the order in which they are measured.
[[nodiscard]] std::vector<FigureSpec> generation_figures();
[[nodiscard]] std::vector<FigureSpec> training_figures();
[[nodiscard]] std::vector<FigureSpec> memory_figures();
[[nodiscard]] std::vector<FigureSpec> grpo_figures();
[[nodiscard]] std::vector<FigureSpec> adapter_figures();
[[nodiscard]] std::vector<FigureSpec> sharing_figures();
[[nodiscard]] std::vector<FigureSpec> sampling_figures();
[[nodiscard]] std::vector<FigureSpec> constraint_figures();

}  // namespace tidemill::bench
