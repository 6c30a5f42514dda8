// SPDX-License-Identifier: Apache-2.0
// The arguments `FILE [key=value...]`, which all commands about runs begin with.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "configs/run_config.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// A run's file and the keys that the command line puts over it.
class RunFile {
public:
  /// Adds the arguments to a command.
  void declare(CLI::App& app);

  /// Reads the run; an override's errors name it by its number on the command line.
  /// Errors: of `configs::load_run_config`.
  [[nodiscard]] Result<Resolved<configs::RunConfig>> load(const Session& session);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns the schema that it was read by.
  [[nodiscard]] const Schema<configs::RunConfig>& schema() const { return schema_; }

private:
  Schema<configs::RunConfig> schema_ = Schema<configs::RunConfig>::described();
  std::string path_;
  std::vector<std::string> overrides_;
};

}  // namespace tidemill::launcher
