// SPDX-License-Identifier: Apache-2.0
// Writes the protobuf results of Tinker's API.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/gateway/tinker/calls.hpp"
#include "engines/rollout_engine.hpp"

namespace tidemill::actors::tinker {

/// Returns the result of `forward_backward`: the log-probabilities of the positions of each datum
/// (0 where the position is no target), and the summed loss. `logprobs` has a row (T) for each
/// sequence of the call, whose first entry belongs to no position.
[[nodiscard]] std::string forward_result(std::span<const std::vector<float>> logprobs, double loss);

/// Returns the result of `asample`. `results` has one entry for each sample, none of which has
/// failed; what belongs to the prompt is taken from the first.
[[nodiscard]] std::string sample_result(const SampleCall& call,
                                        std::span<const engines::RolloutResult> results);

}  // namespace tidemill::actors::tinker
