// SPDX-License-Identifier: Apache-2.0
// How the losses of single tokens become the loss of a batch.
//
// Every aggregation gives all tokens of one row the same weight, so it is a number per row: the
// row's scale. A batch cut into micro-batches adds up to the whole if the denominators are those
// of the whole batch (`global_*`); ranks of a data-parallel group average to it if `dp_size` is
// their number.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The value of the loss (times `dp_size`): `L[i][t]` token loss, `n_i` valid tokens of row i.
enum class Aggregation : std::uint8_t {
  kTokenMean,            // sum L / tokens
  kTokenSum,             // sum L
  kSeqMeanTokenSum,      // sum_i sum_t L / seqs
  kSeqMeanTokenMean,     // sum_i (sum_t L / n_i) / seqs
  kSeqMeanTokenSumNorm,  // sum_i sum_t L / (seqs * horizon)
  kBatchFixedLength,     // sum L / (rows * horizon); fully masked rows count
};

struct AggregateOptions {
  Aggregation kind = Aggregation::kTokenMean;
  /// Replace the counts of this batch: valid tokens, rows with a valid token, all rows.
  std::optional<std::int64_t> global_tokens;
  std::optional<std::int64_t> global_seqs;
  std::optional<std::int64_t> global_rows;
  std::int64_t dp_size = 1;
  /// Replaces the length of the longest row. Units: tokens.
  std::optional<std::int64_t> horizon;
};

/// The counts an aggregation divides by.
struct BatchCounts {
  std::int64_t tokens = 0;   // valid tokens
  std::int64_t seqs = 0;     // rows with at least one valid token
  std::int64_t rows = 0;     // all rows
  std::int64_t longest = 0;  // positions of the longest row, masked ones included
};

/// Counts over `mask` (N), the batch's own or what rejection left of it.
[[nodiscard]] BatchCounts count_batch(const TokenRows& rows, std::span<const std::uint8_t> mask);

/// The weight of a row's tokens in the loss of a batch.
class Aggregator {
public:
  /// Resolves the denominators.
  /// Errors: `bad_option` (a count below 1 although there are valid tokens).
  [[nodiscard]] static Result<Aggregator> create(const AggregateOptions& options,
                                                 const BatchCounts& counts);

  /// Returns d loss / d L of the tokens of a row with `row_tokens` valid ones; 0 if it has none.
  [[nodiscard]] double row_scale(std::int64_t row_tokens) const noexcept;

private:
  Aggregator(double scale, bool by_row_mean) : scale_(scale), by_row_mean_(by_row_mean) {}

  double scale_;
  bool by_row_mean_;
};

template <class Real>
struct AggregateInputs {
  TokenRows rows;
  std::span<const Real> loss;  // (N)
};

/// Returns the aggregated loss and, unless `gradient` is empty, writes its gradient with respect
/// to the token losses (N). Without valid tokens both are exactly 0.
/// Source: the names follow verl's agg_loss; kBatchFixedLength is Dr. GRPO's, arXiv:2503.20783.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite`, `non_finite_result`.
template <class Real>
[[nodiscard]] Result<double> aggregate(const AggregateInputs<Real>& inputs,
                                       const AggregateOptions& options, std::span<Real> gradient);

}  // namespace tidemill::engines
