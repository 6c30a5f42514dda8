// SPDX-License-Identifier: Apache-2.0
// Lets only one process at a time use a run directory.
#pragma once

#include <filesystem>

#include "base/result.hpp"

namespace tidemill::storage {

/// Holds a run directory for this process until the object is destroyed. If the process ends in any
/// way, the kernel releases the lock. The locked file, `lock`, is never removed.
class RunLock {
public:
  /// Takes the lock of `run_directory`, which must exist. Waits for at most about 250 ms.
  /// Errors: `kUnavailable` naming the process that holds it; as `ReadableFile::open`.
  [[nodiscard]] static Result<RunLock> acquire(const std::filesystem::path& run_directory);

  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

private:
  explicit RunLock(int descriptor) noexcept : descriptor_(descriptor) {}

  int descriptor_ = -1;
};

/// Returns whether a process holds the lock of `run_directory`. To find out, it takes a shared lock
/// for a moment. A concurrent `acquire` waits for that moment.
/// Errors: as `ReadableFile::open`.
[[nodiscard]] Result<bool> is_run_locked(const std::filesystem::path& run_directory);

}  // namespace tidemill::storage
