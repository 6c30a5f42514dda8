// SPDX-License-Identifier: Apache-2.0
// Unicode normalization form C.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// Returns `text` in normalization form C. Requires valid UTF-8.
///
/// Errors: `kInvalidArgument` names the byte offset of a run of more than 1,024 combining marks:
/// putting a run in order takes quadratic time.
/// Source: Unicode Standard Annex 15.
[[nodiscard]] Result<std::string> normalize_nfc(std::string_view text);

/// Says, for each byte of `normalized` and its end, which byte of `text` it came from.
///
/// Exact to one grapheme cluster where normalization changed something. Requires
/// `normalized == normalize_nfc(text)`.
[[nodiscard]] std::vector<std::size_t> align_nfc(std::string_view text,
                                                 std::string_view normalized);

}  // namespace tidemill::engines
