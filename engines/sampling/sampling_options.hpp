// SPDX-License-Identifier: Apache-2.0
// The options of sampling a token, and what the choice depends on besides the logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.hpp"

namespace tidemill::engines {

/// The smallest temperature above 0. Logits divided by less could overflow float.
inline constexpr float kMinTemperature = 1e-3F;

/// How the tokens of one request are sampled. The options act in Hugging Face's order: bias,
/// penalties, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  /// Divides the logits. At least `kMinTemperature`, or 0 for greedy sampling, which chooses the
  /// first of the largest logits after bias and penalties.
  float temperature = 1.0F;
  /// Keeps the k most probable tokens and those that tie with the k-th. 0 keeps all.
  std::int32_t top_k = 0;
  /// Keeps the smallest set of most probable tokens whose mass is at least this. 1 keeps all.
  float top_p = 1.0F;
  /// Drops tokens whose probability is below this share of the largest one. 0 drops none.
  float min_p = 0.0F;
  /// Divides positive and multiplies negative logits of tokens in prompt or response. 1 has no
  /// effect.
  float repetition_penalty = 1.0F;
  /// Subtracted from a token's logit once for each of its occurrences in the response.
  float frequency_penalty = 0.0F;
  /// Subtracted from a token's logit once if the token occurs in the response.
  float presence_penalty = 0.0F;
  /// Pairs of (token, bias). The bias is added to the token's logit before all other steps.
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

/// The previous tokens of a sequence. Penalties depend on them.
struct TokenHistory {
  std::span<const std::int32_t> prompt_ids;
  std::span<const std::int32_t> output_ids;
};

/// The tokens that may be sampled.
struct TokenMask {
  /// Bit t % 64 of word t / 64 allows token t. Empty: all tokens are allowed.
  std::span<const std::uint64_t> words;

  [[nodiscard]] bool allows(std::size_t token) const noexcept {
    return words.empty() || (words[token / 64] >> (token % 64) & 1U) != 0;
  }
};

/// Identifies the random number that a token is sampled with. Equal keys give equal numbers.
struct SamplingKey {
  std::uint64_t seed = 0;
  SampleId sample;
  std::uint64_t position = 0;  // of the sampled token in its sequence
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, SamplingOptions& x) {
  return f(x.temperature, x.top_k, x.top_p, x.min_p, x.repetition_penalty, x.frequency_penalty,
           x.presence_penalty, x.logit_bias);
}

}  // namespace tidemill::engines
