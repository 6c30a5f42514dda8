// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/random.hpp"
#include "engines/sampling/softmax_weights.hpp"

namespace tidemill::engines {
namespace {

constexpr std::size_t kSortedTokens = 64;
constexpr double kDropped = -std::numeric_limits<double>::infinity();

Status out_of_range(const std::string& name, const std::string& range) {
  return invalid_argument("sampling." + name + " must be " + range);
}

bool reads_history(const SamplingOptions& options) {
  return options.repetition_penalty != 1.0F || options.frequency_penalty != 0.0F ||
         options.presence_penalty != 0.0F;
}

bool filters(const SamplingOptions& options) {
  return options.top_k > 0 || options.top_p < 1.0F || options.min_p > 0.0F;
}

Status check_largest(const Largest& largest) {
  if (largest.has_nan) {
    return {Errc::kInternal, "a logit is nan"};
  }
  if (!std::isfinite(largest.value)) {
    return {Errc::kInternal, "the largest logit is infinite"};
  }
  return {};
}

template <class Real>
std::int32_t first_equal(std::span<const Real> logits, Real largest) {
  return static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), largest) -
                                   logits.begin());
}

}  // namespace

Status validate(const SamplingOptions& options, std::int64_t vocabulary) {
  if (!std::isfinite(options.temperature) || options.temperature < 0.0F) {
    return out_of_range("temperature", "finite and at least 0");
  }
  if (options.temperature > 0.0F && options.temperature < kMinTemperature) {
    return out_of_range("temperature", "0 or at least 0.001");
  }
  if (options.top_k < 0) {
    return out_of_range("top_k", "at least 0");
  }
  if (!(options.top_p > 0.0F && options.top_p <= 1.0F)) {
    return out_of_range("top_p", "in (0, 1]");
  }
  if (!(options.min_p >= 0.0F && options.min_p <= 1.0F)) {
    return out_of_range("min_p", "in [0, 1]");
  }
  if (!std::isfinite(options.repetition_penalty) || options.repetition_penalty <= 0.0F) {
    return out_of_range("repetition_penalty", "finite and above 0");
  }
  if (!std::isfinite(options.frequency_penalty) || !std::isfinite(options.presence_penalty)) {
    return out_of_range("frequency_penalty and presence_penalty", "finite");
  }
  for (const auto& [token, bias] : options.logit_bias) {
    if (token < 0 || token >= vocabulary) {
      return out_of_range("logit_bias", "on tokens in 0.." + std::to_string(vocabulary - 1) +
                                            ", not " + std::to_string(token));
    }
    if (!std::isfinite(bias)) {
      return out_of_range("logit_bias", "finite (token " + std::to_string(token) + ")");
    }
  }
  return {};
}

void Sampler::penalize(const SamplingOptions& options, const TokenHistory& history) {
  counts_.resize(adjusted_.size(), 0);
  seen_.resize(adjusted_.size(), 0);
  for (const std::int32_t id : history.output_ids) {
    ++counts_[static_cast<std::size_t>(id)];
  }
  // Each token is penalized once, at its first occurrence. The order does not matter, since the
  // penalties of one token do not affect any other.
  for (const std::span<const std::int32_t> ids : {history.prompt_ids, history.output_ids}) {
    for (const std::int32_t id : ids) {
      const auto token = static_cast<std::size_t>(id);
      if (seen_[token] != 0) {
        continue;
      }
      seen_[token] = 1;
      const auto factor = static_cast<double>(options.repetition_penalty);
      double& logit = adjusted_[token];
      logit = logit > 0.0 ? logit / factor : logit * factor;
      if (counts_[token] > 0) {
        logit -= static_cast<double>(options.frequency_penalty) * counts_[token] +
                 static_cast<double>(options.presence_penalty);
      }
    }
  }
  for (const std::span<const std::int32_t> ids : {history.prompt_ids, history.output_ids}) {
    for (const std::int32_t id : ids) {
      counts_[static_cast<std::size_t>(id)] = 0;
      seen_[static_cast<std::size_t>(id)] = 0;
    }
  }
}

Status Sampler::adjust(std::span<const float> logits, const SamplingOptions& options,
                       const TokenHistory& history) {
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : options.logit_bias) {
    adjusted_[static_cast<std::size_t>(token)] += static_cast<double>(bias);
  }
  if (!reads_history(options)) {
    return {};
  }
  for (const std::span<const std::int32_t> ids : {history.prompt_ids, history.output_ids}) {
    for (const std::int32_t id : ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= logits.size()) {
        return invalid_argument("token " + std::to_string(id) + " is outside the vocabulary");
      }
    }
  }
  penalize(options, history);
  return {};
}

void Sampler::drop(std::size_t token) {
  adjusted_[token] = kDropped;
  weights_[token] = 0.0F;
}

void Sampler::keep_top_k(std::int32_t k) {
  if (static_cast<std::size_t>(k) >= adjusted_.size()) {
    return;
  }
  largest_ = adjusted_;
  const auto kth = largest_.begin() + (k - 1);
  std::nth_element(largest_.begin(), kth, largest_.end(), std::greater<>());
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    if (adjusted_[i] < *kth) {  // tokens that tie with the k-th are kept
      drop(i);
    }
  }
}

