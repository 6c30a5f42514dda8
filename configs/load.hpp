// SPDX-License-Identifier: Apache-2.0
// Reads YAML files into checked options.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "configs/overrides.hpp"
#include "configs/run_config.hpp"

namespace tidemill::configs {

/// Reads the run that the file at `path` describes. `overrides` replace values of the file.
///
/// Errors: one line that names the location: "configs/x.yaml:12: rollout.group_sise: unknown key;
/// did you mean group_size?". Only the first error is reported, in this order: the file is not a
/// configuration; an override does not fit; a key or value is wrong, in the order of the file; a
/// key is missing or conflicts with others. `kNotFound` if the file does not exist, else
/// `kInvalidArgument`.
[[nodiscard]] Result<Resolved<RunConfig>> load_run_config(const Schema<RunConfig>& schema,
                                                          const std::string& path,
                                                          std::span<const Override> overrides = {});

/// Reads the run that `text` describes. Errors name it `source`. Errors: as `load_run_config`.
[[nodiscard]] Result<Resolved<RunConfig>> read_run_config(const Schema<RunConfig>& schema,
                                                          std::string_view text,
                                                          const std::string& source,
                                                          std::span<const Override> overrides = {});

/// Returns `config` as YAML that contains every default and reads back as the same run.
[[nodiscard]] std::string resolved_text(const Schema<RunConfig>& schema, const RunConfig& config);

/// Returns the name of a run of the file at `path` whose options give no name: the stem of the
/// file. Characters that a name cannot contain become `-`, and leading dashes are removed. If the
/// result is not a valid name, `run` is put in front of it.
[[nodiscard]] std::string default_run_name(const std::string& path);

}  // namespace tidemill::configs
