// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/policy_token_loss.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "engines/rl/policy_loss.hpp"
#include "engines/rl/refusal.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::engines {
namespace {

constexpr double kLogRatioClamp = 20.0;

Status check_options(const PolicyTokenLossOptions& options) {
  TIDEMILL_RETURN_IF_ERROR(validate(options.policy));
  const PolicyLossOptions& policy = options.policy;
  if (policy.reject_denominator == RejectDenominator::kKept) {
    return refuse(kBadOption, "a denominator of kept tokens needs the whole batch at once");
  }
  if (policy.weight_denominator == WeightDenominator::kWeights) {
    return refuse(kBadOption, "a denominator of token weights needs the whole batch at once");
  }
  if (policy.rollout_correction && policy.rollout_correction->batch_normalize) {
    return refuse(kBadOption, "batch_normalize needs the whole batch at once");
  }
  if (policy.rollout_correction && options.old_logprobs == OldLogprobs::kBehavior) {
    return refuse(kBadOption, "rollout_correction requires proximal log-probabilities");
  }
  if (!std::isfinite(options.entropy_coefficient) || options.entropy_coefficient < 0.0) {
    return refuse(kBadOption, "entropy_coefficient must be finite and at least 0");
  }
  return {};
}

using ColumnSizes = std::span<const std::pair<const char*, std::size_t>>;

Status check_sizes(const TrainSequence& sequence, ColumnSizes columns, std::size_t tokens) {
  for (const auto& [name, size] : columns) {
    if (size != tokens) {
      return refuse(kBadShape, std::string(name) + " has " + std::to_string(size) +
                                   " values, expected " + std::to_string(tokens) + " (sample " +
                                   std::to_string(sequence.id.value) + ")");
    }
  }
  return {};
}

/// Checks that the columns of a sequence that the loss reads have one value per token.
Status check_columns(const TrainSequence& sequence, const PolicyTokenLossOptions& options) {
  const bool proximal = options.old_logprobs == OldLogprobs::kProximal;
  const bool reference = options.policy.kl_coefficient != 0.0;
  const std::size_t tokens = sequence.ids.size();
  const bool weights = !sequence.token_weights.empty();
  const std::array<std::pair<const char*, std::size_t>, 5> columns = {{
      {"advantages", sequence.advantages.size()},
      {"behavior_logprobs", sequence.behavior_logprobs.size()},
      {"proximal_logprobs", proximal ? sequence.proximal_logprobs.size() : tokens},
      {"reference_logprobs", reference ? sequence.reference_logprobs.size() : tokens},
      {"token_weights", weights ? sequence.token_weights.size() : tokens},
  }};
  return check_sizes(sequence, columns, tokens);
}

/// Checks the sizes of what a `LossSequence` or `LossTokens` of `count` tokens has.
template <class Values>
Status check_values(const Values& values, const PolicyTokenLossOptions& options,
                    std::size_t count) {
  const bool entropy = options.entropy_coefficient != 0.0;
  const std::array<std::pair<const char*, std::size_t>, 4> columns = {{
      {"logprobs", values.logprobs.size()},
      {"dlogprobs", values.dlogprobs.size()},
      {"entropies", entropy || !values.entropies.empty() ? values.entropies.size() : count},
      {"dentropies", entropy ? values.dentropies.size() : count},
  }};
  return check_sizes(*values.sequence, columns, count);
}

/// Returns the inputs of the loss at the tokens [first, first + count) of a sequence.
PolicyLossInputs<float> inputs_at(const TrainSequence& sequence, OldLogprobs old_logprobs,
                                  std::size_t first, std::size_t count) {
  const auto part = [=](const std::vector<float>& column) {
    return column.empty() ? std::span<const float>() : std::span(column).subspan(first, count);
  };
  PolicyLossInputs<float> inputs;
  inputs.proximal_logprobs =
      part(old_logprobs == OldLogprobs::kProximal ? sequence.proximal_logprobs
                                                  : sequence.behavior_logprobs);
  inputs.advantages = part(sequence.advantages);
  inputs.behavior_logprobs = part(sequence.behavior_logprobs);
  inputs.reference_logprobs = part(sequence.reference_logprobs);
  inputs.token_weights = part(sequence.token_weights);
  return inputs;
}

float entropy_gradient(double scale, double weight) {
  return static_cast<float>(-scale * weight);
}

}  // namespace

Result<PolicyTokenLoss> PolicyTokenLoss::create(PolicyTokenLossOptions options,
                                                const BatchCounts& totals) {
  TIDEMILL_RETURN_IF_ERROR(check_options(options));
  PolicyLossOptions& policy = options.policy;
  policy.aggregate.global_tokens = totals.tokens;
  policy.aggregate.global_seqs = totals.seqs;
  policy.aggregate.global_rows = totals.rows;
  if (totals.weight) {
    policy.aggregate.global_weight = totals.weight;
    policy.weight_denominator = WeightDenominator::kWeights;
  }
  if (!policy.aggregate.horizon) {
    policy.aggregate.horizon = totals.longest;
  }
  if (options.old_logprobs == OldLogprobs::kProximal && !policy.rollout_correction) {
    policy.rollout_correction = RolloutCorrectionOptions();
  }
  TIDEMILL_ASSIGN_OR_RETURN(const Aggregator aggregator,
                            Aggregator::create(policy.aggregate, totals));
  return PolicyTokenLoss(std::move(options), aggregator);
}

