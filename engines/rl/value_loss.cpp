// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/value_loss.hpp"

#include <algorithm>
#include <cmath>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

template <class Real>
Status check_inputs(const ValueLossInputs<Real>& in, const ValueLossOptions& options,
                    std::span<Real> gradient) {
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(in.rows));
  if (options.clip && !(*options.clip >= 0.0)) {
    return refuse(kBadOption, "clip must be at least 0");
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_column(in.rows, "values", in.values));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(in.rows, "returns", in.returns));
  if (options.clip) {
    TIDEMILL_RETURN_IF_ERROR(check_token_column(in.rows, "old_values", in.old_values));
  }
  return check_output_size("gradient", gradient.size(), in.rows.num_positions());
}

}  // namespace

template <class Real>
Result<ValueLossReport> value_loss(const ValueLossInputs<Real>& inputs,
                                   const ValueLossOptions& options, std::span<Real> gradient) {
  TIDEMILL_RETURN_IF_ERROR(check_inputs(inputs, options, gradient));
  const TokenRows& rows = inputs.rows;
  TIDEMILL_ASSIGN_OR_RETURN(const Aggregator aggregator,
                            Aggregator::create(options.aggregate, count_batch(rows, rows.mask)));
  ValueLossReport report;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const double scale = aggregator.row_scale(count_valid(rows, rows.mask, row));
    double loss = 0.0;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] == 0) {
        gradient[t] = Real{0};
        continue;
      }
      const double value = inputs.values[t];
      double error = value - inputs.returns[t];
      double slope = error;  // half the derivative of the square
      if (options.clip) {
        const double low = inputs.old_values[t] - *options.clip;
        const double high = inputs.old_values[t] + *options.clip;
        const double clipped = std::clamp(value, low, high) - inputs.returns[t];
        if (clipped * clipped > error * error) {
          error = clipped;
          slope = value >= low && value <= high ? clipped : 0.0;
          report.clipped_tokens += 1;
        }
      }
      loss += 0.5 * error * error;
      gradient[t] = static_cast<Real>(scale * slope);
      report.tokens += 1;
    }
    report.loss += scale * loss;
  }
  if (!std::isfinite(static_cast<Real>(report.loss))) {
    return refuse(kNonFiniteResult, "the loss overflows");
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "gradient", gradient));
  return report;
}

template Result<ValueLossReport> value_loss(const ValueLossInputs<float>&, const ValueLossOptions&,
                                            std::span<float>);
template Result<ValueLossReport> value_loss(const ValueLossInputs<double>&, const ValueLossOptions&,
                                            std::span<double>);

}  // namespace tidemill::engines
