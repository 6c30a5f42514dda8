// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace tidemill::engines {

/// The least temperature above 0; logits divided by less could leave the floats.
inline constexpr float kLeastTemperature = 1e-3F;

/// How one request's next tokens are drawn. Filters act in Hugging Face's order: bias, penalties,
/// temperature, top-k, top-p, min-p.
struct SamplingOptions {
  /// Divides the logits, at least by `kLeastTemperature`; 0 is greedy: the first largest logit
  /// after bias and penalties.
  float temperature = 1.0F;
  /// Keeps the k most probable tokens, ties with the k-th included; 0: all.
  std::int32_t top_k = 0;
  /// Keeps the smallest set of most probable tokens whose mass reaches this; 1: all.
  float top_p = 1.0F;
  /// Drops tokens less probable than this share of the best one; 0: none.
  float min_p = 0.0F;
  /// Divides positive and multiplies negative logits of tokens in prompt or response; 1: off.
  float repetition_penalty = 1.0F;
  /// Subtracted once per occurrence in the response.
  float frequency_penalty = 0.0F;
  /// Subtracted once if the token occurs in the response.
  float presence_penalty = 0.0F;
  /// Added to the logits first: (token, bias).
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SamplingOptions& x) {
  return f(x.temperature, x.top_k, x.top_p, x.min_p, x.repetition_penalty, x.frequency_penalty,
           x.presence_penalty, x.logit_bias);
}

}  // namespace tidemill::engines
