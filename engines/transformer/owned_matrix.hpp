// SPDX-License-Identifier: Apache-2.0
// A matrix that owns its memory and keeps it when it shrinks, for buffers reused every iteration.
// One whose content is short-lived may be lent the memory of others that hold nothing meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_bytes.hpp"
#include "engines/ops/matrix.hpp"

namespace tidemill::engines {

/// A growable row-major float matrix without gaps between rows.
class OwnedMatrix {
public:
  /// Gives it this shape and returns it. The content is undefined; memory grows but never shrinks.
  Matrix reshape(std::int64_t rows, std::int64_t cols) {
    rows_ = rows;
    cols_ = cols;
    const auto count = static_cast<std::size_t>(rows * cols);
    if (count <= lent_.size()) {
      own_ = {};
      memory_ = lent_;
    } else if (own_.data() == nullptr || count > memory_.size()) {
      // Let go of the old memory first: the content is not kept, and both at once could be much.
      own_ = {};
      own_ = AlignedBytes(static_cast<std::int64_t>(count * sizeof(float)));
      memory_ = {own_.as<float>(), count};
    }
    return view();
  }
  /// Lends it memory, which it takes in place of its own whenever that is enough, from the next
  /// `reshape` on. Borrowed until others are lent, or none.
  void lend(std::span<float> memory) noexcept { lent_ = memory; }

  /// Keeps those of its rows alone, which must ascend.
  void keep_rows(std::span<const std::int64_t> rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(view().row(rows[i]), cols_, view().row(static_cast<std::int64_t>(i)));
    }
    rows_ = static_cast<std::int64_t>(rows.size());
  }
  /// The opposite: puts its rows where they were among `count` rows; the others are undefined.
  /// Requires room for them.
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
  /// Gives it `rows` rows as wide as before; see `reshape`.
  void resize_rows(std::int64_t rows) { reshape(rows, cols_); }
  /// Returns the rows as bytes, `bytes_per_row()` each.
  [[nodiscard]] std::byte* row_bytes() noexcept {
    return reinterpret_cast<std::byte*>(memory_.data());
  }
  [[nodiscard]] std::int64_t bytes_per_row() const noexcept {
    return cols_ * std::int64_t{sizeof(float)};
  }
  /// Returns all its memory, what no element lies in included.
  [[nodiscard]] std::span<float> memory() noexcept { return memory_; }
  /// Returns the same elements as rows of `cols` floats. Requires `cols` to divide their number.
  [[nodiscard]] Matrix as_rows_of(std::int64_t cols) noexcept {
    return {memory_.data(), rows_ * cols_ / cols, cols, cols};
  }
  /// Returns the bytes of its own memory.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return own_.size(); }

private:
  AlignedBytes own_;
  std::span<float> memory_;  // its own, or lent
  std::span<float> lent_;    // may be taken
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
