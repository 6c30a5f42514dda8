// SPDX-License-Identifier: Apache-2.0
// Device memory for intermediate results that live for one call.
#pragma once

#include <cstdint>
#include <utility>

#include "base/check.hpp"
#include "base/result.hpp"
#include "engines/ops/device_memory.hpp"

namespace tidemill::engines {

/// Reserved device memory of which callers take parts and give them back in the opposite order.
///
/// A part may be taken again while operations on its former content are pending, because operations
/// take effect in order.
/// Threads: as `DeviceMemory`.
class ScratchStack {
public:
  /// `memory` must outlive the stack.
  explicit ScratchStack(DeviceMemory& memory) noexcept : memory_(memory) {}

  /// Makes sure that parts of `bytes` bytes in total can be taken at a time. Requires that none is
  /// taken now. Never shrinks.
  /// Errors: those of `DeviceMemory::allocate`; nothing changes then.
  [[nodiscard]] Status reserve(std::int64_t bytes) {
    TIDEMILL_CHECK(used_ == 0) << used_;
    if (bytes > block_.size_bytes()) {
      TIDEMILL_ASSIGN_OR_RETURN(block_, memory_.allocate(bytes));
    }
    return {};
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return block_.size_bytes(); }

  /// Returns how much of the memory a part of `bytes` bytes takes.
  [[nodiscard]] static constexpr std::int64_t part_bytes(std::int64_t bytes) noexcept {
    return (bytes + kLine - 1) / kLine * kLine;
  }
  /// Takes a part, which starts on a cache line. Returns null if too little is left.
  [[nodiscard]] DeviceAddress take(std::int64_t bytes) noexcept {
    if (used_ + part_bytes(bytes) > block_.size_bytes()) {
      return {};
    }
    return block_.address().offset(std::exchange(used_, used_ + part_bytes(bytes)));
  }
  /// Gives back the part of `bytes` bytes that was taken last.
  void give_back(std::int64_t bytes) noexcept { used_ -= part_bytes(bytes); }

private:
  static constexpr std::int64_t kLine = 64;

  DeviceMemory& memory_;
  DeviceBlock block_;
  std::int64_t used_ = 0;
};

}  // namespace tidemill::engines
