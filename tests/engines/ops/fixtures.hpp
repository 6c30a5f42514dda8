// SPDX-License-Identifier: Apache-2.0
// Helpers for all tests of operations: the backends under test, random operands, comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/host/host_ops.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines::ops_test {

// Most tests call operations on host memory.
using host::ConstMatrix;
using host::KvGradient;
using host::KvLayer;
using host::LowRankTerm;
using host::Matrix;
using host::Ops;
using host::RopeTables;

/// A backend under test.
struct Backend {
  std::string name;
  std::function<Result<std::unique_ptr<Ops>>(Workers&)> make;
  friend std::ostream& operator<<(std::ostream& out, const Backend& backend) {
    return out << backend.name;
  }
};

inline Backend cpu_backend(std::string name, CpuOptions options) {
  return {std::move(name),
          [options](Workers& workers) { return make_cpu_host_ops(workers, options); }};
}

/// Returns every backend that runs on this machine. All of them promise rules R1 to R3.
inline std::vector<Backend> backends() {
  std::vector<Backend> all = {
      {"reference",
       [](Workers&) -> Result<std::unique_ptr<Ops>> { return make_reference_host_ops(); }},
      cpu_backend("cpu_auto", {})};
  Workers one(1);
  for (const IsaLevel isa : {IsaLevel::kBaseline, IsaLevel::kAvx2, IsaLevel::kAvx512,
                             IsaLevel::kAvx512Bf16, IsaLevel::kAmx}) {
    if (make_cpu_host_ops(one, {isa}).ok()) {
      all.push_back(cpu_backend("cpu_" + std::string(isa_level_name(isa)), {isa}));
    }
  }
  return all;
}

/// A matrix that owns its elements. Its rows may have gaps between them, which are filled with NaN.
class Rows {
public:
  Rows() = default;
  Rows(std::int64_t rows, std::int64_t cols, std::int64_t gap = 0)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        data_(static_cast<std::size_t>(rows * stride_), std::numeric_limits<float>::quiet_NaN()) {
    for (std::int64_t t = 0; t < rows; ++t) {
      std::fill_n(view().row(t), cols, 0.0F);
    }
  }

  static Rows random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, float scale = 1.0F,
                     std::int64_t gap = 0) {
    Rows out(rows, cols, gap);
    RandomStream random(seed);
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t j = 0; j < cols; ++j) {
        out.at(t, j) = scale * static_cast<float>(random.normal());
      }
    }
    return out;
  }

  [[nodiscard]] Matrix view() { return {data_.data(), rows_, cols_, stride_}; }
  [[nodiscard]] ConstMatrix view() const { return {data_.data(), rows_, cols_, stride_}; }
  [[nodiscard]] float& at(std::int64_t t, std::int64_t j) { return view().row(t)[j]; }
  [[nodiscard]] float at(std::int64_t t, std::int64_t j) const { return view().row(t)[j]; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  /// Returns the first row, for matrices that represent vectors.
  [[nodiscard]] std::span<float> span() {
    return {data_.data(), static_cast<std::size_t>(rows_ > 0 ? cols_ : 0)};
  }
  [[nodiscard]] std::span<const float> span() const {
    return {data_.data(), static_cast<std::size_t>(rows_ > 0 ? cols_ : 0)};
  }
  /// Returns the elements of all rows. Requires rows without gaps.
  [[nodiscard]] std::span<const float> values() const { return data_; }
  /// Returns a copy of the rows `indices`, in that order.
  [[nodiscard]] Rows gather(std::span<const std::int64_t> indices, std::int64_t gap = 0) const {
    Rows out(std::ssize(indices), cols_, gap);
    for (std::int64_t t = 0; t < out.rows(); ++t) {
      std::copy_n(view().row(indices[static_cast<std::size_t>(t)]), cols_, out.view().row(t));
    }
    return out;
  }

private:
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t stride_ = 0;
  std::vector<float> data_;
};

/// Returns whether row `t` of `a` and row `u` of `b` have the same bits.
inline bool same_bits(const Rows& a, std::int64_t t, const Rows& b, std::int64_t u) {
  return a.cols() == b.cols() &&
         std::memcmp(a.view().row(t), b.view().row(u), static_cast<std::size_t>(a.cols()) * 4) == 0;
}

inline void expect_same_bits(const Rows& a, const Rows& b, const std::string& what) {
  ASSERT_EQ(a.rows(), b.rows()) << what;
  for (std::int64_t t = 0; t < a.rows(); ++t) {
    ASSERT_TRUE(same_bits(a, t, b, t)) << what << ", row " << t;
  }
}

inline WeightView f32_weight(const Rows& w) {
  return {w.view().data, DType::kF32, w.rows(), w.cols()};
}

/// Fails unless |actual - expected| <= tolerance * scale, where `scale` bounds the terms of the
/// sum.
inline void expect_close(double actual, double expected, double tolerance, double scale,
                         const std::string& what) {
  ASSERT_LE(std::abs(actual - expected), tolerance * scale)
      << what << ": " << actual << ", expected " << expected << " of scale " << scale;
}

/// Fixture of tests that run once per backend, with two workers.
class OpsTest : public ::testing::TestWithParam<Backend> {
protected:
  [[nodiscard]] std::unique_ptr<Ops> make(Workers& workers) const {
    return GetParam().make(workers).value();
  }
  [[nodiscard]] Ops& ops() { return *ops_; }

private:
  Workers workers_{2};
  std::unique_ptr<Ops> ops_ = make(workers_);
};

inline std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

}  // namespace tidemill::engines::ops_test
