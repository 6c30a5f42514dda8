// SPDX-License-Identifier: Apache-2.0
// The parts in which files are sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// What a download reads at a time, in bytes.
inline constexpr std::size_t kDownloadPartBytes = std::size_t{128} << 10U;

/// Reads the part of `file` at `offset`: at most `kDownloadPartBytes`.
/// Errors: as `ReadableFile::read_at`. Threads: any; blocks on the disk.
[[nodiscard]] Result<std::string> read_file_part(const ReadableFile& file, std::uint64_t offset);

}  // namespace tidemill::actors
