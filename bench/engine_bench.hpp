// SPDX-License-Identifier: Apache-2.0
// Measures the figures of the engine: how fast it generates and trains on this machine, and how
// close that is to the limits of the machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/ops/cpu/peaks.hpp"
#include "engines/ops/profile/op_profile.hpp"

namespace tidemill::bench {

/// A number that is reported with a figure. Names of memory end with "_bytes".
struct FigureNote {
  std::string name;
  double value = 0.0;
};

/// A measured figure, and the limit or peer that it is compared with.
struct Figure {
  std::string name;
  double value = 0.0;
  std::string unit;
  std::string peer;
  double peer_value = 0.0;  // in `unit`
  int threads = 1;
  double foreign_load = 0.0;  // share of the cores that other processes used meanwhile
  std::vector<FigureNote> notes{};

  /// Returns value / peer_value, or peer_value / value for times, so that the ratio to a limit is
  /// at most 1. For memory, a smaller ratio is better.
  [[nodiscard]] double ratio() const noexcept;
};

/// Where the measured steps of a figure spent their time.
struct StepProfile {
  engines::OpProfile ops;
  double seconds = 0.0;  // of the whole steps, not only of the operations
  engines::MachinePeaks peaks;
};

/// What to measure, and on which model.
struct EngineBenchOptions {
  /// Returns the model with weights of type `dtype`. Called once for each figure. `preset` is the
  /// model that the figure is defined for; the user may have asked for another one.
  std::function<Result<engines::ModelFiles>(DType dtype, const char* preset)> model;
  /// The directory of the model's tokenizer. Empty if it has none.
  std::filesystem::path model_directory;
  /// Path of this program, for figures that are measured in a separate process.
  std::filesystem::path program;
  int threads = 1;
  /// Names from `engine_figures`. Empty: all figures that do not have to be named.
  std::vector<std::string> figures;
  /// How often a figure is measured after a run that does not count. If it is 1, there is no such
  /// run. 0: the figure's own number.
  int repetitions = 0;
  /// A repetition during which other processes used more than 5% of the cores is discarded. A
  /// figure discards at most `patience` times as many repetitions as it needs.
  int patience = 3;
};

/// Returns the names of all figures, in the order in which they are measured. Those that take
/// minutes are only measured if they are named.
[[nodiscard]] std::vector<std::string> engine_figures();

/// Measures the requested figures. Calls `report` for each as soon as it is measured, and then
/// `profiled`, unless it is empty, with its profile.
/// Errors: those of the engine, naming the figure; `kInvalidArgument` for an unknown figure.
[[nodiscard]] Status run_engine_bench(
    const EngineBenchOptions& options, const std::function<void(const Figure&)>& report,
    const std::function<void(const Figure&, const StepProfile&)>& profiled);

}  // namespace tidemill::bench
