// SPDX-License-Identifier: Apache-2.0
// The filters of sampling: which tokens top-k, top-p and min-p keep, and sampling from those.
//
// Finding the kept tokens does not sort the vocabulary. Weights grow with logits up to a few units
// in the last place, so the bits of a weight tell on which side of a threshold a token is, unless
// the weight is close to it:
//
//  1. The caller collects candidates: tokens with at least a certain weight, among which all kept
//     tokens must be. `least_weight_above` makes up for the last places.
//  2. The leading bits of a weight number its bucket. A histogram over the candidates finds the
//     bucket that contains the threshold. Tokens above it are kept, and tokens below it dropped.
//  3. The logits of the tokens in and next to the bucket are compared exactly.
//
// Top-p adds integers (weight_kernels.hpp), so its result does not depend on this procedure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engines/sampling/weight_kernels.hpp"

namespace tidemill::engines {

/// A token that may be kept.
struct Candidate {
  double logit = 0.0;  // after bias and penalties; above minus infinity
  float weight = 0.0F;
  std::int32_t token = 0;
};

/// Weights between two bounds, as the bits of floats. The bits of floats that are not negative are
/// in the order of their values.
struct WeightRange {
  std::uint32_t first = 0;
  std::uint32_t last = ~std::uint32_t{0};
};

/// Returns a bound slightly below `weight`: if some token has at least `weight`, every token with
/// an equal or larger logit has at least this bound. Weights grow with their logits only up to
/// rounding.
[[nodiscard]] float least_weight_above(float weight) noexcept;

/// Sums amounts of tokens by ranges of their weights.
class WeightHistogram {
public:
  /// Removes all amounts. Must be called before the first `add`.
  void clear();
  /// Adds an amount for a weight in [0, 1].
  void add(float weight, std::uint64_t amount) noexcept;
  /// Returns the range in which the sum over all weights, from the largest on, reaches `wanted`.
  /// Requires 0 < wanted <= the sum of all amounts.
  [[nodiscard]] WeightRange reaching(std::uint64_t wanted) const noexcept;

private:
  std::vector<std::uint64_t> sums_;  // by bucket
};

/// Returns how many units top-p must keep of `total` > 0 units: top_p * total in double precision,
/// rounded up, and at least 1. Requires `top_p` in (0, 1).
[[nodiscard]] std::uint64_t wanted_units(float top_p, std::uint64_t total) noexcept;

/// The candidates, which the filters remove from. Scratch memory stays between calls.
///
/// Requires candidates in token order.
class KeptTokens {
public:
  void clear() noexcept { tokens_.clear(); }
  void add(const Candidate& candidate) { tokens_.push_back(candidate); }
  [[nodiscard]] std::span<const Candidate> tokens() const noexcept { return tokens_; }
  /// Returns the sum of the `weight_units` of candidates with a weight of at least `least`.
  [[nodiscard]] std::uint64_t units(int bits, float least) const noexcept;

  /// Keeps the `k` largest logits and those that tie with the k-th. Requires k > 0.
  void keep_top_k(std::int32_t k);
  /// Keeps the fewest tokens that have at least `wanted` units, in descending order of the logits.
  /// Of equal logits, the one with the lowest token is dropped first. Requires that the candidates
  /// have at least `wanted` > 0 units.
  void keep_top_p(std::uint64_t wanted, int bits);
  /// Drops tokens whose weight is less than `min_p`.
  void keep_min_p(float min_p);

  /// Returns the sum of the weights, as `sample_by_weight` computes it from weights that are 0 for
  /// all other tokens, bit for bit.
  [[nodiscard]] double sum(std::size_t vocabulary);
  /// Samples as `sample_by_weight` does from such weights. Requires a weight above 0.
  [[nodiscard]] std::int32_t sample(std::size_t vocabulary, double uniform);

private:
  /// The candidates of one block of the vocabulary, and their sum in the order of
  /// `WeightKernels::sum`.
  struct Block {
    std::size_t first = 0;
    std::size_t end = 0;
    double sum = 0.0;
  };
  // The least logit that is kept, and how many tokens with that logit.
  struct Threshold {
    double logit = 0.0;
    std::uint64_t ties = 0;
  };
  [[nodiscard]] Block next_block(std::size_t first, std::size_t vocabulary) const;
  [[nodiscard]] Threshold find_threshold(std::uint64_t wanted, int bits);

  std::vector<Candidate> tokens_;
  std::vector<Candidate> undecided_;
  std::vector<Block> blocks_;  // those that have candidates
  WeightHistogram histogram_;
  std::vector<double> logits_;
};

}  // namespace tidemill::engines
