// SPDX-License-Identifier: Apache-2.0
// A histogram of masses, which finds where the sum of the largest masses reaches a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tidemill::engines {

/// Masses from `min` to `max`.
struct MassRange {
  float min = 0.0F;
  float max = std::numeric_limits<float>::infinity();
};

/// Returns a bound slightly below `mass` that allows for rounding: if a token has at least `mass`,
/// every token with an equal or larger logit has at least this bound.
[[nodiscard]] float rounding_margin_below(float mass) noexcept;
/// Returns a bound slightly above `mass`: if a token has at most `mass`, every token with an equal
/// or smaller logit has at most this bound.
[[nodiscard]] float rounding_margin_above(float mass) noexcept;

/// A histogram of tokens by their mass. Each token adds an amount to the bucket of its mass.
class MassHistogram {
public:
  /// Sets all buckets to 0. Must be called before the first `add`.
  void clear();
  /// Adds `amount` to the bucket of `mass`, which is in [0, 1].
  void add(float mass, std::uint64_t amount) noexcept;
  /// A bucket, and the sum of the buckets above it.
  struct Bucket {
    MassRange range;
    std::uint64_t above = 0;
  };
  /// Adds the buckets from the largest mass down and returns the one with which the sum reaches
  /// `wanted`, or the lowest one if the sum of all amounts is less. Requires wanted > 0.
  [[nodiscard]] Bucket bucket_reaching(std::uint64_t wanted) const noexcept;

private:
  std::vector<std::uint64_t> sums_;  // by bucket
};

}  // namespace tidemill::engines
