// SPDX-License-Identifier: Apache-2.0
// The operations in double precision on dense arrays. Tests compare backends with these functions,
// and compute gradients from them by differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/engines/ops/fixtures.hpp"

namespace tidemill::engines::ops_test {

/// A dense matrix of doubles.
struct Table {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;

  Table(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), values(static_cast<std::size_t>(r * c), 0.0) {}
  explicit Table(const Rows& from) : Table(from.rows(), from.cols()) {
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t j = 0; j < cols; ++j) {
        (*this)(t, j) = from.at(t, j);
      }
    }
  }
  double& operator()(std::int64_t t, std::int64_t j) {
    return values[static_cast<std::size_t>(t * cols + j)];
  }
  double operator()(std::int64_t t, std::int64_t j) const {
    return values[static_cast<std::size_t>(t * cols + j)];
  }
};

/// Returns x W^T + bias.
inline Table linear(const Table& x, const Table& w, const Table& bias) {
  Table y(x.rows, w.rows);
  for (std::int64_t t = 0; t < y.rows; ++t) {
    for (std::int64_t o = 0; o < y.cols; ++o) {
      y(t, o) = bias(0, o);
      for (std::int64_t i = 0; i < x.cols; ++i) {
        y(t, o) += x(t, i) * w(o, i);
      }
    }
  }
  return y;
}

inline Table rms_norm(const Table& x, const Table& gain, double eps) {
  Table out(x.rows, x.cols);
  for (std::int64_t t = 0; t < x.rows; ++t) {
    double mean = 0.0;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      mean += x(t, j) * x(t, j) / static_cast<double>(x.cols);
    }
    for (std::int64_t j = 0; j < x.cols; ++j) {
      out(t, j) = x(t, j) / std::sqrt(mean + eps) * gain(0, j);
    }
  }
  return out;
}

inline Table swiglu(const Table& gate, const Table& up) {
  Table out(gate.rows, gate.cols);
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = gate.values[i] / (1.0 + std::exp(-gate.values[i])) * up.values[i];
  }
  return out;
}

/// Rotates the pairs (i, i + C/2) of every head by the angles of the token's position.
inline Table rope(const Table& x, std::int64_t head_dim, std::span<const std::int32_t> positions,
                  const Table& cosine, const Table& sine) {
  Table out = x;
  const std::int64_t half = head_dim / 2;
  for (std::int64_t t = 0; t < x.rows; ++t) {
    const std::int64_t p = positions[static_cast<std::size_t>(t)];
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const std::int64_t i = j % head_dim % half;
      const bool lower = j % head_dim < half;
      const double partner = lower ? -x(t, j + half) : x(t, j - half);
      out(t, j) = x(t, j) * cosine(p, i) + partner * sine(p, i);
    }
  }
  return out;
}

struct AttentionResult {
  Table out;
  Table lse;
};

/// Returns `value` rounded as attention over keys and values of type `kv_dtype` rounds operands.
inline double operand(const AttentionShape& shape, double value) {
  return shape.kv_dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(static_cast<float>(value)))
                                        : value;
}

/// Computes attention of one whole sequence: q (T, H*C), k and v (T, K*C). Keys and values are
/// already rounded as the cache stores them.
inline AttentionResult attention(const AttentionShape& shape, const Table& q, const Table& k,
                                 const Table& v) {
  AttentionResult result{Table(q.rows, q.cols), Table(q.rows, shape.num_heads)};
  const std::int64_t c_count = shape.head_dim;
  for (std::int64_t t = 0; t < q.rows; ++t) {
    const std::int64_t first =
        shape.window == 0 ? 0 : std::max<std::int64_t>(0, t - shape.window + 1);
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const std::int64_t kv = h * shape.num_kv_heads / shape.num_heads;
      double sum = 0.0;
      double top = -1e300;
      std::vector<double> scores;
      for (std::int64_t j = first; j <= t; ++j) {
        double score = 0.0;
        for (std::int64_t c = 0; c < c_count; ++c) {
          score += operand(shape, q(t, h * c_count + c)) * k(j, kv * c_count + c);
        }
        scores.push_back(score * shape.scale);
        top = std::max(top, scores.back());
      }
      for (const double score : scores) {
        sum += std::exp(score - top);
      }
      for (std::int64_t j = first; j <= t; ++j) {
        const double weight = std::exp(scores[static_cast<std::size_t>(j - first)] - top);
        for (std::int64_t c = 0; c < c_count; ++c) {
          result.out(t, h * c_count + c) += operand(shape, weight) * v(j, kv * c_count + c) / sum;
        }
      }
      result.lse(t, h) = top + std::log(sum);
    }
  }
  return result;
}

struct TokenLoss {
  double logprob = 0.0;
  double entropy = 0.0;
};

/// Returns the log-probability of `target` and the entropy of softmax(row * inv_temperature).
inline TokenLoss token_loss(const Table& logits, std::int64_t row, std::int64_t target,
                            double inv_temperature) {
  double top = -1e300;
  for (std::int64_t v = 0; v < logits.cols; ++v) {
    top = std::max(top, logits(row, v) * inv_temperature);
  }
  double sum = 0.0;
  for (std::int64_t v = 0; v < logits.cols; ++v) {
    sum += std::exp(logits(row, v) * inv_temperature - top);
  }
  TokenLoss out;
  for (std::int64_t v = 0; v < logits.cols; ++v) {
    const double log_p = logits(row, v) * inv_temperature - top - std::log(sum);
    out.entropy -= std::exp(log_p) * log_p;
    if (v == target) {
      out.logprob = log_p;
    }
  }
  return out;
}

/// Returns the gradient of `loss` at `x` by central differences in double precision.
inline Table difference_gradient(const Table& x, const std::function<double(const Table&)>& loss) {
  constexpr double kStep = 1e-5;
  Table gradient(x.rows, x.cols);
  Table moved = x;
  for (std::size_t i = 0; i < x.values.size(); ++i) {
    moved.values[i] = x.values[i] + kStep;
    const double above = loss(moved);
    moved.values[i] = x.values[i] - kStep;
    const double below = loss(moved);
    moved.values[i] = x.values[i];
    gradient.values[i] = (above - below) / (2.0 * kStep);
  }
  return gradient;
}

/// Returns the sum of the products of the elements.
inline double dot(const Table& a, const Table& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    sum += a.values[i] * b.values[i];
  }
  return sum;
}

/// Fails unless every |actual - expected| <= tolerance * (1 + the largest |expected|).
inline void expect_table(const Rows& actual, const Table& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(actual.rows(), expected.rows) << what;
  ASSERT_EQ(actual.cols(), expected.cols) << what;
  double scale = 1.0;
  for (const double value : expected.values) {
    scale = std::max(scale, std::abs(value));
  }
  for (std::int64_t t = 0; t < expected.rows; ++t) {
    for (std::int64_t j = 0; j < expected.cols; ++j) {
      expect_close(actual.at(t, j), expected(t, j), tolerance, scale,
                   what + " at " + std::to_string(t) + ", " + std::to_string(j));
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
}

}  // namespace tidemill::engines::ops_test
