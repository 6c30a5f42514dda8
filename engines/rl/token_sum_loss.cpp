// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/token_sum_loss.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "engines/rl/policy_terms.hpp"
#include "engines/rl/refusal.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::engines {
namespace {

constexpr std::array kNames = std::to_array<std::pair<std::string_view, TokenSumKind>>({
    {"cross_entropy", TokenSumKind::kCrossEntropy},
    {"importance_sampling", TokenSumKind::kImportanceSampling},
    {"ppo", TokenSumKind::kPpo},
    {"cispo", TokenSumKind::kCispo},
    {"dro", TokenSumKind::kDro},
    {"gspo", TokenSumKind::kGspo},
});

std::string token_text(const TrainSequence& sequence, std::size_t t) {
  return "[" + std::to_string(t) + "] (sample " + std::to_string(sequence.id.value) + ")";
}

Status check_finite(const TrainSequence& sequence, std::string_view name, std::size_t t,
                    double value) {
  if (std::isfinite(value)) {
    return {};
  }
  return refuse(kNonFinite, std::string(name) + token_text(sequence, t) + " is not finite");
}

Status check_sizes(const TrainSequence& sequence, std::size_t expected, std::size_t logprobs,
                   std::size_t gradients) {
  if (logprobs == expected && gradients == expected) {
    return {};
  }
  return refuse(kBadShape, "logprobs and dlogprobs must have " + std::to_string(expected) +
                               " values (sample " + std::to_string(sequence.id.value) + ")");
}

// Returns the options of `policy_term` for a kind whose formula it has. Ratios are not clamped.
PolicyLossOptions policy_options(const TokenSumOptions& options) {
  PolicyLossOptions policy;
  policy.log_ratio_clamp = std::nullopt;
  if (options.kind == TokenSumKind::kCispo) {
    policy.kind = PolicyLossKind::kCispo;
    policy.cispo_low = options.ratio_low;
    policy.cispo_high = options.ratio_high;
  } else if (options.kind == TokenSumKind::kImportanceSampling) {
    policy.clip_low = HUGE_VAL;
    policy.clip_high = HUGE_VAL;
  } else {
    policy.clip_low = 1.0 - options.ratio_low;
    policy.clip_high = options.ratio_high - 1.0;
  }
  return policy;
}

}  // namespace

std::optional<TokenSumKind> token_sum_kind(std::string_view name) noexcept {
  const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                         [&](const auto& one) { return one.first == name; });
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

TokenSumOptions default_options(TokenSumKind kind) noexcept {
  TokenSumOptions options;
  options.kind = kind;
  if (kind == TokenSumKind::kGspo) {
    options.ratio_low = 1.0 - 3e-4;
    options.ratio_high = 1.0 + 4e-4;
  }
  return options;
}

Result<TokenSumLoss> TokenSumLoss::create(const TokenSumOptions& options) {
  const auto is_valid = [](double value) { return std::isfinite(value) && value >= 0.0; };
  if (!is_valid(options.ratio_low) || !is_valid(options.ratio_high) ||
      options.ratio_low > options.ratio_high) {
    return refuse(kBadOption, "the bounds of the ratio must be finite, at least 0 and ascending");
  }
  if (!is_valid(options.beta)) {
    return refuse(kBadOption, "beta must be finite and at least 0");
  }
  return TokenSumLoss(options);
}

Status TokenSumLoss::check_columns(const TrainSequence& sequence) const {
  const bool policy = options_.kind != TokenSumKind::kCrossEntropy;
  const bool ratio_mask = options_.kind == TokenSumKind::kGspo;
  const std::array columns = {
      std::pair("advantages", sequence.advantages.size()),
      std::pair("behavior_logprobs", policy ? sequence.behavior_logprobs.size() : mask_.size()),
      std::pair("token_weights", ratio_mask ? sequence.token_weights.size() : mask_.size()),
  };
  for (const auto& [name, size] : columns) {
    if (size != mask_.size()) {
      return refuse(kBadShape, std::string(name) + " has " + std::to_string(size) +
                                   " values, expected " + std::to_string(mask_.size()) +
                                   " (sample " + std::to_string(sequence.id.value) + ")");
    }
  }
  return {};
}

Result<double> TokenSumLoss::sequence_log_ratio(const LossSequence& current) const {
  const TrainSequence& sequence = *current.sequence;
  if (options_.kind != TokenSumKind::kGspo) {
    return 0.0;
  }
  double sum = 0.0;
  std::size_t marked = 0;
  bool has_advantage = false;
  for (std::size_t t = 0; t < mask_.size(); ++t) {
    if (mask_[t] == 0) {
      continue;
    }
    has_advantage = has_advantage || sequence.advantages[t] != 0.0F;
    if (sequence.token_weights[t] != 0.0F) {
      const auto q = static_cast<double>(sequence.behavior_logprobs[t]);
      TIDEMILL_RETURN_IF_ERROR(check_finite(sequence, "behavior_logprobs", t, q));
      sum += static_cast<double>(current.logprobs[t]) - q;
      ++marked;
    }
  }
  if (marked == 0 && has_advantage) {
    return refuse(kBadOption, "the ratio mask marks no target (sample " +
                                  std::to_string(sequence.id.value) + ")");
  }
  return marked == 0 ? 0.0 : sum / static_cast<double>(marked);
}

