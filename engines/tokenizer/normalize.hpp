// SPDX-License-Identifier: Apache-2.0
// Unicode normalization forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace tidemill::engines {

/// A normalization form: composed or decomposed, with or without compatibility mappings.
enum class NormalizationForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

/// The bytes [begin, end) of a text that a byte of a changed text came from. A text that can be
/// encoded is shorter than 4 GiB. A byte that was added came from an empty range.
struct ByteOrigin {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Returns `text` in a normalization form. Requires valid UTF-8.
///
/// Errors: `kInvalidArgument` for a run of more than 1,024 combining marks, because sorting a run
/// takes quadratic time. The message names the byte offset of the run.
/// Source: Unicode Standard Annex 15.
[[nodiscard]] Result<std::string> normalize_unicode(std::string_view text, NormalizationForm form);

/// Returns the bytes of `text` that each byte of `normalized` came from.
///
/// If normalization changed a grapheme cluster, all its bytes came from the whole cluster.
/// Clusters that normalization combined count as one.
/// Requires `normalized == normalize_unicode(text, form)`.
[[nodiscard]] std::vector<ByteOrigin> align_normalized(std::string_view text,
                                                       std::string_view normalized,
                                                       NormalizationForm form);

}  // namespace tidemill::engines
