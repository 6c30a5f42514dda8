// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/kept_rows.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::engines {

KeptRows::KeptRows(DType dtype) : dtype_(dtype) {
  TIDEMILL_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << dtype_name(dtype);
}

std::optional<Matrix> KeptRows::direct_target(std::int64_t rows, std::int64_t cols) {
  if (dtype_ != DType::kF32) {
    return std::nullopt;
  }
  rows_ = rows;
  cols_ = cols;
  return wide_.reshape(rows, cols);
}

void KeptRows::resize_rows(std::int64_t rows) {
  if (direct_target(rows, cols_).has_value()) {
    return;
  }
  rows_ = rows;
  const std::int64_t bytes = rows_ * bytes_per_row();
  if (bytes > narrow_.size()) {
    narrow_ = {};  // freed first: holding both would double peak memory
    narrow_ = AlignedBytes(bytes);
  }
}

std::byte* KeptRows::row_bytes() noexcept {
  return dtype_ == DType::kF32 ? wide_.row_bytes() : narrow_.data();
}

void KeptRows::keep(ConstMatrix rows, Ops& ops) {
  if (const std::optional<Matrix> to = direct_target(rows.rows, rows.cols)) {
    for (std::int64_t row = 0; row < rows_; ++row) {
      std::copy_n(rows.row(row), cols_, to->row(row));
    }
    return;
  }
  cols_ = rows.cols;
  resize_rows(rows.rows);
  ops.narrow(rows, narrow());
}

Matrix KeptRows::floats(std::int64_t first, std::int64_t count, OwnedMatrix& buffer, Ops& ops) {
  TIDEMILL_CHECK(first >= 0 && count >= 0 && first + count <= rows_)
      << first << " + " << count << " of " << rows_;
  if (dtype_ == DType::kF32) {
    return wide_.view().slice_rows(first, count);
  }
  const Matrix out = buffer.reshape(count, cols_);
  ops.widen(narrow().subspan(static_cast<std::size_t>(first * cols_),
                             static_cast<std::size_t>(count * cols_)),
            out);
  return out;
}

}  // namespace tidemill::engines
