// SPDX-License-Identifier: Apache-2.0
// Reads files of lines that may be larger than memory and may be growing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "base/result.hpp"

namespace tidemill::storage {

/// Passes the whole lines in the first `bytes` bytes of `path` to `take`, in blocks of about a
/// megabyte. Text after the last newline is left out.
/// Errors: those of `ReadableFile`; `kCorruptData` for a line of more than 64 MiB; those of `take`.
[[nodiscard]] Status for_each_block(const std::filesystem::path& path, std::uint64_t bytes,
                                    const std::function<Status(std::string_view lines)>& take);

/// Passes each whole line in the first `bytes` bytes of `path` to `take`, without its newline.
/// Errors: as `for_each_block`.
[[nodiscard]] Status for_each_line(const std::filesystem::path& path, std::uint64_t bytes,
                                   const std::function<Status(std::string_view line)>& take);

}  // namespace tidemill::storage
