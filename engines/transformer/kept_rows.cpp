// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/kept_rows.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::engines {

KeptRows::KeptRows(DType dtype) : dtype_(dtype) {
  TIDEMILL_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << dtype_name(dtype);
}

void KeptRows::keep(ConstMatrix rows, Ops& ops) {
  rows_ = rows.rows;
  cols_ = rows.cols;
  if (dtype_ == DType::kF32) {
    const Matrix to = wide_.reshape(rows_, cols_);
    for (std::int64_t row = 0; row < rows_; ++row) {
      std::copy_n(rows.row(row), cols_, to.row(row));
    }
    return;
  }
  const std::int64_t bytes = rows_ * cols_ * std::int64_t{sizeof(std::uint16_t)};
  if (bytes > narrow_.size()) {
    narrow_ = {};  // both at once could be much
    narrow_ = AlignedBytes(bytes);
  }
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
