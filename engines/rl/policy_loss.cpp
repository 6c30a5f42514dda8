// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/policy_loss.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engines/rl/policy_terms.hpp"
#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

/// A batch with its defaults resolved. The rows are computed from it.
template <class Real>
struct Batch {
  const PolicyLossInputs<Real>& in;
  const PolicyLossOptions& options;
  std::span<const Real> proximal;
  std::span<const Real> behavior;
  std::span<const Real> weights;       // of the rollout correction, or empty
  std::span<const std::uint8_t> kept;  // the mask without rejected tokens
};

/// Values that all tokens of a row share.
struct RowStatistics {
  double tokens = 0.0;  // valid tokens
  double log_ratio_mean = 0.0;
  double advantage_mean = 0.0;
  bool off_policy = false;  // tokens of the row with A < 0 get weight 0
};

double difference(double a, double b) {
  return a - b;
}

template <class Real>
Status check_inputs(const PolicyLossInputs<Real>& in, const PolicyLossOptions& options,
                    const PolicyLossOutputs<Real>& out) {
  const TokenRows& rows = in.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(validate(options));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "logprobs", in.logprobs));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "advantages", in.advantages));
  if (!in.proximal_logprobs.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "proximal_logprobs", in.proximal_logprobs));
  }
  if (options.rollout_correction || (options.off_policy_delta && !in.behavior_logprobs.empty())) {
    TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "behavior_logprobs", in.behavior_logprobs));
  }
  if (options.kl_coefficient != 0.0) {
    TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "reference_logprobs", in.reference_logprobs));
  }
  if (!in.token_weights.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "token_weights", in.token_weights));
  }
  if (!out.per_token.empty()) {
    TIDEMILL_RETURN_IF_ERROR(
        check_output_size("per_token", out.per_token.size(), rows.num_positions()));
  }
  return check_output_size("gradient", out.gradient.size(), rows.num_positions());
}

template <class Real>
RowStatistics row_statistics(const Batch<Real>& batch, std::size_t row) {
  const TokenRows& rows = batch.in.rows;
  RowStatistics sums;
  double distance = 0.0;  // from the policy that sampled the row
  for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
    if (rows.mask[t] != 0) {
      sums.tokens += 1.0;
      sums.log_ratio_mean += difference(batch.in.logprobs[t], batch.proximal[t]);
      sums.advantage_mean += batch.in.advantages[t];
      distance += difference(batch.behavior[t], batch.in.logprobs[t]);
    }
  }
  if (sums.tokens > 0.0) {
    sums.log_ratio_mean /= sums.tokens;
    sums.advantage_mean /= sums.tokens;
    sums.off_policy =
        batch.options.off_policy_delta && distance / sums.tokens > *batch.options.off_policy_delta;
  }
  return sums;
}

template <class Real>
PolicyToken token_at(const Batch<Real>& batch, const RowStatistics& row, std::size_t t) {
  const PolicyLossOptions& options = batch.options;
  const bool by_sequence = options.ratio_level == RatioLevel::kSequence;
  PolicyToken token;
  token.logprob = batch.in.logprobs[t];
  token.advantage = options.sequence_advantage == SequenceAdvantage::kRowMean
                        ? row.advantage_mean
                        : static_cast<double>(batch.in.advantages[t]);
  token.ratio = importance_ratio(
      by_sequence ? row.log_ratio_mean : difference(token.logprob, batch.proximal[t]),
      options.log_ratio_clamp);
  return token;
}

/// Returns the weight of a kept token's loss, without its token weight.
template <class Real>
double loss_weight(const Batch<Real>& batch, const RowStatistics& row, const PolicyToken& token,
                   std::size_t t) {
  double weight = batch.weights.empty() ? 1.0 : static_cast<double>(batch.weights[t]);
  if (row.off_policy && token.advantage < 0.0) {
    weight = 0.0;
  }
  return weight;
}

