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

/// Reads the run configuration in the file at `path`. `overrides` take precedence over the file.
///
/// Errors: `kNotFound` if the file does not exist, otherwise `kInvalidArgument`. The message is one
/// line that names the location: "configs/x.yaml:12: rollout.group_sise: unknown key; did you mean
/// group_size?". Only the first error is reported. Errors are checked in this order: YAML syntax,
/// overrides, unknown keys and invalid values (in file order), then missing and conflicting keys.
[[nodiscard]] Result<Resolved<RunConfig>> load_run_config(const Schema<RunConfig>& schema,
                                                          const std::string& path,
                                                          std::span<const Override> overrides = {});

/// Reads the run that `text` describes. Messages call the text `source`.
/// Errors: as `load_run_config`, except `kNotFound`.
[[nodiscard]] Result<Resolved<RunConfig>> read_run_config(const Schema<RunConfig>& schema,
                                                          std::string_view text,
                                                          const std::string& source,
                                                          std::span<const Override> overrides = {});

/// Returns `config` as YAML that contains every default and reads back as the same run.
[[nodiscard]] std::string resolved_text(const Schema<RunConfig>& schema, const RunConfig& config);

/// Returns the default name of a run configured by the file at `path`: the file's stem, truncated
/// to 100 bytes. Characters that a name cannot contain become `-`, and leading dashes are removed.
/// If the result is not a valid name, it is prefixed with `run`.
[[nodiscard]] std::string default_run_name(const std::string& path);

}  // namespace tidemill::configs
