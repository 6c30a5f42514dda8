// SPDX-License-Identifier: Apache-2.0
// Advantages of samples compared with the other samples of their group.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.hpp"
#include "base/status.hpp"

namespace tidemill::engines {

/// One reward per sample. Group ids may come in any order.
///
/// Shapes: `rewards` (N), `groups` (N), `ids` (N) or empty; ids name samples in refusals.
template <class Real>
struct GroupRewards {
  std::span<const Real> rewards;
  std::span<const GroupId> groups;
  std::span<const SampleId> ids;
};

/// What a group of one becomes.
enum class SingletonRule : std::uint8_t {
  kZero,    // advantage 0
  kRaw,     // as if the group's mean were 0 and its deviation 1
  kRefuse,  // `singleton_group`
};

/// What centred rewards are divided by.
enum class AdvantageScale : std::uint8_t {
  kGroupStd,          // the group's deviation + eps
  kBatchStd,          // the deviation of all raw rewards + eps (Lite-PPO, arXiv:2508.08221)
  kBatchCenteredStd,  // the deviation of all centred rewards + eps
  kNone,              // 1 (Dr. GRPO, arXiv:2503.20783)
};

struct GrpoAdvantageOptions {
  AdvantageScale scale = AdvantageScale::kGroupStd;
  /// A deviation divides by n - ddof; 0 or 1.
  int ddof = 1;
  /// Added to the deviation, in reward units; >= 0.
  double eps = 1e-6;
  SingletonRule singleton = SingletonRule::kZero;
};

/// Computes `A[i] = (R[i] - mean_g) / d`, `d` as `options.scale` says.
///
/// Equal rewards in a group give exactly 0. Under a batch scale, a batch without any spread gives
/// exactly 0 too, to raw groups of one as well: there is nothing to scale by.
///
/// Shapes: `advantages` (N).
/// Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2.
/// Errors: `bad_shape`, `bad_option`, `non_finite` naming the sample, `singleton_group` naming the
/// group, `non_finite_result`.
/// Threads: pure function, as all functions of this folder are.
template <class Real>
[[nodiscard]] Status grpo_advantages(const GroupRewards<Real>& samples,
                                     const GrpoAdvantageOptions& options,
                                     std::span<Real> advantages);

struct RlooAdvantageOptions {
  SingletonRule singleton = SingletonRule::kZero;
  /// Afterwards `(A - mean) / (std + eps)` over the batch, `std` with n - 1; equal advantages give
  /// exactly 0.
  bool normalize = false;
  double eps = 1e-4;
};

/// Computes `A[i] = R[i] - mean of the other rewards of the group`.
///
/// Equal rewards in a group give exactly 0.
/// Shapes: `advantages` (N).
/// Source: Ahmadian et al. 2024, arXiv:2402.14740, section 2.2 (REINFORCE leave-one-out).
/// Errors: as `grpo_advantages`.
template <class Real>
[[nodiscard]] Status rloo_advantages(const GroupRewards<Real>& samples,
                                     const RlooAdvantageOptions& options,
                                     std::span<Real> advantages);

}  // namespace tidemill::engines