Status PolicyTokenLoss::evaluate(std::span<const LossSequence> sequences, LossSums& sums) {
  for (const LossSequence& current : sequences) {
    TIDEMILL_RETURN_IF_ERROR(evaluate_sequence(current, sums));
  }
  return {};
}

Status PolicyTokenLoss::evaluate_sequence(const LossSequence& current, LossSums& sums) {
  const TrainSequence& sequence = *current.sequence;
  TIDEMILL_RETURN_IF_ERROR(read_targets(sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_columns(sequence, options_));
  TIDEMILL_RETURN_IF_ERROR(check_values(current, options_, mask_.size()));
  TIDEMILL_RETURN_IF_ERROR(check_weights(sequence));
  const std::array<std::size_t, 2> offsets = {0, mask_.size()};
  const TokenRows token_rows{offsets, mask_, {&sequence.id, 1}};
  PolicyLossInputs<float> inputs = inputs_at(sequence, options_.old_logprobs, 0, mask_.size());
  inputs.rows = token_rows;
  inputs.logprobs = current.logprobs;
  TIDEMILL_RETURN_IF_ERROR(
      check_token_column(token_rows, "behavior_logprobs", inputs.behavior_logprobs));
  TIDEMILL_ASSIGN_OR_RETURN(const PolicyLossReport report,
                            policy_loss<float>(inputs, options_.policy, {current.dlogprobs, {}}));

  const double row_scale = aggregator_.weighted_row_scale(target_weight(sequence));
  const double entropy_scale = options_.entropy_coefficient * row_scale;
  double entropy = 0.0;
  double weighted_entropy = 0.0;
  double k1 = 0.0;
  double k3 = 0.0;
  for (std::size_t t = 0; t < mask_.size(); ++t) {
    if (mask_[t] == 0) {
      continue;
    }
    const double log_ratio = std::clamp(static_cast<double>(current.logprobs[t]) -
                                            static_cast<double>(sequence.behavior_logprobs[t]),
                                        -kLogRatioClamp, kLogRatioClamp);
    k1 -= log_ratio;
    k3 += std::expm1(log_ratio) - log_ratio;
    const double weight = weight_of(sequence, t);
    const double of_token =
        current.entropies.empty() ? 0.0 : static_cast<double>(current.entropies[t]);
    entropy += of_token;
    weighted_entropy += weight * of_token;
    if (entropy_scale != 0.0) {
      current.dentropies[t] = entropy_gradient(entropy_scale, weight);
    }
  }
  sums["loss"] += report.loss - entropy_scale * weighted_entropy;
  sums["tokens"] += static_cast<double>(report.tokens);
  sums["rejected_tokens"] += static_cast<double>(report.tokens - report.kept_tokens);
  sums["clipped_tokens"] += static_cast<double>(report.clipped_tokens);
  sums["ratio_sum"] += report.ratio_sum;
  sums["kl_k1_sum"] += k1;
  sums["kl_k3_sum"] += k3;
  if (!current.entropies.empty()) {
    sums["entropy_sum"] += entropy;
  }
  ratio_max_ = std::max(ratio_max_, report.ratio_max);
  return {};
}

bool PolicyTokenLoss::is_token_local() const {
  const PolicyLossOptions& policy = options_.policy;
  if (policy.ratio_level != RatioLevel::kToken || policy.off_policy_delta) {
    return false;
  }
  const auto& correction = policy.rollout_correction;
  return !correction || (correction->level == CorrectionLevel::kToken &&
                         correction->rule != CorrectionRule::kSeqMask &&
                         std::ranges::all_of(correction->reject, [](const RejectRule& rule) {
                           return rule.scope == RejectScope::kToken;
                         }));
}

Status PolicyTokenLoss::token_gradients(const LossTokens& tokens) {
  const TrainSequence& sequence = *tokens.sequence;
  const std::size_t count = tokens.logprobs.size();
  TIDEMILL_RETURN_IF_ERROR(read_targets(sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_columns(sequence, options_));
  TIDEMILL_RETURN_IF_ERROR(check_values(tokens, options_, count));
  TIDEMILL_RETURN_IF_ERROR(check_weights(sequence));
  const double row_scale = aggregator_.weighted_row_scale(target_weight(sequence));
  const auto mask = std::span<const std::uint8_t>(mask_).subspan(tokens.first, count);
  const std::array<std::size_t, 2> offsets = {0, count};
  PolicyLossInputs<float> inputs = inputs_at(sequence, options_.old_logprobs, tokens.first, count);
  inputs.rows = {offsets, mask, {&sequence.id, 1}};
  inputs.logprobs = tokens.logprobs;
  PolicyLossOptions policy = options_.policy;
  policy.row_scale = row_scale;
  TIDEMILL_RETURN_IF_ERROR(policy_loss<float>(inputs, policy, {tokens.dlogprobs, {}}).status());
  const double entropy_scale = options_.entropy_coefficient * row_scale;
  for (std::size_t i = 0; i < count && entropy_scale != 0.0; ++i) {
    if (mask[i] != 0) {
      tokens.dentropies[i] = entropy_gradient(entropy_scale, weight_of(sequence, tokens.first + i));
    }
  }
  return {};
}

}  // namespace tidemill::engines
