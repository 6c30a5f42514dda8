// SPDX-License-Identifier: Apache-2.0
// Returns and advantages of single tokens: reward shaping by KL, REINFORCE++, ReMax, GAE.
//
// Shapes of all functions: B rows, N positions; token columns (N), row columns (B). Optional
// columns may be empty. Errors of all functions: `bad_shape`, `bad_mask`, `bad_option`,
// `non_finite` naming row and token, `non_finite_result`. Outputs at masked positions are
// exactly 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.hpp"
#include "engines/rl/group_advantage.hpp"
#include "engines/rl/token_rows.hpp"
#include "engines/rl/whiten.hpp"

namespace tidemill::engines {

/// How a discounted sum treats masked positions.
enum class MaskedSteps : std::uint8_t {
  kSkip,      // they are not steps: sums are carried across them unchanged
  kZeroStep,  // they are steps with reward 0 and value 0
};

// -- token rewards ---------------------------------------------------------------------------

/// The columns that `token_rewards` reads.
template <class Real>
struct TokenRewardInputs {
  TokenRows rows;
  std::span<const Real> rewards;  // (B)
  std::span<const Real> kl;       // (N) or empty
};

/// Configures `token_rewards`.
struct TokenRewardOptions {
  double kl_coefficient = 0.0;
  /// If set, rewards are clipped to +- this.
  std::optional<double> reward_clip;
};

/// Computes `-kl_coefficient * kl[t]`, plus the clipped reward at the last valid token of a row.
template <class Real>
[[nodiscard]] Status token_rewards(const TokenRewardInputs<Real>& inputs,
                                   const TokenRewardOptions& options, std::span<Real> out);

// -- REINFORCE++ -----------------------------------------------------------------------------

/// The columns that `reinforce_advantages` reads.
template <class Real>
struct ReinforceInputs {
  TokenRows rows;
  std::span<const Real> token_rewards;  // (N)
};

/// Configures `reinforce_advantages`.
struct ReinforceOptions {
  double gamma = 1.0;  // in [0, 1]
  bool whiten = true;
  WhitenOptions whitening;
  MaskedSteps masked = MaskedSteps::kSkip;
};

/// Outputs of `reinforce_advantages`, `remax_reward_to_go` and `gae`.
template <class Real>
struct ReturnsAndAdvantages {
  std::span<Real> returns;     // (N)
  std::span<Real> advantages;  // (N)
};

/// Computes returns `G[t] = r[t] + gamma * G[next]`. The advantages are `whiten(G)` if
/// `options.whiten` is set, otherwise G.
/// Source: Hu et al. 2025, arXiv:2501.03262 (REINFORCE++).
template <class Real>
[[nodiscard]] Status reinforce_advantages(const ReinforceInputs<Real>& inputs,
                                          const ReinforceOptions& options,
                                          const ReturnsAndAdvantages<Real>& out);

/// The columns that `group_baseline_advantages` reads.
template <class Real>
struct GroupBaselineInputs {
  TokenRows rows;
  std::span<const Real> rewards;    // (B)
  std::span<const GroupId> groups;  // (B)
};

/// Configures `group_baseline_advantages`.
struct GroupBaselineOptions {
  SingletonRule singleton = SingletonRule::kZero;
  bool whiten = true;
  WhitenOptions whitening;
};

/// Outputs of `group_baseline_advantages`.
template <class Real>
struct CenteredAndAdvantages {
  std::span<Real> centered;    // (B)
  std::span<Real> advantages;  // (N)
};

/// Computes `centered[i] = R[i] - mean_g` (exactly 0 for equal rewards) and copies it to the valid
/// tokens of row i. If `options.whiten` is set, the advantages are whitened over the batch.
/// Source: Hu et al. 2025, arXiv:2501.03262 (REINFORCE++ with baseline).
/// Errors: `singleton_group` in addition to the common ones.
template <class Real>
[[nodiscard]] Status group_baseline_advantages(const GroupBaselineInputs<Real>& inputs,
                                               const GroupBaselineOptions& options,
                                               const CenteredAndAdvantages<Real>& out);

// -- ReMax -----------------------------------------------------------------------------------

/// The columns that `remax_reward_to_go` reads.
template <class Real>
struct RemaxRewardToGoInputs {
  TokenRows rows;
  std::span<const Real> token_rewards;  // (N)
  std::span<const Real> baseline;       // (B) reward of the greedy response
};

/// Computes `returns[t] = sum over k >= t of r[k]` and `A[t] = returns[t] - baseline`.
/// Source: Li et al. 2023, arXiv:2310.10505.
template <class Real>
[[nodiscard]] Status remax_reward_to_go(const RemaxRewardToGoInputs<Real>& inputs,
                                        const ReturnsAndAdvantages<Real>& out);

/// The columns that `remax_advantages` reads.
template <class Real>
struct RemaxInputs {
  TokenRows rows;
  std::span<const Real> rewards;   // (B)
  std::span<const Real> baseline;  // (B) reward of the greedy response
  std::span<const Real> kl;        // (N) or empty
};

/// Configures `remax_advantages`.
struct RemaxOptions {
  /// If set, `R - baseline` is clipped to +- this.
  std::optional<double> clip;
  double gamma = 1.0;  // in [0, 1]
  double kl_coefficient = 0.0;
};

/// Computes `A[t] = clip(R - baseline) * gamma^(valid tokens after t) - kl_coefficient * kl[t]`,
/// the form of the authors' own code.
/// Source: Li et al. 2023, arXiv:2310.10505.
template <class Real>
[[nodiscard]] Status remax_advantages(const RemaxInputs<Real>& inputs, const RemaxOptions& options,
                                      std::span<Real> advantages);

// -- generalized advantage estimation --------------------------------------------------------

/// The columns that `gae` reads.
template <class Real>
struct GaeInputs {
  TokenRows rows;
  std::span<const Real> token_rewards;      // (N)
  std::span<const Real> values;             // (N)
  std::span<const Real> bootstrap;          // (B), read for truncated rows only; or empty
  std::span<const std::uint8_t> truncated;  // (B) 0 or 1; empty if no row is truncated
};

/// Configures `gae`.
struct GaeOptions {
  double gamma = 1.0;   // in [0, 1]
  double lambda = 1.0;  // in [0, 1]
  bool whiten = false;
  WhitenOptions whitening;
  /// `kZeroStep` cannot be combined with truncated rows.
  MaskedSteps masked = MaskedSteps::kSkip;
};

/// Computes, from right to left, `delta = r[t] + gamma * V[next] - V[t]` and
/// `A[t] = delta + gamma * lambda * A[next]`. `returns = A + V`, computed before whitening.
///
/// After the last valid token, V is `bootstrap` in truncated rows and 0 in all other rows.
/// Source: Schulman et al. 2015, arXiv:1506.02438.
template <class Real>
[[nodiscard]] Status gae(const GaeInputs<Real>& inputs, const GaeOptions& options,
                         const ReturnsAndAdvantages<Real>& out);

}  // namespace tidemill::engines
