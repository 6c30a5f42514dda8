// SPDX-License-Identifier: Apache-2.0
// Shortens untrusted text for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tidemill {

/// Returns `text` on one line of valid UTF-8: control characters and invalid bytes become "?". A
/// text of more than `max_bytes` bytes is truncated there, after a whole character, and ends in
/// "...".
[[nodiscard]] std::string clipped(std::string_view text, std::size_t max_bytes = 60);

}  // namespace tidemill
