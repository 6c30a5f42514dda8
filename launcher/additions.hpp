// SPDX-License-Identifier: Apache-2.0
// What a program that embeds Tidemill adds to its commands.
#pragma once

#include <functional>

#include "base/result.hpp"
#include "configs/run_config.hpp"
#include "launcher/command.hpp"
#include "workflows/extensions.hpp"

namespace tidemill::launcher {

/// Kinds and rows that a program brings: what its YAML files may say more, and what that means.
struct Additions {
  /// Adds to the schema of runs; empty: nothing. Errors: of `Schema::add_kind`, `add_preset`.
  std::function<Status(Schema<configs::RunConfig>& schema)> schema;
  workflows::Extensions run;
};

/// Returns the schema of runs with what the program added.
/// Errors: of `Additions::schema`.
[[nodiscard]] Result<Schema<configs::RunConfig>> run_schema(const Session& session);

}  // namespace tidemill::launcher
