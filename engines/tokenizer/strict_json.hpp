// SPDX-License-Identifier: Apache-2.0
// Parses JSON with a limit on nesting, and refuses duplicate keys.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::engines {

/// The number of containers that may be nested in a tokenizer's files.
inline constexpr std::size_t kMaxTokenizerDepth = 32;

/// Parses `text`. At most `max_depth` containers may be nested.
/// Errors: `kCorruptData` for invalid JSON (names the byte offset), for a key that appears twice in
/// one object (names the key), and for deeper nesting.
[[nodiscard]] Result<nlohmann::json> read_strict_json(std::string_view text, std::size_t max_depth);

}  // namespace tidemill::engines
