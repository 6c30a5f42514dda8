// SPDX-License-Identifier: Apache-2.0
// What an embedding program adds to the commands.
#pragma once

#include <functional>

#include "base/result.hpp"
#include "configs/run_config.hpp"
#include "launcher/command.hpp"
#include "workflows/extensions.hpp"

namespace tidemill::launcher {

/// The schema entries that a program adds to its YAML files, and the code behind them.
struct Additions {
  /// Adds to the schema of runs. May be empty.
  /// Errors: those of `Schema::add_kind` and `Schema::add_preset`.
  std::function<Status(Schema<configs::RunConfig>& schema)> schema;
  workflows::Extensions run;
};

/// Returns the schema of runs, including what the program added.
/// Errors: those of `Additions::schema`.
[[nodiscard]] Result<Schema<configs::RunConfig>> run_schema(const Additions& additions);
[[nodiscard]] Result<Schema<configs::RunConfig>> run_schema(const Session& session);

}  // namespace tidemill::launcher
