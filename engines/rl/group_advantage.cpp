// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/group_advantage.hpp"

#include <cmath>
#include <sstream>
#include <vector>

#include "engines/rl/groups.hpp"
#include "engines/rl/moments.hpp"
#include "engines/rl/refusal.hpp"
#include "engines/rl/token_rows.hpp"

namespace tidemill::engines {
namespace {

template <class Real>
Status check_samples(const GroupRewards<Real>& samples, double eps, std::span<Real> advantages) {
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("groups", samples.groups.size(), samples.rewards.size()));
  TIDEMILL_RETURN_IF_ERROR(
      check_output_size("advantages", advantages.size(), samples.rewards.size()));
  if (!std::isfinite(eps) || eps < 0.0) {
    return refuse(kBadOption, "eps must be finite and at least 0");
  }
  return check_values("rewards", samples.rewards, samples.rewards.size(), samples.ids);
}

Status refuse_singleton(const GroupIndex& groups, std::size_t group,
                        std::span<const SampleId> ids) {
  const std::size_t member = groups.members(group).front();
  std::ostringstream text;
  text << "group " << groups.id(group).value << " has one member, rewards[" << member << "]";
  if (!ids.empty()) {
    text << " (sample " << ids[member].value << ")";
  }
  return refuse(kSingletonGroup, text.str());
}

std::vector<double> gather(std::span<const double> values, std::span<const std::size_t> indices) {
  std::vector<double> gathered;
  gathered.reserve(indices.size());
  for (const std::size_t i : indices) {
    gathered.push_back(values[i]);
  }
  return gathered;
}

template <class Real>
Status store(std::span<const double> values, std::span<Real> advantages) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    advantages[i] = static_cast<Real>(values[i]);
  }
  return check_result<Real>("advantages", advantages);
}

// Refuses rewards whose deviation overflows, since dividing by it would make all advantages 0.
Status check_moments(const Moments& moments) {
  return std::isfinite(moments.variance)
             ? Status()
             : refuse(kNonFiniteResult, "the variance of the rewards overflows");
}

/// Divides `centered` by the deviation of `reference`, the raw or the centered rewards.
Status divide_by_batch(std::span<const double> reference, const GrpoAdvantageOptions& options,
                       std::span<double> centered) {
  const Moments moments = moments_of(reference, options.ddof);
  TIDEMILL_RETURN_IF_ERROR(check_moments(moments));
  const double divisor = std::sqrt(moments.variance) + options.eps;
  for (double& value : centered) {
    value = moments.constant ? 0.0 : value / divisor;
  }
  return {};
}

}  // namespace

template <class Real>
Status grpo_advantages(const GroupRewards<Real>& samples, const GrpoAdvantageOptions& options,
                       std::span<Real> advantages) {
  TIDEMILL_RETURN_IF_ERROR(check_samples(samples, options.eps, advantages));
  if (options.ddof != 0 && options.ddof != 1) {
    return refuse(kBadOption, "ddof must be 0 or 1");
  }
  const std::vector<double> rewards(samples.rewards.begin(), samples.rewards.end());
  const GroupIndex groups(samples.groups);
  const bool by_group = options.scale == AdvantageScale::kGroupStd;
  std::vector<double> centered(rewards.size(), 0.0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::span<const std::size_t> members = groups.members(g);
    if (members.size() == 1) {
      if (options.singleton == SingletonRule::kRefuse) {
        return refuse_singleton(groups, g, samples.ids);
      }
      if (options.singleton == SingletonRule::kRaw) {
        centered[members[0]] = rewards[members[0]] / (by_group ? 1.0 + options.eps : 1.0);
      }
      continue;
    }
    const Moments moments = moments_of(gather(rewards, members), options.ddof);
    if (moments.constant) {
      continue;
    }
    if (by_group) {
      TIDEMILL_RETURN_IF_ERROR(check_moments(moments));
    }
    const double divisor = by_group ? std::sqrt(moments.variance) + options.eps : 1.0;
    for (const std::size_t i : members) {
      centered[i] = (rewards[i] - moments.mean) / divisor;
    }
  }
  if (options.scale == AdvantageScale::kBatchStd) {
    TIDEMILL_RETURN_IF_ERROR(divide_by_batch(rewards, options, centered));
  } else if (options.scale == AdvantageScale::kBatchCenteredStd) {
    TIDEMILL_RETURN_IF_ERROR(divide_by_batch(std::vector<double>(centered), options, centered));
  }
  return store<Real>(centered, advantages);
}

template <class Real>
Status rloo_advantages(const GroupRewards<Real>& samples, const RlooAdvantageOptions& options,
                       std::span<Real> advantages) {
  TIDEMILL_RETURN_IF_ERROR(check_samples(samples, options.eps, advantages));
  const std::vector<double> rewards(samples.rewards.begin(), samples.rewards.end());
  const GroupIndex groups(samples.groups);
  std::vector<double> values(rewards.size(), 0.0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::span<const std::size_t> members = groups.members(g);
    if (members.size() == 1) {
      if (options.singleton == SingletonRule::kRefuse) {
        return refuse_singleton(groups, g, samples.ids);
      }
      if (options.singleton == SingletonRule::kRaw) {
        values[members[0]] = rewards[members[0]];
      }
      continue;
    }
    if (moments_of(gather(rewards, members), 0).constant) {
      continue;
    }
    double sum = 0.0;
    for (const std::size_t i : members) {
      sum += rewards[i];
    }
    const auto others = static_cast<double>(members.size() - 1);
    for (const std::size_t i : members) {
      values[i] = rewards[i] - (sum - rewards[i]) / others;
    }
  }
  if (options.normalize) {
    const Moments moments = moments_of(values, 1);
    TIDEMILL_RETURN_IF_ERROR(check_moments(moments));
    const double divisor = std::sqrt(moments.variance) + options.eps;
    for (double& value : values) {
      value = moments.constant ? 0.0 : (value - moments.mean) / divisor;
    }
  }
  return store<Real>(values, advantages);
}

template Status grpo_advantages(const GroupRewards<float>&, const GrpoAdvantageOptions&,
                                std::span<float>);
template Status grpo_advantages(const GroupRewards<double>&, const GrpoAdvantageOptions&,
                                std::span<double>);
template Status rloo_advantages(const GroupRewards<float>&, const RlooAdvantageOptions&,
                                std::span<float>);
template Status rloo_advantages(const GroupRewards<double>&, const RlooAdvantageOptions&,
                                std::span<double>);

}  // namespace tidemill::engines
