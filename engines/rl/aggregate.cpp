// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/aggregate.hpp"

#include <algorithm>
#include <cmath>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {

BatchCounts count_batch(const TokenRows& rows, std::span<const std::uint8_t> mask) {
  BatchCounts counts;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const std::int64_t valid = count_valid(rows, mask, row);
    counts.tokens += valid;
    counts.seqs += valid > 0 ? 1 : 0;
    counts.rows += 1;
    counts.longest =
        std::max(counts.longest, static_cast<std::int64_t>(rows.end(row) - rows.begin(row)));
  }
  return counts;
}

Result<Aggregator> Aggregator::create(const AggregateOptions& options, const BatchCounts& counts) {
  if (options.dp_size < 1) {
    return refuse(kBadOption, "dp_size must be at least 1");
  }
  const std::int64_t tokens = options.global_tokens.value_or(counts.tokens);
  const std::int64_t seqs = options.global_seqs.value_or(counts.seqs);
  const std::int64_t rows = options.global_rows.value_or(counts.rows);
  const std::int64_t horizon = options.horizon.value_or(counts.longest);
  if (counts.tokens > 0 && std::min({tokens, seqs, rows, horizon}) < 1) {
    return refuse(kBadOption,
                  "global_tokens, global_seqs, global_rows and horizon must be at least 1");
  }
  if (counts.tokens == 0) {
    return Aggregator(0.0, false);
  }
  double denominator = 1.0;
  switch (options.kind) {
    case Aggregation::kTokenMean:
      denominator = options.global_weight.value_or(static_cast<double>(tokens));
      if (denominator == 0.0) {  // all weights are 0, and so is every token loss
        return Aggregator(0.0, false);
      }
      break;
    case Aggregation::kTokenSum: break;
    case Aggregation::kSeqMeanTokenSum:
    case Aggregation::kSeqMeanTokenMean: denominator = static_cast<double>(seqs); break;
    case Aggregation::kSeqMeanTokenSumNorm:
      denominator = static_cast<double>(seqs) * static_cast<double>(horizon);
      break;
    case Aggregation::kBatchFixedLength:
      denominator = static_cast<double>(rows) * static_cast<double>(horizon);
      break;
  }
  return Aggregator(static_cast<double>(options.dp_size) / denominator,
                    options.kind == Aggregation::kSeqMeanTokenMean);
}

double Aggregator::row_scale(std::int64_t row_tokens) const noexcept {
  return weighted_row_scale(static_cast<double>(row_tokens));
}

double Aggregator::weighted_row_scale(double row_weight) const noexcept {
  if (row_weight == 0.0) {
    return 0.0;
  }
  return by_row_mean_ ? scale_ / row_weight : scale_;
}

template <class Real>
Result<double> aggregate(const AggregateInputs<Real>& inputs, const AggregateOptions& options,
                         std::span<Real> gradient) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "loss", inputs.loss));
  if (!gradient.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_output_size("gradient", gradient.size(), rows.num_positions()));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const Aggregator aggregator,
                            Aggregator::create(options, count_batch(rows, rows.mask)));
  double loss = 0.0;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const double scale = aggregator.row_scale(count_valid(rows, rows.mask, row));
    double sum = 0.0;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      sum += rows.mask[t] != 0 ? static_cast<double>(inputs.loss[t]) : 0.0;
      if (!gradient.empty()) {
        gradient[t] = rows.mask[t] != 0 ? static_cast<Real>(scale) : Real{0};
      }
    }
    loss += scale * sum;
  }
  if (!std::isfinite(static_cast<Real>(loss))) {
    return refuse(kNonFiniteResult, "the loss overflows");
  }
  return loss;
}

template Result<double> aggregate(const AggregateInputs<float>&, const AggregateOptions&,
                                  std::span<float>);
template Result<double> aggregate(const AggregateInputs<double>&, const AggregateOptions&,
                                  std::span<double>);

}  // namespace tidemill::engines
