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
/// Errors: `kInvalidArgument` for a run of more than 1,024 combining marks, because sorting a run
/// takes quadratic time. The message names the byte offset of the run.
/// Source: Unicode Standard Annex 15.
[[nodiscard]] Result<std::string> normalize_nfc(std::string_view text);

/// Returns, for each byte of `normalized` and for its end, the offset in `text` that it came from.
///
/// If normalization changed a grapheme cluster, all its bytes map to the beginning of the cluster.
/// Requires `normalized == normalize_nfc(text)`.
[[nodiscard]] std::vector<std::size_t> align_nfc(std::string_view text,
                                                 std::string_view normalized);

}  // namespace tidemill::engines
