// SPDX-License-Identifier: Apache-2.0
// The figures of the engine: how fast a model generates and trains on this machine, and how near
// that is to what the machine can do.
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

namespace tidemill::launcher {

/// One figure, beside the limit or peer that it is a share of.
struct Figure {
  std::string name;
  double value = 0.0;
  std::string unit;
  std::string peer;
  double peer_value = 0.0;  // in `unit`
  int threads = 1;
  double foreign_load = 0.0;  // the share of the cores that others used meanwhile

  /// Returns value / peer_value, for times its inverse: the share of a limit either way. For memory
  /// less is better.
  [[nodiscard]] double ratio() const noexcept;
};

/// Where the time of a figure's measured steps went.
struct StepProfile {
  engines::OpProfile ops;
  double seconds = 0.0;  // of the steps, all that is not an operation included
  engines::MachinePeaks peaks;
};

/// What is measured, and on what.
struct EngineBenchOptions {
  /// Returns the model with its weights as `dtype`: called once for each figure. `preset` is
  /// what the figure is defined for; the user may have asked for another model.
  std::function<Result<engines::ModelFiles>(DType dtype, const char* preset)> model;
  /// Where the model's tokenizer is; empty: it has none.
  std::filesystem::path model_directory;
  /// This program, for figures that are measured in processes of their own.
  std::filesystem::path program;
  int threads = 1;
  /// Names of `engine_figures`; empty: all.
  std::vector<std::string> figures;
  /// Measured again up to so many times while others use more than a twentieth of the cores.
  int patience = 3;
};

/// Returns the names of all figures, in the order they are measured.
[[nodiscard]] std::vector<std::string> engine_figures();

/// Measures the figures asked for and reports each as it is done; `profiled`, if given, gets the
/// profile of each figure after it.
/// Errors: those of the engine, naming the figure; `kInvalidArgument` for an unknown figure.
[[nodiscard]] Status run_engine_bench(
    const EngineBenchOptions& options, const std::function<void(const Figure&)>& report,
    const std::function<void(const Figure&, const StepProfile&)>& profiled);

}  // namespace tidemill::launcher
