// SPDX-License-Identifier: Apache-2.0
// How the losses of single tokens are aggregated into the loss of a batch.
//
// Every aggregation gives all tokens of a row the same scale, so it reduces to one number per row.
// If the denominators are those of the whole batch (`global_*`), the losses of its micro-batches
// add up to the loss of the batch. If `dp_size` is the number of data-parallel ranks, the losses of
// the ranks average to it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// How the loss is computed from the token losses `L[i][t]`, up to the factor `dp_size`. `n_i` is
/// the number of valid tokens of row i. If the tokens have weights, `L` includes them, and `tokens`
/// and `n_i` may be the sums of the weights instead (`WeightDenominator::kWeights`).
enum class Aggregation : std::uint8_t {
  kTokenMean,            // sum L / tokens
  kTokenSum,             // sum L
  kSeqMeanTokenSum,      // sum_i sum_t L / seqs
  kSeqMeanTokenMean,     // sum_i (sum_t L / n_i) / seqs
  kSeqMeanTokenSumNorm,  // sum_i sum_t L / (seqs * horizon)
  kBatchFixedLength,     // sum L / (rows * horizon); fully masked rows count
};

/// Configures an aggregation.
struct AggregateOptions {
  Aggregation kind = Aggregation::kTokenMean;
  /// If set, these replace the counts of this batch: valid tokens, rows with a valid token, rows.
  std::optional<std::int64_t> global_tokens;
  std::optional<std::int64_t> global_seqs;
  std::optional<std::int64_t> global_rows;
  /// If set, replaces the number of valid tokens by the sum of their weights.
  std::optional<double> global_weight;
  std::int64_t dp_size = 1;
  /// If set, replaces the length of the longest row. Units: tokens.
  std::optional<std::int64_t> horizon;
};

/// The counts that an aggregation divides by.
struct BatchCounts {
  std::int64_t tokens = 0;   // valid tokens
  std::int64_t seqs = 0;     // rows with at least one valid token
  std::int64_t rows = 0;     // all rows
  std::int64_t longest = 0;  // positions in the longest row, including masked ones
  /// The sum of the weights of the valid tokens; unset if all weights are 1.
  std::optional<double> weight = {};
};

/// Counts the rows and the tokens set in `mask` (N): the mask of the batch, or what rejection left
/// of it.
[[nodiscard]] BatchCounts count_batch(const TokenRows& rows, std::span<const std::uint8_t> mask);

/// Computes the weight of a row's tokens in the loss of a batch.
class Aggregator {
public:
  /// Resolves the denominators.
  /// Errors: `bad_option` (`dp_size` below 1, or a count below 1 although the batch has valid
  /// tokens).
  [[nodiscard]] static Result<Aggregator> create(const AggregateOptions& options,
                                                 const BatchCounts& counts);

  /// Returns d loss / d L for the tokens of a row with `row_tokens` valid tokens, or 0 for a row
  /// without any.
  [[nodiscard]] double row_scale(std::int64_t row_tokens) const noexcept;
  /// The same for a row whose valid tokens have weights that add up to `row_weight`. The caller
  /// multiplies the scale by the weight of each token.
  [[nodiscard]] double weighted_row_scale(double row_weight) const noexcept;

private:
  Aggregator(double scale, bool by_row_mean) : scale_(scale), by_row_mean_(by_row_mean) {}

  double scale_;
  bool by_row_mean_;
};

/// The token losses that `aggregate` reads.
template <class Real>
struct AggregateInputs {
  TokenRows rows;
  std::span<const Real> loss;  // (N)
};

/// Returns the aggregated loss. Unless `gradient` is empty, also writes the gradient of the loss
/// with respect to the token losses (N). Both are exactly 0 if no token is valid.
/// Source: the names follow verl's agg_loss; kBatchFixedLength is Dr. GRPO's, arXiv:2503.20783.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite`, `non_finite_result`.
template <class Real>
[[nodiscard]] Result<double> aggregate(const AggregateInputs<Real>& inputs,
                                       const AggregateOptions& options, std::span<Real> gradient);

}  // namespace tidemill::engines
