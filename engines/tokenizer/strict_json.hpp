// SPDX-License-Identifier: Apache-2.0
// Reads JSON text, checking it while it is read.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::engines {

/// Reads `text`, JSON of at most `max_depth` nested containers, without a key twice in one object.
/// Errors: `kCorruptData` names the byte offset, or the key that comes twice.
[[nodiscard]] Result<nlohmann::json> read_strict_json(std::string_view text, std::size_t max_depth);

}  // namespace tidemill::engines
