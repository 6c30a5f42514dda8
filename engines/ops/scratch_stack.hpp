// SPDX-License-Identifier: Apache-2.0
// Device memory for intermediate results that live for one call.
#pragma once

#include <cstdint>
#include <utility>

#include "base/check.hpp"
#include "base/result.hpp"
#include "engines/ops/device_memory.hpp"

namespace tidemill::engines {

/// A stack of blocks in reserved device memory: callers free blocks in the reverse order of their
/// allocation.
///
/// Memory may be allocated again while operations on its previous content are pending, because
/// operations take effect in order.
/// Threads: as `DeviceMemory`.
class ScratchStack {
public:
  /// `memory` must outlive the stack.
  explicit ScratchStack(DeviceMemory& memory) noexcept : memory_(memory) {}

  /// Reserves at least `bytes` bytes in total. Never shrinks. Requires that nothing is allocated.
  /// Errors: those of `DeviceMemory::allocate`; after an error nothing has changed.
  [[nodiscard]] Status reserve(std::int64_t bytes) {
    TIDEMILL_CHECK(used_ == 0) << used_;
    if (bytes > block_.size_bytes()) {
      TIDEMILL_ASSIGN_OR_RETURN(block_, memory_.allocate(bytes));
    }
    return {};
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return block_.size_bytes(); }

  /// Returns how much of the stack `bytes` bytes occupy, including padding.
  [[nodiscard]] static constexpr std::int64_t padded_bytes(std::int64_t bytes) noexcept {
    return (bytes + kLine - 1) / kLine * kLine;
  }
  /// Allocates `bytes` bytes that start on a cache line. Returns null if the rest is too small.
  [[nodiscard]] DeviceAddress push(std::int64_t bytes) noexcept {
    if (used_ + padded_bytes(bytes) > block_.size_bytes()) {
      return {};
    }
    return block_.address().offset(std::exchange(used_, used_ + padded_bytes(bytes)));
  }
  /// Frees the `bytes` bytes that were allocated last.
  void pop(std::int64_t bytes) noexcept { used_ -= padded_bytes(bytes); }

private:
  static constexpr std::int64_t kLine = 64;

  DeviceMemory& memory_;
  DeviceBlock block_;
  std::int64_t used_ = 0;
};

}  // namespace tidemill::engines
