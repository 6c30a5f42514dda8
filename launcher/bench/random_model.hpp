// SPDX-License-Identifier: Apache-2.0
// Models of known sizes with random weights: what speed is measured on when none is given.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::launcher {

/// Returns the names that `random_model` takes: "3.7m", "15m", "197m", "600m".
[[nodiscard]] std::vector<std::string> preset_names();

/// Returns the architecture of a preset: a Llama with an untied head.
/// Errors: `kInvalidArgument` naming the presets.
[[nodiscard]] Result<engines::ModelConfig> preset_config(const std::string& preset);

/// Fills a model of `config` with small random weights (norm gains are 1) of type `dtype`, kF32 or
/// kBF16; the same ones every time.
[[nodiscard]] engines::ModelFiles random_model(const engines::ModelConfig& config, DType dtype);

}  // namespace tidemill::launcher
