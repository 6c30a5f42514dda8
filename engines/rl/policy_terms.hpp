// SPDX-License-Identifier: Apache-2.0
// The loss of one token and its derivatives, for every kind of policy loss. `policy_loss` calls it.
#pragma once

#include "engines/rl/policy_options.hpp"

namespace tidemill::engines {

/// A token's importance ratio, computed from its clamped logarithm.
struct ImportanceRatio {
  double value = 1.0;
  double slope = 1.0;  // d value / d log-ratio; 0 outside the clamp
};

/// Computes `exp(clip(log_ratio, +-clamp))`.
[[nodiscard]] ImportanceRatio importance_ratio(double log_ratio,
                                               const std::optional<double>& clamp);

/// The values that a token's loss is computed from.
struct PolicyToken {
  ImportanceRatio ratio;
  double advantage = 0.0;
  double logprob = 0.0;
};

/// A token's loss and its partial derivatives.
struct PolicyTerm {
  double value = 0.0;
  double by_logprob = 0.0;    // where the formula contains the log-probability itself
  double by_log_ratio = 0.0;  // through the importance ratio
};

/// Computes the loss of one token with the formula of `options.kind`.
[[nodiscard]] PolicyTerm policy_term(const PolicyToken& token, const PolicyLossOptions& options);

/// Returns whether the ratio is outside PPO's bounds in the direction in which `advantage`, the
/// token's own, pushes it.
[[nodiscard]] bool is_clipped(double ratio, double advantage, const PolicyLossOptions& options);

}  // namespace tidemill::engines