Result<TokenSumLoss::Term> TokenSumLoss::term(const TrainSequence& sequence, std::size_t t,
                                              double logprob, double sequence_log_ratio) const {
  const auto advantage = static_cast<double>(sequence.advantages[t]);
  TIDEMILL_RETURN_IF_ERROR(check_finite(sequence, "logprobs", t, logprob));
  TIDEMILL_RETURN_IF_ERROR(check_finite(sequence, "advantages", t, advantage));
  Term result{-advantage * logprob, -advantage};
  if (options_.kind != TokenSumKind::kCrossEntropy) {
    const auto q = static_cast<double>(sequence.behavior_logprobs[t]);
    TIDEMILL_RETURN_IF_ERROR(check_finite(sequence, "behavior_logprobs", t, q));
    if (options_.kind == TokenSumKind::kDro) {
      const double difference = logprob - q;
      result.value += 0.5 * options_.beta * difference * difference;
      result.slope += options_.beta * difference;
    } else if (advantage == 0.0) {
      result = {};  // even where the ratio overflows
    } else {
      const double log_ratio =
          options_.kind == TokenSumKind::kGspo ? sequence_log_ratio : logprob - q;
      const PolicyTerm policy =
          policy_term({importance_ratio(log_ratio, std::nullopt), advantage, logprob},
                      policy_options(options_));
      result = {policy.value, policy.by_logprob + policy.by_log_ratio};
    }
  }
  if (!std::isfinite(result.value) || !std::isfinite(static_cast<float>(result.slope))) {
    return refuse(kNonFiniteResult, "loss" + token_text(sequence, t) + " overflows");
  }
  return result;
}

Status TokenSumLoss::evaluate(std::span<const LossSequence> sequences, LossSums& sums) {
  for (const LossSequence& current : sequences) {
    TIDEMILL_RETURN_IF_ERROR(evaluate_sequence(current, sums));
  }
  return {};
}

Status TokenSumLoss::evaluate_sequence(const LossSequence& current, LossSums& sums) {
  const TrainSequence& sequence = *current.sequence;
  TIDEMILL_RETURN_IF_ERROR(read_targets(sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_columns(sequence));
  TIDEMILL_RETURN_IF_ERROR(
      check_sizes(sequence, mask_.size(), current.logprobs.size(), current.dlogprobs.size()));
  TIDEMILL_ASSIGN_OR_RETURN(const double log_ratio, sequence_log_ratio(current));
  double loss = 0.0;
  std::int64_t targets = 0;
  for (std::size_t t = 0; t < mask_.size(); ++t) {
    if (mask_[t] == 0) {
      continue;
    }
    TIDEMILL_ASSIGN_OR_RETURN(
        const Term token, term(sequence, t, static_cast<double>(current.logprobs[t]), log_ratio));
    loss += token.value;
    current.dlogprobs[t] = static_cast<float>(token.slope);
    ++targets;
  }
  sums["loss"] += loss;
  sums["tokens"] += static_cast<double>(targets);
  return {};
}

bool TokenSumLoss::is_token_local() const {
  return options_.kind != TokenSumKind::kGspo;
}

Status TokenSumLoss::token_gradients(const LossTokens& tokens) {
  const TrainSequence& sequence = *tokens.sequence;
  TIDEMILL_RETURN_IF_ERROR(read_targets(sequence, mask_));
  TIDEMILL_RETURN_IF_ERROR(check_columns(sequence));
  TIDEMILL_RETURN_IF_ERROR(check_sizes(sequence, tokens.logprobs.size(), tokens.logprobs.size(),
                                       tokens.dlogprobs.size()));
  for (std::size_t i = 0; i < tokens.logprobs.size(); ++i) {
    const std::size_t t = tokens.first + i;
    if (mask_[t] != 0) {
      TIDEMILL_ASSIGN_OR_RETURN(const Term token,
                                term(sequence, t, static_cast<double>(tokens.logprobs[i]), 0.0));
      tokens.dlogprobs[i] = static_cast<float>(token.slope);
    }
  }
  return {};
}

Result<LossSums> evaluate_forward(TokenSumLoss& loss, std::span<const TrainSequence> sequences,
                                  std::span<const std::vector<float>> logprobs) {
  LossSums sums;
  std::vector<float> gradients;
  for (std::size_t i = 0; i < sequences.size() && i < logprobs.size(); ++i) {
    gradients.assign(logprobs[i].size(), 0.0F);
    const LossSequence current{&sequences[i], logprobs[i], {}, gradients, {}};
    TIDEMILL_RETURN_IF_ERROR(loss.evaluate({&current, 1}, sums));
  }
  return sums;
}

}  // namespace tidemill::engines
