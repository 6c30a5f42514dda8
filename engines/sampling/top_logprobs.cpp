// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/top_logprobs.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::engines {
namespace {

// Returns the logarithm of the sum of exp(logit * inv_temperature).
double log_sum(std::span<const float> logits, double inv_temperature, double largest) {
  double sum = 0.0;
  for (const float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - largest) * inv_temperature);
  }
  return largest * inv_temperature + std::log(sum);
}

}  // namespace

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, float inv_temperature,
                                       std::size_t count, TokenLogprob known) {
  // A heap of the best tokens so far, with the worst of them in front.
  const auto is_better = [&](const TokenLogprob& a, const TokenLogprob& b) {
    const float x = logits[static_cast<std::size_t>(a.token)];
    const float y = logits[static_cast<std::size_t>(b.token)];
    return x != y ? x > y : a.token < b.token;
  };
  std::vector<TokenLogprob> best;
  best.reserve(count + 1);
  float worst = 0.0F;
  for (std::size_t i = 0; i < logits.size() && count > 0; ++i) {
    if (best.size() == count && logits[i] <= worst) {
      continue;
    }
    best.push_back({static_cast<std::int32_t>(i), 0.0F});
    std::push_heap(best.begin(), best.end(), is_better);
    if (best.size() > count) {
      std::pop_heap(best.begin(), best.end(), is_better);
      best.pop_back();
    }
    worst = logits[static_cast<std::size_t>(best.front().token)];
  }
  std::sort(best.begin(), best.end(), is_better);
  if (best.empty()) {
    return best;
  }
  const auto scaled = [&](std::int32_t token) {
    return static_cast<double>(logits[static_cast<std::size_t>(token)]) * inv_temperature;
  };
  const double sum =
      known.token >= 0
          ? scaled(known.token) - static_cast<double>(known.logprob)
          : log_sum(logits, inv_temperature, logits[static_cast<std::size_t>(best.front().token)]);
  for (TokenLogprob& one : best) {
    one.logprob =
        one.token == known.token ? known.logprob : static_cast<float>(scaled(one.token) - sum);
  }
  return best;
}

}  // namespace tidemill::engines
