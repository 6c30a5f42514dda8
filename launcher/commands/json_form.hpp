// SPDX-License-Identifier: Apache-2.0
// Configuration trees as JSON, for `--json`.
#pragma once

#include <nlohmann/json.hpp>

#include "base/schema_node.hpp"

namespace tidemill::launcher {

/// Returns the tree as JSON; bare words that are numbers, switches or null become such.
[[nodiscard]] nlohmann::ordered_json to_json(const ConfigNode& node);

}  // namespace tidemill::launcher
