// SPDX-License-Identifier: Apache-2.0
// A matrix that owns device memory and keeps it when it shrinks, for buffers that every iteration
// reuses. A matrix with short-lived content may instead borrow memory that others do not need at
// the time.
#pragma once

#include <cstdint>

#include "base/check.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// Holds a growable row-major matrix without gaps between rows, in float32 or bfloat16.
class DeviceMatrix {
public:
  /// A matrix without memory, to be assigned to.
  DeviceMatrix() = default;
  /// `memory` must outlive the matrix. Requires kF32 or kBF16.
  explicit DeviceMatrix(DeviceMemory& memory, DType dtype = DType::kF32)
      : memory_(&memory), dtype_(dtype) {
    TIDEMILL_CHECK(dtype == DType::kF32 || dtype == DType::kBF16) << dtype_name(dtype);
  }

  /// Allocates memory for `rows` rows of `cols` elements, so that no later `reshape` to at most
  /// that size allocates. Requires that it holds no content. Errors: those of
  /// `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve(std::int64_t rows, std::int64_t cols,
                               BlockUse use = BlockUse::kWhole) {
    TIDEMILL_CHECK(memory_ != nullptr);
    TIDEMILL_ASSIGN_OR_RETURN(own_, memory_->allocate(rows * cols * element_bytes(dtype_), use));
    data_ = own_.address();
    return {};
  }
  /// Sets the shape and returns a view. The content is undefined. Memory that was neither reserved
  /// nor lent grows but never shrinks; running out of it then ends the program.
  Matrix reshape(std::int64_t rows, std::int64_t cols) {
    rows_ = rows;
    cols_ = cols;
    const std::int64_t bytes = rows * cols * element_bytes(dtype_);
    if (bytes <= lent_bytes_) {
      own_ = {};
      data_ = lent_;
    } else {
      if (bytes > own_.size_bytes()) {
        own_ = {};  // freed first: holding both would double peak memory
        TIDEMILL_CHECK(memory_ != nullptr);
        own_ = memory_->allocate(bytes).value();
      }
      data_ = own_.address();
    }
    return view();
  }
  /// Changes the number of rows and keeps their width; see `reshape`.
  Matrix resize_rows(std::int64_t rows) { return reshape(rows, cols_); }
  /// Lends it the memory of `bytes` bytes at `data`. From the next `reshape` on, it uses that
  /// memory instead of its own whenever it is large enough. The memory is borrowed until a later
  /// call lends other memory or none.
  void lend(DeviceAddress data, std::int64_t bytes) noexcept {
    lent_ = data;
    lent_bytes_ = bytes;
  }
  /// Lends it the memory of `other`.
  void lend(const DeviceMatrix& other) noexcept { lend(other.data_, other.memory_bytes()); }

  /// Copies `rows`, rounded or widened to its own type.
  void keep(ConstMatrix rows, Ops& ops) { ops.copy(rows, reshape(rows.rows, rows.cols)); }
  /// Returns rows [first, first + count) in float32: its own memory if it holds float32, otherwise
  /// a widened copy in `buffer`. Writing to the result may or may not change the matrix.
  [[nodiscard]] Matrix floats(std::int64_t first, std::int64_t count, DeviceMatrix& buffer,
                              Ops& ops) const {
    TIDEMILL_CHECK(first >= 0 && count >= 0 && first + count <= rows_)
        << first << " + " << count << " of " << rows_;
    const Matrix rows = view().slice_rows(first, count);
    if (dtype_ == DType::kF32) {
      return rows;
    }
    const Matrix out = buffer.reshape(count, cols_);
    ops.copy(rows, out);
    return out;
  }

  [[nodiscard]] Matrix view() const noexcept { return {data_, rows_, cols_, cols_, dtype_}; }
  /// Returns all elements, row after row. Requires kF32.
  [[nodiscard]] Vector elements() const noexcept { return view().elements(); }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t cols() const noexcept { return cols_; }
  [[nodiscard]] std::int64_t bytes_per_row() const noexcept {
    return cols_ * element_bytes(dtype_);
  }
  /// Returns the size of the memory that it uses, including what is beyond the last element. Units:
  /// bytes.
  [[nodiscard]] std::int64_t memory_bytes() const noexcept {
    return data_ == own_.address() ? own_.size_bytes() : lent_bytes_;
  }
  /// Returns the size of the memory that it owns. Units: bytes.
  [[nodiscard]] std::int64_t size_bytes() const noexcept { return own_.size_bytes(); }

private:
  DeviceMemory* memory_ = nullptr;
  DType dtype_ = DType::kF32;
  DeviceBlock own_;
  DeviceAddress data_;  // in use: its own memory or `lent_`
  DeviceAddress lent_;
  std::int64_t lent_bytes_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
};

}  // namespace tidemill::engines
