// SPDX-License-Identifier: Apache-2.0
// Rows that outlive the forward pass, in the type they are kept in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/aligned_bytes.hpp"
#include "base/dtype.hpp"
#include "engines/ops/ops.hpp"
#include "engines/transformer/owned_matrix.hpp"

namespace tidemill::engines {

/// A growable matrix kept in float32, or rounded to bfloat16, which takes half of it.
class KeptRows {
public:
  /// Requires kF32 or kBF16.
  explicit KeptRows(DType dtype = DType::kF32);

  /// Copies `rows`, rounded to the type kept in.
  void keep(ConstMatrix rows, Ops& ops);
  /// Returns where `rows` rows of `cols` floats can be written instead of being copied, or nothing
  /// when they are kept rounded.
  [[nodiscard]] std::optional<Matrix> place(std::int64_t rows, std::int64_t cols);
  /// Returns whether `rows` were written to `place`.
  [[nodiscard]] bool holds(ConstMatrix rows) const noexcept {
    return rows.data != nullptr && rows.data == wide_.view().data;
  }
  /// Returns the rows [first, first + count) of what is kept as floats, in its own memory or, when
  /// that is narrower, in `buffer`. What the caller writes there may or may not change what is
  /// kept.
  [[nodiscard]] Matrix floats(std::int64_t first, std::int64_t count, OwnedMatrix& buffer,
                              Ops& ops);

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// Gives it `rows` rows as wide as before; their content is undefined.
  void resize_rows(std::int64_t rows);
  /// Returns the rows as they are kept, `bytes_per_row()` each.
  [[nodiscard]] std::byte* row_bytes() noexcept;
  [[nodiscard]] std::int64_t bytes_per_row() const noexcept {
    return cols_ * static_cast<std::int64_t>(dtype_bytes(dtype_));
  }
  [[nodiscard]] std::int64_t size_bytes() const noexcept {
    return wide_.size_bytes() + narrow_.size();
  }

private:
  // What of the narrow memory holds rows.
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
