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

/// The columns of a batch. The gradient treats all of them except `logprobs` as constants.
///
/// Shapes: all (N). Optional columns may be empty.
template <class Real>
struct PolicyLossInputs {
  TokenRows rows;
  std::span<const Real> logprobs;
  /// Under the policy that the update starts from. If empty, `logprobs` are used, and every ratio
  /// is 1.
  std::span<const Real> proximal_logprobs;
  std::span<const Real> advantages;
  /// Under the policy that sampled the tokens. Required by `rollout_correction`. If empty,
  /// `off_policy_delta` uses the proximal log-probabilities.
  std::span<const Real> behavior_logprobs;
  /// Required if `kl_coefficient` is not 0.
  std::span<const Real> reference_logprobs;
  /// Optional factors of the token losses. A factor of 1 changes no bit, and a factor of 0 gives a
  /// gradient of exactly 0.
  std::span<const Real> token_weights;
};

/// The outputs of `policy_loss`. Borrows: all spans.
template <class Real>
struct PolicyLossOutputs {
  std::span<Real> gradient;  // (N) of the loss with respect to `logprobs`
  /// (N) token losses with all weights applied, before the KL term and the aggregation; or empty.
  std::span<Real> per_token;
};

/// The loss of a batch and its metrics. All except the maximum add up over micro-batches.
struct PolicyLossReport {
  double loss = 0.0;
  std::int64_t tokens = 0;          // valid tokens
  std::int64_t kept_tokens = 0;     // valid tokens that were not rejected
  std::int64_t clipped_tokens = 0;  // valid tokens whose ratio PPO would clip
  double ratio_sum = 0.0;           // sum of the importance ratios of valid tokens
  double ratio_max = 0.0;
};

/// Computes the loss and its gradient.
///
/// The loss of a token is the loss of `kind`, multiplied by the correction weight, the off-policy
/// sequence mask and the token weight, plus `kl_coefficient` times the KL estimate. Of these
/// weights, only the token weight multiplies the KL estimate. Rejected tokens contribute nothing.
/// The token losses are then aggregated with `options.aggregate`.
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
