// SPDX-License-Identifier: Apache-2.0
// Decides which keys of a run may change when it is resumed.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "configs/overrides.hpp"
#include "configs/run_config.hpp"

namespace tidemill::launcher {

/// The configuration of a run that is to be resumed.
struct ResumedConfig {
  configs::RunConfig before;  // in run.yaml
  configs::RunConfig after;   // with the keys that the command line sets
  std::string file;           // the path of run.yaml
  std::vector<configs::Override> overrides;
};

/// Checks that a run can be resumed with `config.after`. `committed` is the configuration with
/// which the last commit was made, as YAML. If it is empty or of another version of the program,
/// the configuration in run.yaml takes its place.
///
/// Returns a line for the log if the resumed run will not end with the same weights as one that had
/// this configuration from its start, or else an empty string.
/// Errors: `kInvalidArgument` naming all keys that cannot change.
[[nodiscard]] Result<std::string> check_config_changes(const Schema<configs::RunConfig>& schema,
                                                       const ResumedConfig& config,
                                                       const std::string& committed);

}  // namespace tidemill::launcher
