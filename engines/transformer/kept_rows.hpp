// SPDX-License-Identifier: Apache-2.0
// Rows that are kept from the forward pass to the backward pass, in float32 or bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/tensor/aligned_bytes.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/owned_matrix.hpp"

namespace tidemill::engines {

/// Holds a growable matrix in float32, or rounded to bfloat16 to halve the memory.
class KeptRows {
public:
  /// Requires kF32 or kBF16.
  explicit KeptRows(DType dtype = DType::kF32);

  /// Copies `rows`, rounded to the element type.
  void keep(ConstMatrix rows, Ops& ops);
  /// Resizes to `rows` rows of `cols` floats and returns the memory, so that the caller can write
  /// them directly. Returns nullopt, changing nothing, if the element type is not float32.
  [[nodiscard]] std::optional<Matrix> direct_target(std::int64_t rows, std::int64_t cols);
  /// Returns whether `rows` were written to `direct_target`.
  [[nodiscard]] bool holds(ConstMatrix rows) const noexcept {
    return rows.data != nullptr && rows.data == wide_.view().data;
  }
  /// Returns the rows [first, first + count) as floats: its own memory if the element type is
  /// float32, otherwise a widened copy in `buffer`. Writing to the result may or may not change the
  /// kept rows.
  [[nodiscard]] Matrix floats(std::int64_t first, std::int64_t count, OwnedMatrix& buffer,
                              Ops& ops);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// Changes the number of rows and keeps their width. The content is undefined.
  void resize_rows(std::int64_t rows);
  /// Returns the stored bytes of the rows, `bytes_per_row()` each.
  [[nodiscard]] std::byte* row_bytes() noexcept;
  [[nodiscard]] std::int64_t bytes_per_row() const noexcept {
    return cols_ * static_cast<std::int64_t>(dtype_bytes(dtype_));
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return wide_.size_bytes() + narrow_.size();
  }

private:
  // Returns the part of the narrow memory that holds rows.
  [[nodiscard]] std::span<std::uint16_t> narrow() const noexcept {
    return {narrow_.as<std::uint16_t>(), static_cast<std::size_t>(rows_ * cols_)};
  }

  DType dtype_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  OwnedMatrix wide_;
  AlignedBytes narrow_;
};

}  // namespace tidemill::engines
