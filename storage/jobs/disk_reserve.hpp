// SPDX-License-Identifier: Apache-2.0
// Private to storage/jobs. Room on the disk for changes that must be written if it is full.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/files/unique_fd.hpp"

namespace tidemill::storage {

/// A file without contents that takes room on the disk, and gives it back in parts.
///
/// Threads: one call at a time.
class DiskReserve {
public:
  /// The size of the file, and of the part that `give_back` frees: more than a change of a job
  /// takes.
  static constexpr std::int64_t kBytes = std::int64_t{1} << 20U;
  static constexpr std::int64_t kPartBytes = std::int64_t{128} << 10U;

  /// Opens `path`, or makes it, and has it take its room. Without room, or if the file cannot be
  /// opened, the reserve is smaller or empty.
  explicit DiskReserve(const std::filesystem::path& path);

  /// Has the file take its whole room again, if the disk has it.
  void refill() noexcept;
  /// Frees a part of the room. Returns whether there was any.
  [[nodiscard]] bool give_back() noexcept;

private:
  UniqueFd file_;
  std::int64_t bytes_ = 0;  // that the file takes
};

}  // namespace tidemill::storage