/// Computes the gradient of one row. Adds its metrics to `report`, and `scale` times its loss to
/// `report.loss`.
template <class Real>
void compute_row(const Batch<Real>& batch, std::size_t row, double scale,
                 const PolicyLossOutputs<Real>& out, PolicyLossReport& report) {
  const TokenRows& rows = batch.in.rows;
  const PolicyLossOptions& options = batch.options;
  const RowStatistics statistics = row_statistics(batch, row);
  const bool through_mean = options.ratio_level == RatioLevel::kSequence &&
                            options.sequence_gradient == SequenceGradient::kSequence;
  double loss = 0.0;
  double by_mean = 0.0;  // gradient that reaches every token through the mean log-ratio
  for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
    double per_token = 0.0;
    double gradient = 0.0;
    if (rows.mask[t] != 0) {
      const PolicyToken token = token_at(batch, statistics, t);
      report.tokens += 1;
      report.clipped_tokens +=
          is_clipped(token.ratio.value, batch.in.advantages[t], options) ? 1 : 0;
      report.ratio_sum += token.ratio.value;
      report.ratio_max = std::max(report.ratio_max, token.ratio.value);
      if (batch.kept[t] != 0) {
        report.kept_tokens += 1;
        const double token_weight =
            batch.in.token_weights.empty() ? 1.0 : static_cast<double>(batch.in.token_weights[t]);
        const double weight = loss_weight(batch, statistics, token, t) * token_weight;
        const PolicyTerm term = policy_term(token, options);
        per_token = weight * term.value;
        gradient = weight * term.by_logprob;
        double by_log_ratio = weight * term.by_log_ratio;
        loss += per_token;
        if (options.kl_coefficient != 0.0) {
          const KlTerm kl = kl_term(difference(token.logprob, batch.in.reference_logprobs[t]),
                                    token.ratio.value, options.kl);
          const double kl_weight = options.kl_coefficient * token_weight;
          loss += kl_weight * kl.value;
          gradient += kl_weight * kl.by_logprob;
          by_log_ratio += kl_weight * kl.by_ratio * token.ratio.slope;
        }
        (through_mean ? by_mean : gradient) += by_log_ratio;
      }
    }
    out.gradient[t] = static_cast<Real>(scale * gradient);
    if (!out.per_token.empty()) {
      out.per_token[t] = static_cast<Real>(per_token);
    }
  }
  if (through_mean && by_mean != 0.0) {
    const double share = scale * by_mean / statistics.tokens;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      out.gradient[t] += rows.mask[t] != 0 ? static_cast<Real>(share) : Real{0};
    }
  }
  report.loss += scale * loss;
}

/// Returns the sum of the weights of the tokens of `row` that are set in `mask`.
template <class Real>
double row_weight(const PolicyLossInputs<Real>& in, std::span<const std::uint8_t> mask,
                  std::size_t row) {
  double weight = 0.0;
  for (std::size_t t = in.rows.begin(row); t < in.rows.end(row); ++t) {
    if (mask[t] != 0) {
      weight += in.token_weights.empty() ? 1.0 : static_cast<double>(in.token_weights[t]);
    }
  }
  return weight;
}

/// Returns the factor that turns a division by the number of tokens into a division by the sum of
/// their weights.
template <class Real>
double weight_correction(const PolicyLossInputs<Real>& in, std::span<const std::uint8_t> mask) {
  double tokens = 0.0;
  double weights = 0.0;
  for (std::size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] != 0) {
      tokens += 1.0;
      weights += in.token_weights.empty() ? 1.0 : static_cast<double>(in.token_weights[t]);
    }
  }
  return weights == 0.0 ? 0.0 : tokens / weights;
}

}  // namespace

template <class Real>
Result<PolicyLossReport> policy_loss(const PolicyLossInputs<Real>& inputs,
                                     const PolicyLossOptions& options,
                                     const PolicyLossOutputs<Real>& out) {
  TIDEMILL_RETURN_IF_ERROR(check_inputs(inputs, options, out));
  const TokenRows& rows = inputs.rows;
  const std::span<const Real> proximal =
      inputs.proximal_logprobs.empty() ? inputs.logprobs : inputs.proximal_logprobs;
  const bool has_behavior = !inputs.behavior_logprobs.empty();
  Batch<Real> batch{inputs, options,  proximal, has_behavior ? inputs.behavior_logprobs : proximal,
                    {},     rows.mask};
  std::vector<Real> weights;
  std::vector<std::uint8_t> kept;
  if (options.rollout_correction) {
    weights.resize(rows.num_positions());
    kept.resize(rows.num_positions());
    TIDEMILL_RETURN_IF_ERROR(rollout_correction<Real>(
        {rows, proximal, inputs.behavior_logprobs}, *options.rollout_correction, {weights, kept}));
    batch.weights = weights;
    batch.kept = kept;
  }
  const std::span<const std::uint8_t> counted =
      options.reject_denominator == RejectDenominator::kKept ? batch.kept : rows.mask;
  TIDEMILL_ASSIGN_OR_RETURN(const Aggregator aggregator,
                            Aggregator::create(options.aggregate, count_batch(rows, counted)));
  const bool by_weight = options.weight_denominator == WeightDenominator::kWeights;
  const bool global = options.aggregate.global_weight.has_value();
  const double correction = by_weight && !global ? weight_correction(inputs, counted) : 1.0;
  PolicyLossReport report;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const double row_scale = by_weight && global
                                 ? aggregator.weighted_row_scale(row_weight(inputs, counted, row))
                                 : aggregator.row_scale(count_valid(rows, counted, row));
    compute_row(batch, row, options.row_scale.value_or(correction * row_scale), out, report);
  }
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "gradient", out.gradient));
  TIDEMILL_RETURN_IF_ERROR(check_token_result<Real>(rows, "per_token", out.per_token));
  if (!std::isfinite(static_cast<Real>(report.loss))) {
    return refuse(kNonFiniteResult, "the loss overflows");
  }
  return report;
}

template Result<PolicyLossReport> policy_loss(const PolicyLossInputs<float>&,
                                              const PolicyLossOptions&,
                                              const PolicyLossOutputs<float>&);
template Result<PolicyLossReport> policy_loss(const PolicyLossInputs<double>&,
                                              const PolicyLossOptions&,
                                              const PolicyLossOutputs<double>&);

}  // namespace tidemill::engines
