// SPDX-License-Identifier: Apache-2.0
// Borrowed views of row-major float matrices in host memory.
#pragma once

#include <cstdint>

namespace tidemill::engines::host {

/// A borrowed, read-only, row-major matrix. Consecutive rows start `stride` floats apart.
struct ConstMatrix {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  [[nodiscard]] const float* row(std::int64_t index) const noexcept {
    return data + index * stride;
  }
  /// Returns rows [first, first + count).
  [[nodiscard]] ConstMatrix slice_rows(std::int64_t first, std::int64_t count) const noexcept {
    return {data + first * stride, count, cols, stride};
  }
};

/// A borrowed, writable, row-major matrix.
struct Matrix {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  [[nodiscard]] float* row(std::int64_t index) const noexcept { return data + index * stride; }
  [[nodiscard]] Matrix slice_rows(std::int64_t first, std::int64_t count) const noexcept {
    return {data + first * stride, count, cols, stride};
  }
  // A writable view converts to a read-only one.
  operator ConstMatrix() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data, rows, cols, stride};
  }
};

}  // namespace tidemill::engines::host
