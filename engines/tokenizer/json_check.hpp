// SPDX-License-Identifier: Apache-2.0
// Checks JSON text before anything is built from it.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.hpp"

namespace tidemill::engines {

/// Checks that `text` is JSON of at most `max_depth` nested containers, without a key twice in one
/// object.
/// Errors: `kCorruptData` names the byte offset, or the key that comes twice.
[[nodiscard]] Status check_json(std::string_view text, std::size_t max_depth);

}  // namespace tidemill::engines
