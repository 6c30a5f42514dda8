// SPDX-License-Identifier: Apache-2.0
// Private to storage/jobs. Disk space for changes that must succeed even if the disk is full.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/files/unique_fd.hpp"

namespace tidemill::storage {

/// A file that reserves disk space and frees it in parts. Its contents have no meaning.
///
/// Threads: one call at a time.
class DiskReserve {
public:
  /// The size of the file, and of the part that `give_back` frees. A part is larger than a change
  /// of a job.
  static constexpr std::int64_t kBytes = std::int64_t{1} << 20U;
  static constexpr std::int64_t kPartBytes = std::int64_t{128} << 10U;

  /// Opens or creates `path`, and allocates its space. If the disk is full or the file cannot be
  /// opened, the reserve is smaller or empty.
  explicit DiskReserve(const std::filesystem::path& path);

  /// Allocates the whole space again, if the disk has it.
  void refill() noexcept;
  /// Frees a part of the space. Returns false if nothing was freed.
  [[nodiscard]] bool give_back() noexcept;

private:
  UniqueFd file_;
  std::int64_t bytes_ = 0;  // allocated
};

}  // namespace tidemill::storage