void Sampler::keep_top_p(float top_p) {
  order_.clear();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (adjusted_[i] > kDropped) {
      order_.push_back(static_cast<std::int32_t>(i));
    }
  }
  const auto better = [this](std::int32_t a, std::int32_t b) {
    const double left = adjusted_[static_cast<std::size_t>(a)];
    const double right = adjusted_[static_cast<std::size_t>(b)];
    return left != right ? left > right : a > b;
  };
  // A token is dropped if the cumulative mass from the least probable token up to and including it
  // is at most 1 - top_p, which means that the tokens better than it already have a mass of top_p.
  // All tokens before `kept` are better than all others and have the mass `mass`. The first token
  // to be dropped is in [kept, end).
  const double wanted = static_cast<double>(top_p) * sum_weights(weights_, block_sums_);
  const auto at = [this](std::size_t i) { return order_.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto weight_at = [this](std::size_t i) {
    return static_cast<double>(weights_[static_cast<std::size_t>(order_[i])]);
  };
  double mass = 0.0;
  std::size_t kept = 0;
  std::size_t end = order_.size();
  while (end - kept > kSortedTokens) {
    const std::size_t middle = kept + (end - kept) / 4;
    std::nth_element(at(kept), at(middle), at(end), better);
    double better_mass = 0.0;
    for (std::size_t i = kept; i < middle; ++i) {
      better_mass += weight_at(i);
    }
    if (mass + better_mass >= wanted) {
      end = middle;
    } else {
      mass += better_mass;
      kept = middle;
    }
  }
  std::sort(at(kept), at(end), better);
  while (kept < end && mass < wanted) {
    mass += weight_at(kept++);
  }
  for (std::size_t i = kept; i < order_.size(); ++i) {
    drop(static_cast<std::size_t>(order_[i]));
  }
}

Status Sampler::weigh(std::span<const float> logits, const SamplingOptions& options,
                      const TokenHistory& history) {
  const bool greedy = options.temperature == 0.0F;
  greedy_ = -1;
  weights_.resize(logits.size());
  block_sums_.resize((logits.size() + kWeightBlock - 1) / kWeightBlock);
  plain_ = options.logit_bias.empty() && !reads_history(options) && (greedy || !filters(options));
  if (plain_) {
    const Largest largest = largest_of(logits);
    TIDEMILL_RETURN_IF_ERROR(check_largest(largest));
    if (greedy) {
      greedy_ = first_equal(logits, static_cast<float>(largest.value));
      return {};
    }
    softmax_weights(logits, static_cast<float>(largest.value), options.temperature, weights_);
    (void)sum_weights(weights_, block_sums_);
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(adjust(logits, options, history));
  const Largest largest = largest_of(std::span<const double>(adjusted_));
  TIDEMILL_RETURN_IF_ERROR(check_largest(largest));
  if (greedy) {
    greedy_ = first_equal(std::span<const double>(adjusted_), largest.value);
    return {};
  }
  softmax_weights(adjusted_, largest.value, options.temperature, weights_);
  if (options.top_k > 0) {
    keep_top_k(options.top_k);
  }
  if (options.top_p < 1.0F) {
    keep_top_p(options.top_p);
  }
  if (options.min_p > 0.0F) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] < options.min_p) {  // the best token's weight is exactly 1
        drop(i);
      }
    }
  }
  (void)sum_weights(weights_, block_sums_);
  return {};
}

Result<std::int32_t> Sampler::sample_with(std::span<const float> logits,
                                          const SamplingOptions& options,
                                          const TokenHistory& history, double uniform) {
  TIDEMILL_RETURN_IF_ERROR(weigh(logits, options, history));
  return greedy_ >= 0 ? greedy_ : sample_by_weight(weights_, block_sums_, uniform);
}

Result<std::int32_t> Sampler::sample(std::span<const float> logits, const SamplingOptions& options,
                                     const TokenHistory& history, const SamplingKey& key) {
  const double uniform = keyed_uniform(key.seed, key.sample.value, key.position);
  Result<std::int32_t> token = sample_with(logits, options, history, uniform);
  if (!token.ok()) {
    return token.status().with_context("sample " + std::to_string(key.sample.value) +
                                       ", position " + std::to_string(key.position));
  }
  return token;
}

Result<std::int64_t> Sampler::distribution(std::span<const float> logits,
                                           const SamplingOptions& options,
                                           const TokenHistory& history,
                                           std::span<float> probabilities) {
  if (probabilities.size() != logits.size()) {
    return invalid_argument("probabilities and logits must have the same size");
  }
  TIDEMILL_RETURN_IF_ERROR(weigh(logits, options, history));
  if (greedy_ >= 0) {
    std::fill(probabilities.begin(), probabilities.end(), 0.0F);
    probabilities[static_cast<std::size_t>(greedy_)] = 1.0F;
    return 1;
  }
  const double total = sum_weights(weights_, block_sums_);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    probabilities[i] = static_cast<float>(static_cast<double>(weights_[i]) / total);
  }
  const auto is_kept = [](auto logit) { return static_cast<double>(logit) > kDropped; };
  return plain_ ? std::count_if(logits.begin(), logits.end(), is_kept)
                : std::count_if(adjusted_.begin(), adjusted_.end(), is_kept);
}

}  // namespace tidemill::engines
