// SPDX-License-Identifier: Apache-2.0
// The filters top-k, top-p and min-p: finds the tokens that they keep, and samples from those.
//
// The vocabulary is not sorted. The mass of a token is its probability before the division by the
// sum (mass_kernels.hpp). Except for rounding errors of a few units in the last place, a larger
// logit has a larger mass, so a mass that is not close to the threshold decides whether its token
// is kept:
//
//  1. The caller collects candidates: all tokens whose mass reaches a bound. The bound is low
//     enough, rounding included (`rounding_margin_below`), that it excludes no token to be kept.
//  2. The leading bits of a mass are the number of its bucket. A histogram of the candidates finds
//     the bucket of the threshold. Tokens in buckets above it are kept, tokens below are dropped.
//  3. The logits of the tokens in and next to that bucket are compared exactly.
//
// Top-p adds masses as integers (mass_kernels.hpp), so the order of additions does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engines/sampling/mass_histogram.hpp"
#include "engines/sampling/mass_kernels.hpp"

namespace tidemill::engines {

/// A token that may be kept.
struct Candidate {
  double logit = 0.0;  // after bias and penalties; above minus infinity
  float mass = 0.0F;
  std::int32_t token = 0;
};

/// Returns the fixed-point mass that top-p must keep of `total` > 0: top_p * total in double
/// precision, rounded up, and at least 1. Requires `top_p` in (0, 1).
[[nodiscard]] std::uint64_t top_p_target(float top_p, std::uint64_t total) noexcept;

/// Holds candidates; the filters remove those that are not kept. Reuses its scratch memory between
/// calls.
///
/// Requires that candidates are added in token order.
class KeptTokens {
public:
  void clear() noexcept { tokens_.clear(); }
  void add(const Candidate& candidate) { tokens_.push_back(candidate); }
  [[nodiscard]] std::span<const Candidate> tokens() const noexcept { return tokens_; }
  /// Returns the sum of `fixed_point_mass` over the candidates whose mass is at least `min`.
  [[nodiscard]] std::uint64_t fixed_point_sum(int bits, float min) const noexcept;

  /// Keeps the `k` largest logits and those that tie with the k-th. Requires k > 0.
  void keep_top_k(std::int32_t k);
  /// Keeps the fewest tokens that have at least the fixed-point mass `wanted`, in descending order
  /// of the logits. Of equal logits, the one with the lowest token is dropped first. Requires that
  /// the candidates have at least `wanted` > 0.
  void keep_top_p(std::uint64_t wanted, int bits);
  /// Drops tokens whose mass is less than `min_p`.
  void keep_min_p(float min_p);

  /// Returns the sum of the masses, as `sample_by_mass` computes it from masses that are 0 for
  /// all other tokens, bit for bit.
  [[nodiscard]] double sum(std::size_t vocabulary);
  /// Samples as `sample_by_mass` does from such masses. Requires a mass above 0.
  [[nodiscard]] std::int32_t sample(std::size_t vocabulary, double uniform);

private:
  /// The candidates of one block of the vocabulary, and their sum in the order of
  /// `MassKernels::sum`.
  struct Block {
    std::size_t first = 0;
    std::size_t end = 0;
    double sum = 0.0;
  };
  // The smallest logit that is kept, and how many tokens with that logit.
  struct Threshold {
    double logit = 0.0;
    std::uint64_t ties = 0;
  };
  [[nodiscard]] Block next_block(std::size_t first, std::size_t vocabulary) const;
  [[nodiscard]] Threshold find_threshold(std::uint64_t wanted, int bits);

  std::vector<Candidate> tokens_;
  std::vector<Candidate> undecided_;
  std::vector<Block> blocks_;  // those that have candidates
  MassHistogram histogram_;
  std::vector<double> logits_;
};

}  // namespace tidemill::engines
