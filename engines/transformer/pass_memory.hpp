// SPDX-License-Identifier: Apache-2.0
// Memory that is reserved once. Each pass divides it among its matrices.
//
// The sizes of the matrices depend on the number of rows of the pass. A pass lays its matrices out
// from the start of the memory, so a pass over few rows touches little of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.hpp"
#include "engines/ops/device_memory.hpp"
#include "engines/transformer/device_matrix.hpp"

namespace tidemill::engines {

/// Device memory of size 0, for objects that only compute how much they would reserve.
class NoDeviceMemory final : public DeviceMemory {
public:
  [[nodiscard]] Result<DeviceBlock> allocate(std::int64_t bytes, BlockUse /*use*/) override {
    return Status(Errc::kResourceExhausted,
                  "device memory of size 0: cannot allocate " + std::to_string(bytes) + " bytes");
  }

private:
  void free(DeviceAddress /*address*/, std::int64_t /*bytes*/) noexcept override {}
};

/// One block of device memory, lent to matrices in parts.
///
/// Until memory is reserved, it lends nothing and only counts, so that the same code divides the
/// memory and computes how much is needed. Matrices without lent memory allocate their own.
/// Threads: one call at a time.
class PassMemory {
public:
  /// `memory` must outlive the object.
  explicit PassMemory(DeviceMemory& memory) noexcept : memory_(&memory) {}

  /// Frees the reserved memory, which no matrix may still use, and reserves `bytes` bytes instead.
  /// Does not change `position()`: call `rewind` before the next `lend`.
  /// Errors: those of `DeviceMemory::allocate`; after an error nothing is reserved.
  [[nodiscard]] Status reserve(std::int64_t bytes) {
    block_ = {};
    TIDEMILL_ASSIGN_OR_RETURN(block_, memory_->allocate(bytes));
    return {};
  }

  /// Lends the next part to `matrix`: room for `rows` rows of `cols` elements of its type. If too
  /// little is left, `matrix` borrows nothing. Returns whether it borrows what it needs.
  bool lend(DeviceMatrix& matrix, std::int64_t rows, std::int64_t cols) noexcept {
    const std::int64_t bytes = rows * cols * element_bytes(matrix.dtype());
    const std::int64_t first = std::exchange(next_, next_ + (bytes + kLine - 1) / kLine * kLine);
    const bool fits = next_ <= block_.size_bytes();
    matrix.lend(fits && bytes > 0 ? block_.address().offset(first) : DeviceAddress(),
                fits ? bytes : 0);
    return fits;
  }

  /// Returns the number of bytes that were lent or counted since the start.
  [[nodiscard]] std::int64_t position() const noexcept { return next_; }
  /// Goes back to an earlier position. Matrices that were lent memory after it must not be used
  /// until they are lent memory again.
  void rewind(std::int64_t position = 0) noexcept { next_ = position; }
  /// Returns the size of the reserved memory. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return block_.size_bytes(); }

private:
  static constexpr std::int64_t kLine = 64;  // parts start on cache lines

  DeviceMemory* memory_;
  DeviceBlock block_;
  std::int64_t next_ = 0;
};

}  // namespace tidemill::engines
