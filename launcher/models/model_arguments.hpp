// SPDX-License-Identifier: Apache-2.0
// The arguments `MODEL [--adapter DIR] [--dtype ...]` of the commands that run a model.
#pragma once

#include <memory>
#include <string>

#include "base/log.hpp"
#include "base/result.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// An opened model.
struct OpenedModel {
  engines::ModelConfig config;
  engines::GenerationConfig generation;
  std::unique_ptr<engines::ModelRuntime> runtime;
};

/// The command line arguments that say which model to open, and how it computes.
class ModelArguments {
public:
  /// Adds the arguments to a command.
  void declare(CLI::App& app);

  /// Opens the model and its adapter. Logs a warning if there are more threads than cores.
  /// `token_text` may be empty; see `RuntimeOptions`.
  /// Errors: those of `check_model_path`, `open_model`, `open_adapter` and `open_runtime`;
  /// `kInvalidArgument` naming the option.
  [[nodiscard]] Result<OpenedModel> open(
      Log& log, std::function<std::string(std::int32_t)> token_text = {}) const;

  [[nodiscard]] const std::string& path() const { return path_; }

private:
  std::string path_;
  std::string adapter_;
  std::string dtype_;  // empty: the default
  int threads_ = 0;
  std::int64_t cache_mib_ = 256;
};

}  // namespace tidemill::launcher
