// SPDX-License-Identifier: Apache-2.0
// A matrix that owns its memory and keeps it when it shrinks, for buffers that every iteration
// reuses. A matrix with short-lived content may instead borrow memory that others do not need at
// the time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor/aligned_bytes.hpp"
#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

/// Holds a growable row-major float matrix without gaps between rows.
class OwnedMatrix {
public:
  /// Sets the shape and returns a view. The content is undefined. Memory grows but never shrinks.
  Matrix reshape(std::int64_t rows, std::int64_t cols) {
    rows_ = rows;
    cols_ = cols;
    const auto count = static_cast<std::size_t>(rows * cols);
    if (count <= lent_.size()) {
      own_ = {};
      memory_ = lent_;
    } else if (own_.data() == nullptr || count > memory_.size()) {
      own_ = {};  // freed first: holding both would double peak memory
      own_ = AlignedBytes(static_cast<std::int64_t>(count * sizeof(float)));
      memory_ = {own_.as<float>(), count};
    }
    return view();
  }
  /// Lends it `memory`. From the next `reshape` on, it uses that memory instead of its own whenever
  /// it is large enough. The memory is borrowed until a later call lends other memory or none.
  void lend(std::span<float> memory) noexcept { lent_ = memory; }

  /// Removes all rows except `rows`, which must be in ascending order.
  void keep_rows(std::span<const std::int64_t> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(view().row(rows[i]), cols_, view().row(static_cast<std::int64_t>(i)));
    }
    rows_ = static_cast<std::int64_t>(rows.size());
  }
  /// Undoes `keep_rows`: moves its rows back to the positions `rows` among `count` rows. The other
  /// rows are undefined. Requires that its memory holds `count` rows.
  void spread_rows(std::span<const std::int64_t> rows, std::int64_t count) {
    rows_ = count;
    for (std::size_t i = rows.size(); i-- > 0;) {
      std::copy_n(view().row(static_cast<std::int64_t>(i)), cols_, view().row(rows[i]));
    }
  }

  [[nodiscard]] Matrix view() noexcept { return {memory_.data(), rows_, cols_, cols_}; }
  [[nodiscard]] ConstMatrix view() const noexcept { return {memory_.data(), rows_, cols_, cols_}; }
  /// Returns all elements, row after row.
  [[nodiscard]] std::span<float> elements() noexcept {
    return memory_.first(static_cast<std::size_t>(rows_ * cols_));
  }
  [[nodiscard]] std::span<const float> elements() const noexcept {
    return memory_.first(static_cast<std::size_t>(rows_ * cols_));
  }
  /// Changes the number of rows and keeps their width; see `reshape`.
  void resize_rows(std::int64_t rows) { reshape(rows, cols_); }
  /// Returns the rows as bytes, `bytes_per_row()` each.
  [[nodiscard]] std::byte* row_bytes() noexcept {
    return reinterpret_cast<std::byte*>(memory_.data());
  }
  [[nodiscard]] std::int64_t bytes_per_row() const noexcept {
    return cols_ * std::int64_t{sizeof(float)};
  }
  /// Returns its whole memory, including what is beyond the last element.
  [[nodiscard]] std::span<float> memory() noexcept { return memory_; }
  /// Returns the same elements as rows of `cols` floats. Requires that `cols` divides their number.
  [[nodiscard]] Matrix as_rows_of(std::int64_t cols) noexcept {
    return {memory_.data(), rows_ * cols_ / cols, cols, cols};
  }
  /// Returns the size of the memory that it owns. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return own_.size(); }

private:
  AlignedBytes own_;
  std::span<float> memory_;  // in use: its own or `lent_`
  std::span<float> lent_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
