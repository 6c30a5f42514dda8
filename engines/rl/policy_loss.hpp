// SPDX-License-Identifier: Apache-2.0
// The policy loss of a batch: PPO and its variants, with corrections for stale tokens, a KL term
// and exact denominators.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.hpp"
#include "engines/rl/policy_options.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {

/// The columns of a batch. All but `logprobs` are constants of the gradient.
///
/// Shapes: all (N). Optional ones may be empty.
template <class Real>
struct PolicyLossInputs {
  TokenRows rows;
  std::span<const Real> logprobs;
  /// Of the policy the update starts from; empty: the current one, so every ratio is 1.
  std::span<const Real> proximal_logprobs;
  std::span<const Real> advantages;
  /// Of the policy that sampled; needed by `rollout_correction`; `off_policy_delta` takes the
  /// proximal ones when it is empty.
  std::span<const Real> behavior_logprobs;
  /// Needed when `kl_coefficient` is not 0.
  std::span<const Real> reference_logprobs;
  /// Optional factor of each token's loss. 1 changes no bit; 0 gives a gradient of exactly 0.
  std::span<const Real> token_weights;
};

template <class Real>
struct PolicyLossOutputs {
  std::span<Real> gradient;  // (N) of the loss, with respect to logprobs
  /// (N) token losses with all weights, without the KL term, before aggregation; or empty.
  std::span<Real> per_token;
};

/// Figures of a batch; all but the maximum add up over micro-batches.
struct PolicyLossReport {
  double loss = 0.0;
  std::int64_t tokens = 0;          // valid ones
  std::int64_t kept_tokens = 0;     // those that rejection left
  std::int64_t clipped_tokens = 0;  // valid ones where PPO's clip acts
  double ratio_sum = 0.0;           // of importance ratios over valid tokens
  double ratio_max = 0.0;
};

/// Computes the loss and its gradient.
///
/// Per token: the loss of `kind`, times the correction weight, the off-policy sequence mask and
/// the token weight, plus `kl_coefficient` times the KL estimate (which of the weights only the
/// token weight multiplies). Tokens that rejection removed contribute nothing. `aggregate` then
/// makes one number of them.
///
/// Sources: PPO arXiv:1707.06347; dual clip 1912.09729; clip-higher (DAPO) 2503.14476; GSPO
/// 2507.18071; CISPO (MiniMax-M1) 2506.13585; SAPO 2511.20347; decoupled PPO (AReaL) 2505.24298.
/// Errors: `bad_shape`, `bad_mask`, `bad_option`, `non_finite` naming row and token,
/// `non_finite_result`.
template <class Real>
[[nodiscard]] Result<PolicyLossReport> policy_loss(const PolicyLossInputs<Real>& inputs,
                                                   const PolicyLossOptions& options,
                                                   const PolicyLossOutputs<Real>& out);

}  // namespace tidemill::engines
