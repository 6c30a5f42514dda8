// SPDX-License-Identifier: Apache-2.0
#include "actors/algorithm/algorithm.hpp"

#include <utility>

#include "engines/rl/sft_token_loss.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::actors {
namespace {

using engines::Algorithm;
using engines::TokenLoss;
using engines::TrainSequence;

// The columns of a group in the form in which the functions of engines/rl take them.
struct GroupColumns {
  explicit GroupColumns(std::span<const GroupMember> members) {
    for (const GroupMember& member : members) {
      rewards.push_back(member.reward);
      lengths.push_back(member.response_tokens);
      ids.push_back(member.id);
    }
    groups.assign(members.size(), GroupId{});
  }
  std::vector<double> rewards;
  std::vector<std::int64_t> lengths;
  std::vector<SampleId> ids;
  std::vector<GroupId> groups;  // all equal
};

Result<GroupDecision> decide(const Algorithm& algorithm, std::span<const GroupMember> members) {
  GroupColumns group(members);
  GroupDecision decision;
  if (algorithm.group_filter.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        const engines::GroupFilterResult kept,
        engines::filter_groups<double>({group.rewards, group.groups, group.ids},
                                       *algorithm.group_filter));
    if (kept.kept_groups.empty()) {
      decision.filtered = "no signal: all rewards are equal";
      return decision;
    }
  }
  if (algorithm.overlong.has_value()) {
    std::vector<double> penalty(group.rewards.size());
    TIDEMILL_RETURN_IF_ERROR(engines::shape_overlong<double>(
        {group.rewards, group.lengths, group.ids}, *algorithm.overlong, {penalty, group.rewards}));
  }
  std::vector<double> advantages(group.rewards.size());
  const engines::GroupRewards<double> samples{group.rewards, group.groups, group.ids};
  TIDEMILL_RETURN_IF_ERROR(
      algorithm.custom_advantages
          ? algorithm.custom_advantages(samples, advantages)
          : engines::algorithm_advantages<double>(algorithm, samples, advantages));
  for (const double advantage : advantages) {
    decision.advantages.push_back(static_cast<float>(advantage));
  }
  return decision;
}

}  // namespace

DecideGroup make_group_decision(const Algorithm& algorithm) {
  return [algorithm](std::span<const GroupMember> members) { return decide(algorithm, members); };
}

LossFactory make_policy_loss(const engines::PolicyTokenLossOptions& options) {
  return [options](std::span<const TrainSequence> batch) -> Result<std::unique_ptr<TokenLoss>> {
    TIDEMILL_ASSIGN_OR_RETURN(
        engines::PolicyTokenLoss loss,
        engines::PolicyTokenLoss::create(options, engines::count_targets(batch)));
    return std::unique_ptr<TokenLoss>(std::make_unique<engines::PolicyTokenLoss>(std::move(loss)));
  };
}

LossFactory make_sft_loss() {
  return [](std::span<const TrainSequence> batch) -> Result<std::unique_ptr<TokenLoss>> {
    return std::unique_ptr<TokenLoss>(
        std::make_unique<engines::SftTokenLoss>(engines::count_targets(batch)));
  };
}

}  // namespace tidemill::actors
