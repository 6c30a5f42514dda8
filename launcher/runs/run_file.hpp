// SPDX-License-Identifier: Apache-2.0
// The arguments `FILE [key=value...]` of `run` and `check`.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "configs/overrides.hpp"
#include "configs/run_config.hpp"
#include "launcher/command.hpp"

namespace tidemill::launcher {

/// Returns the arguments KEY=VALUE in `texts`, each located by its number on the command line.
[[nodiscard]] std::vector<configs::Override> numbered_overrides(
    const std::vector<std::string>& texts, const Session& session);

/// Writes the warnings of a run that was read to stderr.
void print_warnings(const Resolved<configs::RunConfig>& resolved, Session& session);

/// The file of a run and the keys with which the command line overrides it.
class RunFile {
public:
  /// Adds the arguments to a command. `what` is the kind of the file, for help, and `example` an
  /// override.
  void declare(CLI::App& app, const std::string& what = "a run",
               const std::string& example = "train.steps=20");

  /// Reads the run, from standard input if the file is "-". Errors in an override name its number
  /// on the command line. Errors: those of `configs::load_run_config`.
  [[nodiscard]] Result<Resolved<configs::RunConfig>> load(const Session& session);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Returns the schema with which `load` read the run.
  [[nodiscard]] const Schema<configs::RunConfig>& schema() const { return schema_; }

private:
  Schema<configs::RunConfig> schema_ = Schema<configs::RunConfig>::described();
  std::string path_;
  std::vector<std::string> overrides_;
};

}  // namespace tidemill::launcher
