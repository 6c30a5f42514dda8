// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/rollout_correction.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engines/rl/refusal.hpp"

namespace tidemill::engines {
namespace {

constexpr double kRejectClamp = 20.0;
constexpr double kMinMeanWeight = 1e-8;

struct RowSummary {
  double sum = 0.0;
  double mean = 0.0;
  double max = -std::numeric_limits<double>::infinity();
  std::int64_t count = 0;
};

/// Summarizes `value(t)` over the valid tokens of a row.
template <class Function>
RowSummary summarize(const TokenRows& rows, std::size_t row, const Function& value) {
  RowSummary summary;
  for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
    if (rows.mask[t] != 0) {
      const double x = value(t);
      summary.sum += x;
      summary.max = std::max(summary.max, x);
      ++summary.count;
    }
  }
  if (summary.count > 0) {
    summary.mean = summary.sum / static_cast<double>(summary.count);
  }
  return summary;
}

double statistic(RejectStat stat, double log_ratio) {
  const double x = std::clamp(log_ratio, -kRejectClamp, kRejectClamp);
  switch (stat) {
    case RejectStat::kRatio: return x;
    case RejectStat::kK1: return -x;
    case RejectStat::kK2: return 0.5 * x * x;
    case RejectStat::kK3: return std::expm1(x) - x;
  }
  return x;
}

bool is_log_stat(RejectStat stat) {
  return stat == RejectStat::kRatio || stat == RejectStat::kK1;
}

bool passes(const RejectRule& rule, double value) {
  const bool as_log = is_log_stat(rule.stat);
  const bool above = !rule.lower || !as_log || value >= std::log(*rule.lower);
  const bool below = !rule.upper || value <= (as_log ? std::log(*rule.upper) : *rule.upper);
  return above && below;
}

/// Clears `kept` for the tokens and rows that `rule` rejects.
template <class Real>
void reject(const RolloutCorrectionInputs<Real>& in, const RejectRule& rule,
            std::span<std::uint8_t> kept) {
  const TokenRows& rows = in.rows;
  const auto value = [&](std::size_t t) {
    return statistic(rule.stat, static_cast<double>(in.proximal_logprobs[t]) -
                                    static_cast<double>(in.behavior_logprobs[t]));
  };
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const RowSummary summary = summarize(rows, row, value);
    if (summary.count == 0) {
      continue;
    }
    const double of_row = rule.scope == RejectScope::kSeqSum    ? summary.sum
                          : rule.scope == RejectScope::kSeqMean ? summary.mean
                                                                : summary.max;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] != 0 &&
          !passes(rule, rule.scope == RejectScope::kToken ? value(t) : of_row)) {
        kept[t] = 0;
      }
    }
  }
}

/// Divides the weights by their mean. See `RolloutCorrectionOptions::batch_normalize`.
template <class Real>
void normalize(const TokenRows& rows, CorrectionLevel level,
               const RolloutCorrectionOutputs<Real>& out) {
  double total = 0.0;
  double count = 0.0;
  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    double sum = 0.0;
    double kept = 0.0;
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      sum += out.kept_mask[t] != 0 ? static_cast<double>(out.weights[t]) : 0.0;
      kept += out.kept_mask[t];
    }
    if (kept > 0.0) {
      total += level == CorrectionLevel::kToken ? sum : sum / kept;
      count += level == CorrectionLevel::kToken ? kept : 1.0;
    }
  }
  const double mean = count > 0.0 ? total / count : 0.0;
  if (mean > kMinMeanWeight) {
    for (Real& weight : out.weights) {
      weight = static_cast<Real>(weight / mean);
    }
  }
}

Status validate_reject(const RejectRule& rule) {
  if (is_log_stat(rule.stat)) {
    if (!rule.lower && !rule.upper) {
      return refuse(kBadOption, "a reject rule needs a bound");
    }
    if ((rule.lower && !(*rule.lower > 0.0)) || (rule.upper && !(*rule.upper > 0.0))) {
      return refuse(kBadOption, "reject bounds of a ratio must be above 0");
    }
    if (rule.lower && rule.upper && *rule.lower > *rule.upper) {
      return refuse(kBadOption, "the lower bound of a reject rule is above the upper one");
    }
    return {};
  }
  if (rule.lower || !rule.upper || !(*rule.upper >= 0.0)) {
    return refuse(kBadOption, "a reject rule on k2 or k3 takes only an upper bound, at least 0");
  }
  return {};
}

}  // namespace

