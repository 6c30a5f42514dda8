// SPDX-License-Identifier: Apache-2.0
// What the replayed views of one model must agree on: tokens and log-probabilities as functions of
// the weights' digest. Private to the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/ids.hpp"

namespace tidemill::engines {

/// Returns 64 bits that stand for the weights named by `digest`.
[[nodiscard]] std::uint64_t replay_weight_bits(const std::string& digest);

/// Returns the token at `position` of the sample's response under the weights.
[[nodiscard]] std::int32_t replay_token(std::uint64_t seed, std::uint64_t weight_bits, SampleId id,
                                        std::uint64_t position);

/// Returns the log-probability that the weights give to the token at index `t` of a sequence.
[[nodiscard]] float replay_logprob(std::uint64_t weight_bits, std::int32_t token, std::uint64_t t);

}  // namespace tidemill::engines
