// SPDX-License-Identifier: Apache-2.0
// Borrowed views of device memory: the operands of every operation.
//
// The memory of a device may not be accessible from the host. A view therefore holds an opaque
// address.
// Only the device's backend turns an address into a pointer (engines/ops/host/device_access.hpp);
// everything else reads and writes through `Ops::read` and `Ops::write`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor/dtype.hpp"

namespace tidemill::engines {

/// An address in the memory of a device, or null. Only the backend of that device may dereference
/// it.
class DeviceAddress {
public:
  constexpr DeviceAddress() = default;
  /// Returns whether this is the null address.
  [[nodiscard]] constexpr bool is_null() const noexcept { return value_ == 0; }
  /// Returns the address that is `bytes` bytes after this one. Requires an address that is not
  /// null.
  [[nodiscard]] constexpr DeviceAddress offset(std::int64_t bytes) const noexcept {
    DeviceAddress moved;
    moved.value_ = value_ + static_cast<std::uintptr_t>(bytes);
    return moved;
  }
  friend constexpr bool operator==(const DeviceAddress&, const DeviceAddress&) = default;

private:
  friend struct DeviceAccess;
  std::uintptr_t value_ = 0;
};

/// Returns the size of an element of a matrix or a vector. Units: bytes.
[[nodiscard]] inline std::int64_t element_bytes(DType dtype) noexcept {
  return static_cast<std::int64_t>(dtype_bytes(dtype));
}

/// A borrowed, read-only vector of consecutive floats.
struct ConstVector {
  DeviceAddress data;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
  /// Returns elements [first, first + count).
  [[nodiscard]] ConstVector slice(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * std::int64_t{sizeof(float)}), count};
  }
};

/// A borrowed, writable vector of consecutive floats.
struct Vector {
  DeviceAddress data;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
  /// Returns elements [first, first + count).
  [[nodiscard]] Vector slice(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * std::int64_t{sizeof(float)}), count};
  }
  /// Converts to a read-only view.
  operator ConstVector() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data, size};
  }
};

/// A borrowed, read-only, row-major matrix. Consecutive rows start `stride` elements apart.
struct ConstMatrix {
  DeviceAddress data;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  DType dtype = DType::kF32;  // kF32 or kBF16

  [[nodiscard]] bool is_null() const noexcept { return data.is_null(); }
  /// Returns rows [first, first + count).
  [[nodiscard]] ConstMatrix slice_rows(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * stride * element_bytes(dtype)), count, cols, stride, dtype};
  }
  /// Returns columns [first, first + count).
  [[nodiscard]] ConstMatrix slice_cols(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * element_bytes(dtype)), rows, count, stride, dtype};
  }
  /// Returns row `index`. Requires kF32.
  [[nodiscard]] ConstVector row(std::int64_t index) const noexcept {
    return {slice_rows(index, 1).data, cols};
  }
};

/// A borrowed, writable, row-major matrix.
struct Matrix {
  DeviceAddress data;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;
  DType dtype = DType::kF32;

  [[nodiscard]] bool is_null() const noexcept { return data.is_null(); }
  /// Returns rows [first, first + count).
  [[nodiscard]] Matrix slice_rows(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * stride * element_bytes(dtype)), count, cols, stride, dtype};
  }
  /// Returns columns [first, first + count).
  [[nodiscard]] Matrix slice_cols(std::int64_t first, std::int64_t count) const noexcept {
    return {data.offset(first * element_bytes(dtype)), rows, count, stride, dtype};
  }
  /// Returns row `index`. Requires kF32.
  [[nodiscard]] Vector row(std::int64_t index) const noexcept {
    return {slice_rows(index, 1).data, cols};
  }
  /// Returns the same elements as rows of `width` columns. Requires no gaps between rows, and that
  /// `width` divides the number of elements.
  [[nodiscard]] Matrix as_rows_of(std::int64_t width) const noexcept {
    return {data, rows * cols / width, width, width, dtype};
  }
  /// Returns all elements. Requires kF32 and no gaps between rows.
  [[nodiscard]] Vector elements() const noexcept { return {data, rows * cols}; }
  /// Converts to a read-only view.
  operator ConstMatrix() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data, rows, cols, stride, dtype};
  }
};

}  // namespace tidemill::engines
