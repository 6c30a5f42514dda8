// SPDX-License-Identifier: Apache-2.0
// The algorithms of the `rl` workflow, as data: one row each. A new algorithm is a row here and
// pure functions beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "engines/rl/group_advantage.hpp"
#include "engines/rl/policy_options.hpp"
#include "engines/rl/shaping.hpp"

namespace tidemill::engines {

/// How rewards of a group become advantages.
enum class AdvantageKind : std::uint8_t { kGrpo, kRloo };

/// Computes one advantage per sample of a group: a pure function.
/// Shapes: `samples` (G), advantages (G).
/// Errors: naming the sample, e.g. for a reward that is not finite.
using AdvantageFunction =
    std::function<Status(const GroupRewards<double>& samples, std::span<double> advantages)>;

/// One algorithm with its published defaults. A copy may be changed freely.
struct Algorithm {
  std::string name;
  std::string summary;  // one line for `explain`
  AdvantageKind advantage = AdvantageKind::kGrpo;
  AdvantageFunction own_advantages;  // of an embedding program, in place of `advantage`
  GrpoAdvantageOptions grpo;         // read by kGrpo
  RlooAdvantageOptions rloo;         // read by kRloo
  /// Clipping, KL and aggregation. An aggregation with a horizon takes the largest number of
  /// response tokens: `policy.aggregate.horizon`, which the caller sets.
  PolicyLossOptions policy;
  /// Groups that do not pass are filtered before training; none: all are trained.
  std::optional<GroupFilterOptions> group_filter;
  /// Shapes rewards of long answers; none in every row, since only the user knows the lengths.
  std::optional<OverlongOptions> overlong;
};

/// Returns the table, in the order it is listed to people.
///
///     name     advantage              loss                 aggregation          filter
///     grpo     (R - mean) / std       clip .2/.2           seq-mean-token-mean  -
///     dr_grpo  R - mean               clip .2/.2           batch-fixed-length   -
///     dapo     (R - mean) / std       clip .2/.28          token-mean           not all equal
///     rloo     R - mean of the rest   clip .2/.2           seq-mean-token-sum   -
///
/// KL coefficient 0 in all. RLOO is published as REINFORCE on whole answers; on policy the clipped
/// loss has exactly its gradient, and off policy it corrects where REINFORCE would be biased.
/// Sources: GRPO arXiv:2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, RLOO 2402.14740.
[[nodiscard]] std::vector<Algorithm> algorithms();

/// Returns the row called `name`.
/// Errors: `kInvalidArgument` with the known names.
[[nodiscard]] Result<Algorithm> find_algorithm(std::string_view name);

}  // namespace tidemill::engines
