// SPDX-License-Identifier: Apache-2.0
// Random models of known sizes, which are measured if the user names no model.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "engines/formats/model_files.hpp"

namespace tidemill::bench {

/// Returns the names of the presets: "0.1m", "3.7m", "15m", "197m", "600m", "1b",
/// "qwen3-0.6b", "qwen3-1.7b".
[[nodiscard]] std::vector<std::string> preset_names();

/// Returns the architecture of a preset: a Llama with an untied head, or a Qwen3 with a tied one.
/// Errors: `kInvalidArgument` with the known names.
[[nodiscard]] Result<engines::ModelConfig> preset_config(const std::string& preset);

/// Returns a model of `config` with small random weights of type `dtype`, kF32 or kBF16. Norm gains
/// are 1. Every call returns the same weights.
[[nodiscard]] engines::ModelFiles random_model(const engines::ModelConfig& config, DType dtype);

}  // namespace tidemill::bench
