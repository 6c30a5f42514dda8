// SPDX-License-Identifier: Apache-2.0
// Decompresses bodies that clients compressed with zstd.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::actors::tinker {

/// Decompresses all frames of `bytes`. Takes memory for at most `max_bytes` of output, whatever
/// size the frames declare. Errors: `kCorruptData` if the bytes are not zstd frames, or if one is
/// incomplete; `kInvalidArgument` if the output exceeds `max_bytes`.
[[nodiscard]] Result<std::string> decompress_zstd(std::string_view bytes, std::size_t max_bytes);

}  // namespace tidemill::actors::tinker
