// SPDX-License-Identifier: Apache-2.0
// Values in device memory for tests: written once, read back as vectors.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engines/ops/ops.hpp"

namespace tidemill::engines {

/// A matrix or a vector in device memory that holds the given values.
class DeviceValues {
public:
  DeviceValues(Ops& ops, std::int64_t rows, std::int64_t cols)
      : ops_(&ops),
        block_(ops.memory().allocate(rows * cols * 4).value()),
        rows_(rows),
        cols_(cols) {
    ops.fill(0.0F, matrix());
  }
  DeviceValues(Ops& ops, std::int64_t rows, std::int64_t cols, std::span<const float> values)
      : DeviceValues(ops, rows, cols) {
    ops.write(values, matrix());
  }
  /// Holds one row.
  DeviceValues(Ops& ops, const std::vector<float>& values)
      : DeviceValues(ops, 1, std::ssize(values), values) {}

  [[nodiscard]] Matrix matrix() const { return {block_.address(), rows_, cols_, cols_}; }
  [[nodiscard]] Vector vector() const { return matrix().elements(); }
  /// Returns the values, row after row.
  [[nodiscard]] std::vector<float> read() const {
    std::vector<float> values(static_cast<std::size_t>(rows_ * cols_));
    EXPECT_TRUE(ops_->read(matrix(), values).ok());
    return values;
  }

private:
  Ops* ops_;
  DeviceBlock block_;
  std::int64_t rows_;
  std::int64_t cols_;
};

/// Returns the values of a matrix in device memory, row after row.
inline std::vector<float> read_values(Ops& ops, ConstMatrix matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  EXPECT_TRUE(ops.read(matrix, values).ok());
  return values;
}

/// Returns the values of a vector in device memory.
inline std::vector<float> read_values(Ops& ops, ConstVector vector) {
  return read_values(ops, ConstMatrix{vector.data, 1, vector.size, vector.size});
}

/// Lists in a prepared pass.
class DeviceLists {
public:
  explicit DeviceLists(Ops& ops) : ops_(&ops) {}
  /// Return a list. Each call invalidates the lists of the calls before it.
  IndexList indices(std::span<const std::int32_t> values) {
    PassContents contents;
    const PassRange range = contents.add_indices(values);
    pass_ = ops_->prepare_pass(std::move(contents), std::move(pass_)).value();
    return pass_->indices(range);
  }
  SegmentList segments(std::span<const AttentionSegment> values) {
    PassContents contents;
    const PassRange range = contents.add_segments(values);
    pass_ = ops_->prepare_pass(std::move(contents), std::move(pass_)).value();
    return pass_->segments(range);
  }

private:
  Ops* ops_;
  std::unique_ptr<PreparedPass> pass_;
};

}  // namespace tidemill::engines
