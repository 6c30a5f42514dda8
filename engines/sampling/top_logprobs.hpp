// SPDX-License-Identifier: Apache-2.0
// The most probable tokens of a row of logits, for requests that ask for alternatives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::engines {

/// A token and its log-probability in nats.
struct TokenLogprob {
  std::int32_t token = -1;
  float logprob = 0.0F;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TokenLogprob& x) {
  return f(x.token, x.logprob);
}

/// Returns the `count` tokens with the largest logits, or all if there are fewer, with
/// log_softmax(logits * inv_temperature). The largest logit comes first; of equal logits, the
/// lower token does.
///
/// `known` is a token of which the log-probability has been computed already, which fixes the sum
/// of the softmax. If the result contains it, its log-probability has the same bits. Without it
/// (token -1), the sum is computed in double precision. Requires finite logits, and a `known` token
/// below their number.
[[nodiscard]] std::vector<TokenLogprob> top_logprobs(std::span<const float> logits,
                                                     float inv_temperature, std::size_t count,
                                                     TokenLogprob known = {});

}  // namespace tidemill::engines
