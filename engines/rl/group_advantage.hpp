// SPDX-License-Identifier: Apache-2.0
// Advantages computed from how a sample's reward compares with the rest of its group.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.hpp"
#include "base/status.hpp"

namespace tidemill::engines {

/// One reward per sample. Group ids may come in any order.
///
/// Shapes: `rewards` (N), `groups` (N), `ids` (N) or empty. `ids` name the samples in refusals.
template <class Real>
struct GroupRewards {
  std::span<const Real> rewards;
  std::span<const GroupId> groups;
  std::span<const SampleId> ids;
};

/// How a group with a single sample is handled.
enum class SingletonRule : std::uint8_t {
  kZero,    // its advantage is 0
  kRaw,     // computed as if the group's mean were 0 and its deviation 1
  kRefuse,  // refused with `singleton_group`
};

/// What centered rewards are divided by.
enum class AdvantageScale : std::uint8_t {
  kGroupStd,          // the group's deviation + eps
  kBatchStd,          // the deviation of all raw rewards + eps (Lite-PPO, arXiv:2508.08221)
  kBatchCenteredStd,  // the deviation of all centered rewards + eps
  kNone,              // 1 (Dr. GRPO, arXiv:2503.20783)
};

/// Configures `grpo_advantages`.
struct GrpoAdvantageOptions {
  AdvantageScale scale = AdvantageScale::kGroupStd;
  /// The deviation divides by n - ddof. 0 or 1.
  int ddof = 1;
  /// Added to the deviation, in reward units; >= 0.
  double eps = 1e-6;
  SingletonRule singleton = SingletonRule::kZero;
};

/// Computes `A[i] = (R[i] - mean_g) / d`, where `options.scale` selects `d`.
///
/// Equal rewards in a group give exactly 0. If `d` is a deviation of the batch and that is zero,
/// every advantage is exactly 0, including those of single samples under `kRaw`.
///
/// Shapes: `advantages` (N).
/// Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2.
/// Errors: `bad_shape`, `bad_option`, `non_finite` naming the sample, `singleton_group` naming the
/// group, `non_finite_result`.
/// Threads: a pure function, like all functions of this folder.
template <class Real>
[[nodiscard]] Status grpo_advantages(const GroupRewards<Real>& samples,
                                     const GrpoAdvantageOptions& options,
                                     std::span<Real> advantages);

/// Configures `rloo_advantages`.
struct RlooAdvantageOptions {
  SingletonRule singleton = SingletonRule::kZero;
  /// Replaces the advantages with `(A - mean) / (std + eps)` over the batch, where `std` divides by
  /// n - 1. Equal advantages give exactly 0.
  bool normalize = false;
  double eps = 1e-4;
};

/// Computes `A[i] = R[i] - mean of the other rewards of the group`.
///
/// Equal rewards in a group give exactly 0.
/// Shapes: `advantages` (N).
/// Source: Ahmadian et al. 2024, arXiv:2402.14740, section 2.2 (REINFORCE leave-one-out).
/// Errors: those of `grpo_advantages`.
template <class Real>
[[nodiscard]] Status rloo_advantages(const GroupRewards<Real>& samples,
                                     const RlooAdvantageOptions& options,
                                     std::span<Real> advantages);

}  // namespace tidemill::engines
