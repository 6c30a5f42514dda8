// SPDX-License-Identifier: Apache-2.0
// Prints what `--dry-run` of `run` and `serve` shows: the resolved configuration and the memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"
#include "configs/run_config.hpp"
#include "launcher/command.hpp"
#include "workflows/memory_plan.hpp"

namespace tidemill::launcher {

/// What `--dry-run` says about memory, in both forms.
struct MemoryLine {
  std::string title;  // before `text`, such as "memory, at most"
  std::string text;
  std::string member;  // of the object, such as "memory_bytes"
  nlohmann::ordered_json value;
};

/// Returns the line about a plan, with all its parts.
[[nodiscard]] MemoryLine memory_line(std::string title, std::string member,
                                     const workflows::MemoryPlan& plan);

/// Prints the configuration, and the lines about memory as comments, so that the output is a valid
/// configuration file. With `--json`, prints one object that also has the warnings.
void print_dry_run(const Schema<configs::RunConfig>& schema,
                   const Resolved<configs::RunConfig>& resolved,
                   const std::vector<MemoryLine>& lines, Session& session);

}  // namespace tidemill::launcher