Status validate(const RolloutCorrectionOptions& options) {
  const double lower = options.lower.value_or(0.0);
  if (!(options.upper > 0.0) || !(lower >= 0.0) || lower > options.upper) {
    return refuse(kBadOption, "bounds must satisfy 0 <= lower <= upper and upper > 0");
  }
  if (!(options.log_clamp > 0.0)) {
    return refuse(kBadOption, "log_clamp must be above 0");
  }
  for (const RejectRule& rule : options.reject) {
    TIDEMILL_RETURN_IF_ERROR(validate_reject(rule));
  }
  return {};
}

template <class Real>
Status rollout_correction(const RolloutCorrectionInputs<Real>& inputs,
                          const RolloutCorrectionOptions& options,
                          const RolloutCorrectionOutputs<Real>& out) {
  const TokenRows& rows = inputs.rows;
  TIDEMILL_RETURN_IF_ERROR(check_token_rows(rows));
  TIDEMILL_RETURN_IF_ERROR(validate(options));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "proximal_logprobs", inputs.proximal_logprobs));
  TIDEMILL_RETURN_IF_ERROR(check_token_column(rows, "behavior_logprobs", inputs.behavior_logprobs));
  TIDEMILL_RETURN_IF_ERROR(check_output_size("weights", out.weights.size(), rows.num_positions()));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("kept_mask", out.kept_mask.size(), rows.num_positions()));
  std::copy(rows.mask.begin(), rows.mask.end(), out.kept_mask.begin());
  const double lower = options.lower.value_or(0.0);
  const auto log_ratio = [&](std::size_t t) {
    return static_cast<double>(inputs.proximal_logprobs[t]) -
           static_cast<double>(inputs.behavior_logprobs[t]);
  };
  const auto weight_of = [&](double log_weight) {
    return std::exp(std::clamp(log_weight, -options.log_clamp, options.log_clamp));
  };
  const auto outside = [&](double weight) { return weight < lower || weight > options.upper; };

  for (std::size_t row = 0; row < rows.num_rows(); ++row) {
    const RowSummary summary = summarize(rows, row, log_ratio);
    const double row_weight =
        weight_of(options.sequence_weight == SequenceWeight::kProduct ? summary.sum : summary.mean);
    const bool drop_row = options.rule == CorrectionRule::kSeqMask && outside(row_weight);
    for (std::size_t t = rows.begin(row); t < rows.end(row); ++t) {
      if (rows.mask[t] == 0) {
        continue;
      }
      double weight =
          options.level == CorrectionLevel::kToken ? weight_of(log_ratio(t)) : row_weight;
      switch (options.rule) {
        case CorrectionRule::kNone: weight = 1.0; break;
        case CorrectionRule::kRaw: break;
        case CorrectionRule::kTruncate: weight = std::clamp(weight, lower, options.upper); break;
        case CorrectionRule::kZero: weight = outside(weight) ? 0.0 : weight; break;
        case CorrectionRule::kMask: out.kept_mask[t] = outside(weight) ? 0 : 1; break;
        case CorrectionRule::kSeqMask: out.kept_mask[t] = drop_row ? 0 : 1; break;
      }
      out.weights[t] = static_cast<Real>(weight);
    }
  }
  for (const RejectRule& rule : options.reject) {
    reject(inputs, rule, out.kept_mask);
  }
  for (std::size_t t = 0; t < out.weights.size(); ++t) {
    out.weights[t] = out.kept_mask[t] != 0 ? out.weights[t] : Real{0};
  }
  if (options.batch_normalize) {
    normalize(rows, options.level, out);
  }
  return check_token_result<Real>(rows, "weights", out.weights);
}

template Status rollout_correction(const RolloutCorrectionInputs<float>&,
                                   const RolloutCorrectionOptions&,
                                   const RolloutCorrectionOutputs<float>&);
template Status rollout_correction(const RolloutCorrectionInputs<double>&,
                                   const RolloutCorrectionOptions&,
                                   const RolloutCorrectionOutputs<double>&);

}  // namespace tidemill::engines
