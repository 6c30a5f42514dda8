// SPDX-License-Identifier: Apache-2.0
// An algorithm as the actors use it: what it decides about a group, and the loss of a minibatch.
#pragma once

#include <cstdint>

#include "actors/advantage/spawn.hpp"
#include "actors/device/spawn.hpp"
#include "engines/rl/algorithm.hpp"
#include "engines/rl/policy_token_loss.hpp"

namespace tidemill::actors {

/// Makes the decision about groups: rewards shaped for length, groups without signal filtered by
/// their raw rewards, advantages.
/// The decision's errors: those of the algorithm's functions, naming the sample.
[[nodiscard]] DecideGroup make_group_decision(const engines::Algorithm& algorithm);

/// Makes the policy loss of minibatches.
/// The loss's errors: those of `PolicyTokenLoss`.
[[nodiscard]] LossFactory make_policy_loss(const engines::PolicyTokenLossOptions& options);

/// Makes the supervised loss of minibatches: the mean over their targets.
[[nodiscard]] LossFactory make_sft_loss();

}  // namespace tidemill::actors
