// SPDX-License-Identifier: Apache-2.0
// The algorithms of the `rl` workflow as a table. A new algorithm is a row of the table, and pure
// functions in this folder if it needs new ones.
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

/// How the rewards of a group become advantages.
enum class AdvantageKind : std::uint8_t { kGrpo, kRloo };

/// Computes one advantage for each sample of a group. Must be a pure function.
/// Shapes: `samples` (G), `advantages` (G).
/// Errors: must name the sample, for example one whose reward is not finite.
using AdvantageFunction =
    std::function<Status(const GroupRewards<double>& samples, std::span<double> advantages)>;

/// One algorithm with its published defaults. Callers change their own copy.
struct Algorithm {
  std::string name;
  std::string summary;  // one line for `explain`
  AdvantageKind advantage = AdvantageKind::kGrpo;
  AdvantageFunction custom_advantages;  // from an embedding program; if set, replaces `advantage`
  GrpoAdvantageOptions grpo;            // read by kGrpo
  RlooAdvantageOptions rloo;            // read by kRloo
  /// Clipping, KL and aggregation. If the aggregation has a horizon, the caller sets
  /// `policy.aggregate.horizon` to the largest number of response tokens.
  PolicyLossOptions policy;
  /// Groups that do not pass the filter are not trained on. If unset, all groups are.
  std::optional<GroupFilterOptions> group_filter;
  /// The penalty for long responses. Unset in every row of the table, since the lengths depend on
  /// the run.
  std::optional<OverlongOptions> overlong;
};

/// Returns the table, in the order in which help texts and errors list it.
///
///     name     advantage              loss                 aggregation          filter
///     grpo     (R - mean) / std       clip .2/.2           seq-mean-token-mean  -
///     dr_grpo  R - mean               clip .2/.2           batch-fixed-length   -
///     dapo     (R - mean) / std       clip .2/.28          token-mean           not all equal
///     rloo     R - mean of the rest   clip .2/.2           seq-mean-token-sum   -
///
/// The KL coefficient is 0 in every row. RLOO is published as REINFORCE on whole responses. On
/// policy, the clipped loss used here has exactly that gradient. Off policy, it corrects for the
/// importance ratio, where REINFORCE would be biased.
/// Sources: GRPO arXiv:2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, RLOO 2402.14740.
[[nodiscard]] std::vector<Algorithm> algorithms();

/// Returns the algorithm called `name`.
/// Errors: `kInvalidArgument` listing the known names.
[[nodiscard]] Result<Algorithm> find_algorithm(std::string_view name);

}  // namespace tidemill::engines
