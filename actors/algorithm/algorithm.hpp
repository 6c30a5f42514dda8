// SPDX-License-Identifier: Apache-2.0
// Adapts the algorithms of engines/rl to actors: decisions about groups, and losses of minibatches.
#pragma once

#include <cstdint>

#include "actors/advantage/spawn.hpp"
#include "actors/device/spawn.hpp"
#include "engines/rl/algorithm.hpp"
#include "engines/rl/policy_token_loss.hpp"

namespace tidemill::actors {

/// Returns a function that decides about groups with `algorithm`. It filters groups without a
/// signal by their raw rewards, applies the penalty for long responses, and computes the
/// advantages.
/// Errors of the function: those of the algorithm's functions, naming the sample.
[[nodiscard]] DecideGroup make_group_decision(const engines::Algorithm& algorithm);

/// Returns a factory of the policy losses of minibatches.
/// Errors of the factory and of the losses: those of `PolicyTokenLoss`.
[[nodiscard]] LossFactory make_policy_loss(const engines::PolicyTokenLossOptions& options);

/// Returns a factory of the supervised losses of minibatches, which are means over their targets.
[[nodiscard]] LossFactory make_sft_loss();

}  // namespace tidemill::actors
