// SPDX-License-Identifier: Apache-2.0
// Private to storage/dataset. The texts of rows in a temporary file.
//
// The rows of a Parquet file are compressed together, so reading one means decoding those around
// it. They are decoded once, in order, and their JSON is kept on disk, where shuffled epochs read
// it. The file has no name and disappears with the process; no `FileSystem` is involved, because
// nothing has to survive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::storage {

/// Threads: one call at a time.
class RowSpool {
public:
  /// Creates the file in `folder`, or else in TMPDIR, or else in /var/tmp, which is on a disk even
  /// if /tmp is in memory. Errors: as `DurableFile`, naming the folder.
  [[nodiscard]] static Result<RowSpool> create(std::string folder);

  /// Appends `text` and returns the offset of its first byte. Errors: as `create`.
  [[nodiscard]] Result<std::uint64_t> append(std::string_view text);
  /// Writes what `append` still holds in memory. Errors: as `create`.
  [[nodiscard]] Status flush();
  /// Fills `bytes` with what was appended at `offset` and flushed. Errors: as `create`.
  [[nodiscard]] Status read_at(std::uint64_t offset, std::span<std::byte> bytes) const;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return written_ + pending_.size(); }

private:
  explicit RowSpool(std::string folder) : folder_(std::move(folder)) {}

  [[nodiscard]] Status failure(int error, std::string_view action) const;

  std::string folder_;
  UniqueFd file_;
  std::uint64_t written_ = 0;
  std::string pending_;  // appended, but not written yet
};

}  // namespace tidemill::storage
