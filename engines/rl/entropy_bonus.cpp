// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/entropy_bonus.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

template <class Real>
Status check_inputs(const EntropyInputs<Real>& in, const EntropyOptions& options,
                    const EntropyOutputs<Real>& out) {
  const TokenRows& rows = in.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  if (!std::isfinite(options.coefficient)) {
    return refuse(kBadOption, "coefficient must be finite");
  }
  if (in.vocabulary == 0) {
    return refuse(kBadShape, "the vocabulary is empty");
  }
  const std::size_t size = rows.num_positions() * in.vocabulary;
  TIDEMILL_RETURN_IF_ERROR(check_output_size("logits", in.logits.size(), size));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("gradient", out.gradient.size(), size));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("entropy", out.entropy.size(), rows.num_positions()));
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      const auto logits = in.logits.subspan(t * in.vocabulary, in.vocabulary);
      if (rows.mask[t] != 0 &&
          !std::all_of(logits.begin(), logits.end(), [](Real x) { return std::isfinite(x); })) {
        return refuse(kNonFinite, "logits of row " + std::to_string(row) + ", token " +
                                      std::to_string(t - rows.begin(row)) + " are not all finite");
      }
    }
  }
  return {};
}

/// Replaces the logits of one token in `values` with log-probabilities and returns their entropy.
double log_softmax_entropy(std::span<double> values) {
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0.0;
  for (const double value : values) {
    sum += std::exp(value - largest);
  }
  const double log_sum = largest + std::log(sum);
  double entropy = 0.0;
  for (double& value : values) {
    value -= log_sum;
    entropy -= std::exp(value) * value;
  }
  return entropy;
}

}  // namespace

template <class Real>
Result<double> entropy_bonus(const EntropyInputs<Real>& inputs, const EntropyOptions& options,
                             const EntropyOutputs<Real>& out) {
  TIDEMILL_RETURN_IF_ERROR(check_inputs(inputs, options, out));
  const TokenRows& rows = inputs.rows;
  TIDEMILL_ASSIGN_OR_RETURN(const Aggregator aggregator,
                            Aggregator::create(options.aggregate, count_batch(rows, rows.mask)));
  std::fill(out.gradient.begin(), out.gradient.end(), Real{0});
  std::fill(out.entropy.begin(), out.entropy.end(), Real{0});
  double loss = 0.0;
  std::vector<double> logprobs(inputs.vocabulary);
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const double scale =
        -options.coefficient * aggregator.row_scale(count_valid(rows, rows.mask, row));
    double sum = 0.0;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] == 0) {
        continue;
      }
      const auto logits = inputs.logits.subspan(t * inputs.vocabulary, inputs.vocabulary);
      std::copy(logits.begin(), logits.end(), logprobs.begin());
      const double entropy = log_softmax_entropy(logprobs);
      out.entropy[t] = static_cast<Real>(entropy);
      sum += entropy;
      for (std::size_t v = 0; v < logprobs.size(); ++v) {  // dH/dz = -p (log p + H)
        const double slope = -std::exp(logprobs[v]) * (logprobs[v] + entropy);
        out.gradient[t * inputs.vocabulary + v] = static_cast<Real>(scale * slope);
      }
    }
    loss += scale * sum;
  }
  if (!std::isfinite(static_cast<Real>(loss))) {
    return refuse(kNonFiniteResult, "the loss overflows");
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "entropy", out.entropy));
  TIDEMILL_RETURN_IF_ERROR(check_result<Real>("gradient", out.gradient));
  return loss;
}

template Result<double> entropy_bonus(const EntropyInputs<float>&, const EntropyOptions&,
                                      const EntropyOutputs<float>&);
template Result<double> entropy_bonus(const EntropyInputs<double>&, const EntropyOptions&,
                                      const EntropyOutputs<double>&);

}  // namespace tidemill::engines
