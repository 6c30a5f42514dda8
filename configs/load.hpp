// SPDX-License-Identifier: Apache-2.0
// From a YAML file to checked options.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "configs/overrides.hpp"
#include "configs/run_config.hpp"

namespace tidemill::configs {

/// Reads the run in the file at `path`, with `overrides` put over it.
///
/// Errors: one line naming the place, "configs/x.yaml:12: rollout.group_sise: unknown key; did you
/// mean group_size?". Of several mistakes the first is told: what is no configuration at all, then
/// overrides that fit nowhere, then keys in the order of the file, then what is missing or does not
/// go together. `kNotFound` if there is no such file, else `kInvalidArgument`.
[[nodiscard]] Result<Resolved<RunConfig>> load_run_config(const Schema<RunConfig>& schema,
                                                          const std::string& path,
                                                          std::span<const Override> overrides = {});

/// Reads the run in `text`, which errors call `source`. Errors: as `load_run_config`.
[[nodiscard]] Result<Resolved<RunConfig>> read_run_config(const Schema<RunConfig>& schema,
                                                          std::string_view text,
                                                          const std::string& source,
                                                          std::span<const Override> overrides = {});

/// Returns `config` as YAML that reads back as the same run, every default spelled out.
[[nodiscard]] std::string resolved_text(const Schema<RunConfig>& schema, const RunConfig& config);

/// Returns the name that a run of the file at `path` has when its options give none: the stem, with
/// `-` for what a name cannot hold, or `run` when nothing of it is left.
[[nodiscard]] std::string default_run_name(const std::string& path);

}  // namespace tidemill::configs
