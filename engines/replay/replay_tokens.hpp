// SPDX-License-Identifier: Apache-2.0
// Tokens and log-probabilities as functions of the digest of the weights. The replay engines of one
// model must agree on them. Private to this folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tidemill::engines {

/// Returns 64 bits that represent the weights named by `digest`.
[[nodiscard]] std::uint64_t replay_weight_bits(const std::string& digest);

/// Returns the token at `position` of the response to a request with `draw_key` under the weights.
[[nodiscard]] std::int32_t replay_token(std::uint64_t seed, std::uint64_t weight_bits,
                                        std::uint64_t draw_key, std::uint64_t position);

/// Returns the log-probability of `token` at index `t` of a sequence under the weights.
[[nodiscard]] float replay_logprob(std::uint64_t weight_bits, std::int32_t token, std::uint64_t t);

}  // namespace tidemill::engines
