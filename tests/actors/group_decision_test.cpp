// SPDX-License-Identifier: Apache-2.0
// The contract of actors/algorithm/algorithm.hpp. The formulas are tested in tests/engines/rl.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/algorithm/algorithm.hpp"

namespace tidemill::test {
namespace {

using actors::GroupMember;
using ::testing::HasSubstr;

std::vector<GroupMember> group_of(std::initializer_list<double> rewards) {
  std::vector<GroupMember> group;
  for (const double reward : rewards) {
    group.push_back({{10 + group.size()}, reward, 4, false});
  }
  return group;
}

engines::TrainSequence sequence_of(std::uint64_t id, std::size_t targets) {
  engines::TrainSequence sequence;
  sequence.id = {id};
  sequence.ids.assign(targets + 1, 1);
  sequence.response_mask.assign(targets + 1, 1);
  sequence.response_mask[0] = 0;
  sequence.advantages.assign(targets + 1, 1.0F);
  sequence.behavior_logprobs.assign(targets + 1, -1.0F);
  return sequence;
}

// Evaluates a loss whose log-probabilities are all -1, and returns the sums.
Result<engines::LossSums> evaluate(engines::TokenLoss& loss, const engines::TrainSequence& sequence,
                                   std::vector<float>& gradient) {
  const std::size_t size = sequence.ids.size();
  const std::vector<float> logprobs(size, -1.0F);
  const std::vector<float> entropies(size, 0.0F);
  gradient.assign(size, 0.0F);
  std::vector<float> entropy_gradient(size, 0.0F);
  const engines::LossSequence row{&sequence, logprobs, entropies, gradient, entropy_gradient};
  engines::LossSums sums;
  TIDEMILL_RETURN_IF_ERROR(loss.evaluate({&row, 1}, sums));
  return sums;
}

TEST(GroupDecision, ACustomFunctionMayComputeTheAdvantages) {
  engines::Algorithm algorithm;
  algorithm.custom_advantages = [](const engines::GroupRewards<double>& samples,
                                   std::span<double> advantages) -> Status {
    for (std::size_t i = 0; i < advantages.size(); ++i) {
      if (samples.rewards[i] < 0) {
        return invalid_argument("negative: sample " + std::to_string(samples.ids[i].value));
      }
      advantages[i] = samples.rewards[i] - 0.25;
    }
    return {};
  };
  const auto decide = actors::make_group_decision(algorithm);
  const auto decided = decide(group_of({1.0, 0.0}));
  ASSERT_TRUE(decided.ok());
  EXPECT_EQ(decided.value().advantages, (std::vector<float>{0.75F, -0.25F}));
  EXPECT_EQ(decide(group_of({1.0, -1.0})).status().message(), "negative: sample 11");
}

TEST(GroupDecision, AdvantagesAreRelativeToTheGroupAndInItsOrder) {
  engines::Algorithm algorithm;
  const auto decision = actors::make_group_decision(algorithm)(group_of({1.0, 0.0, 1.0, 0.0}));
  ASSERT_TRUE(decision.ok()) << decision.status().to_string();
  ASSERT_EQ(decision.value().advantages.size(), 4U);
  EXPECT_GT(decision.value().advantages[0], 0.0F);
  EXPECT_EQ(decision.value().advantages[0], decision.value().advantages[2]);
  EXPECT_EQ(decision.value().advantages[1], -decision.value().advantages[0]);
  EXPECT_TRUE(decision.value().filtered.empty());
}

TEST(GroupDecision, EqualRewardsGiveExactlyZeroOrAreFiltered) {
  engines::Algorithm algorithm;
  const auto kept = actors::make_group_decision(algorithm)(group_of({0.1, 0.1, 0.1}));
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept.value().advantages, (std::vector<float>{0.0F, 0.0F, 0.0F}));
  algorithm.group_filter = engines::GroupFilterOptions{};
  const auto filtered = actors::make_group_decision(algorithm)(group_of({0.1, 0.1, 0.1}));
  ASSERT_TRUE(filtered.ok());
  EXPECT_EQ(filtered.value().filtered, "no signal: all rewards are equal");
  const auto mixed = actors::make_group_decision(algorithm)(group_of({0.1, 0.2, 0.1}));
  EXPECT_TRUE(mixed.value().filtered.empty());
}

// The filter uses the raw rewards, because a penalty for length alone is not a signal.
TEST(GroupDecision, TheFilterIsAppliedBeforeTheLengthPenalty) {
  engines::Algorithm algorithm;
  algorithm.group_filter = engines::GroupFilterOptions{};
  algorithm.overlong = engines::OverlongOptions{8, 4, 1.0, false};
  std::vector<GroupMember> group = group_of({1.0, 1.0});
  group[1].response_tokens = 8;
  EXPECT_FALSE(actors::make_group_decision(algorithm)(group).value().filtered.empty());
  group[0].reward = 0.0;
  const auto shaped = actors::make_group_decision(algorithm)(group);
  ASSERT_TRUE(shaped.ok());
  EXPECT_EQ(shaped.value().advantages[0], shaped.value().advantages[1]);  // 1 - 1 against 0
}

TEST(GroupDecision, ARewardThatIsNotFiniteIsRefusedNamingItsSample) {
  const auto decision =
      actors::make_group_decision({})(group_of({1.0, std::numeric_limits<double>::infinity()}));
  ASSERT_FALSE(decision.ok());
  EXPECT_EQ(decision.status().code(), Errc::kInvalidArgument);
  EXPECT_THAT(decision.status().message(), HasSubstr("11"));
}

TEST(LossFactories, TheSupervisedLossIsTheMeanOverTheTargetsOfTheWholeMinibatch) {
  const std::vector<engines::TrainSequence> batch{sequence_of(0, 3), sequence_of(1, 1)};
  const auto loss = actors::make_sft_loss()(batch);
  ASSERT_TRUE(loss.ok());
  double total = 0.0;
  for (const engines::TrainSequence& sequence : batch) {
    std::vector<float> gradient;
    const auto sums = evaluate(*loss.value(), sequence, gradient);
    ASSERT_TRUE(sums.ok());
    total += sums.value().at("loss");
    EXPECT_EQ(gradient.front(), 0.0F);
    EXPECT_EQ(gradient.back(), -0.25F);  // of four targets
  }
  EXPECT_DOUBLE_EQ(total, 1.0);  // -mean(-1)
}

TEST(LossFactories, ThePolicyLossUsesTheCountsOfTheWholeMinibatch) {
  const std::vector<engines::TrainSequence> batch{sequence_of(0, 3), sequence_of(1, 1)};
  engines::PolicyTokenLossOptions options;
  options.policy.aggregate.kind = engines::Aggregation::kTokenMean;
  const auto loss = actors::make_policy_loss(options)(batch);
  ASSERT_TRUE(loss.ok()) << loss.status().to_string();
  double total = 0.0;
  for (const engines::TrainSequence& sequence : batch) {
    std::vector<float> gradient;
    const auto sums = evaluate(*loss.value(), sequence, gradient);
    ASSERT_TRUE(sums.ok()) << sums.status().to_string();
    total += sums.value().at("loss");
    EXPECT_FLOAT_EQ(gradient.back(), -0.25F);
  }
  EXPECT_DOUBLE_EQ(total, -1.0);  // ratio 1, advantage 1
}

}  // namespace
}  // namespace tidemill::test
