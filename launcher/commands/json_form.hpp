// SPDX-License-Identifier: Apache-2.0
// Converts configuration trees to JSON, for `--json`.
#pragma once

#include <nlohmann/json.hpp>

#include "base/schema/node.hpp"

namespace tidemill::launcher {

/// Returns the tree as JSON. Unquoted scalars that are valid JSON numbers, `true`, `false` or
/// `null` are converted to these; all others become strings.
[[nodiscard]] nlohmann::ordered_json to_json(const ConfigNode& node);

}  // namespace tidemill::launcher
