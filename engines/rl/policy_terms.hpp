// SPDX-License-Identifier: Apache-2.0
// The loss of one token for every kind of policy loss, with its derivatives. Used by
// `policy_loss`.
#pragma once

#include "engines/rl/policy_options.hpp"

namespace tidemill::engines {

/// A token's importance ratio, after the clamp of its logarithm.
struct ImportanceRatio {
  double value = 1.0;
  double slope = 1.0;  // d value / d log-ratio; 0 where the clamp acts
};

/// Computes `exp(clip(log_ratio, +-clamp))`.
[[nodiscard]] ImportanceRatio importance_ratio(double log_ratio,
                                               const std::optional<double>& clamp);

/// What a token's loss is computed from.
struct PolicyToken {
  ImportanceRatio ratio;
  double advantage = 0.0;
  double logprob = 0.0;
};

/// A token's loss and its partial derivatives.
struct PolicyTerm {
  double value = 0.0;
  double by_logprob = 0.0;    // where the loss names the log-probability itself
  double by_log_ratio = 0.0;  // through the importance ratio
};

/// Computes the loss of one token as `PolicyLossKind` says.
[[nodiscard]] PolicyTerm policy_term(const PolicyToken& token, const PolicyLossOptions& options);

/// Returns whether the ratio has left PPO's bounds in the direction that `advantage`, the token's
/// own, asked for.
[[nodiscard]] bool is_clipped(double ratio, double advantage, const PolicyLossOptions& options);

}  // namespace tidemill::engines
