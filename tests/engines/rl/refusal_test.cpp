// SPDX-License-Identifier: Apache-2.0
// Refusals name the location. Outputs at masked positions are zero, whatever the inputs hold there.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/rl/group_advantage.hpp"
#include "engines/rl/policy_loss.hpp"
#include "engines/rl/shaping.hpp"
#include "engines/rl/token_advantage.hpp"

namespace tidemill::engines {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Refusals, ANonFiniteRewardNamesItsRowAndSample) {
  const std::vector<float> rewards = {1.0F, 0.0F, kNan};
  const std::vector<GroupId> groups(3, GroupId{1});
  const std::vector<SampleId> ids = {SampleId{40}, SampleId{41}, SampleId{42}};
  std::vector<float> advantages(3);
  EXPECT_EQ(grpo_advantages<float>({rewards, groups, ids}, {}, advantages).message(),
            "non_finite: rewards[2] (sample 42) is nan");
  EXPECT_EQ(rloo_advantages<float>({rewards, groups, {}}, {}, advantages).message(),
            "non_finite: rewards[2] is nan");
  EXPECT_EQ(filter_groups<float>({rewards, groups, ids}, {}).status().message(),
            "non_finite: metric[2] (sample 42) is nan");
}

TEST(Refusals, RewardsWhoseVarianceOverflowsHaveNoAdvantages) {
  const std::vector<double> rewards = {1e200, -1e200, 0.0};
  const std::vector<GroupId> groups(3, GroupId{1});
  std::vector<double> advantages(3);
  const std::string message = "non_finite_result: the variance of the rewards overflows";
  for (const AdvantageScale scale :
       {AdvantageScale::kGroupStd, AdvantageScale::kBatchStd, AdvantageScale::kBatchCenteredStd}) {
    GrpoAdvantageOptions options;
    options.scale = scale;
    EXPECT_EQ(grpo_advantages<double>({rewards, groups, {}}, options, advantages).message(),
              message);
  }
  RlooAdvantageOptions normalized;
  normalized.normalize = true;
  EXPECT_EQ(rloo_advantages<double>({rewards, groups, {}}, normalized, advantages).message(),
            message);
  GrpoAdvantageOptions unscaled;
  unscaled.scale = AdvantageScale::kNone;
  ASSERT_TRUE(grpo_advantages<double>({rewards, groups, {}}, unscaled, advantages).ok());
  EXPECT_EQ(advantages[0], 1e200);
}

TEST(Refusals, ASingletonNamesItsGroupAndSample) {
  const std::vector<float> rewards = {1.0F, 0.0F, 2.0F};
  const std::vector<GroupId> groups = {GroupId{3}, GroupId{8}, GroupId{3}};
  const std::vector<SampleId> ids = {SampleId{40}, SampleId{41}, SampleId{42}};
  std::vector<float> advantages(3);
  GrpoAdvantageOptions options;
  options.singleton = SingletonRule::kRefuse;
  EXPECT_EQ(grpo_advantages<float>({rewards, groups, ids}, options, advantages).message(),
            "singleton_group: group 8 has one member, rewards[1] (sample 41)");
}

TEST(Refusals, ANonFiniteTokenNamesRowTokenAndSample) {
  const std::vector<std::size_t> offsets = {0, 2, 5};
  const std::vector<std::uint8_t> mask = {1, 1, 1, 0, 1};
  const std::vector<SampleId> ids = {SampleId{6}, SampleId{9}};
  const std::vector<float> logprobs = {-1, -1, -1, kNan, -1};
  std::vector<float> advantages = {1, 1, 1, 1, 1};
  std::vector<float> gradient(5);
  PolicyLossInputs<float> inputs;
  inputs.rows = {offsets, mask, ids};
  inputs.logprobs = logprobs;
  inputs.advantages = advantages;
  ASSERT_TRUE(policy_loss<float>(inputs, {}, {gradient, {}}).ok());  // the nan is masked
  EXPECT_EQ(gradient[3], 0.0F);
  advantages[4] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(policy_loss<float>(inputs, {}, {gradient, {}}).status().message(),
            "non_finite: advantages[4] (row 1, token 2, sample 9) is inf");
}

TEST(Refusals, MissingColumnsAndDecreasingOffsetsAreShapeErrors) {
  const std::vector<std::size_t> offsets = {0, 2};
  const std::vector<std::uint8_t> mask = {1, 1};
  const std::vector<double> column = {-1.0, -2.0};
  std::vector<double> gradient(2);
  PolicyLossInputs<double> inputs{{offsets, mask, {}}, column, {}, column, {}, {}, {}};
  PolicyLossOptions with_kl;
  with_kl.kl_coefficient = 0.1;
  EXPECT_EQ(policy_loss<double>(inputs, with_kl, {gradient, {}}).status().message(),
            "bad_shape: reference_logprobs has 0 values, expected 2");
  PolicyLossOptions decoupled;
  decoupled.rollout_correction.emplace();
  EXPECT_EQ(policy_loss<double>(inputs, decoupled, {gradient, {}}).status().message(),
            "bad_shape: behavior_logprobs has 0 values, expected 2");
  const std::vector<std::size_t> decreasing = {0, 2, 1, 2};
  inputs.rows.offsets = decreasing;
  EXPECT_EQ(policy_loss<double>(inputs, {}, {gradient, {}}).status().message(),
            "bad_shape: offsets[2] decreases");
}

TEST(Refusals, OverflowIsAnErrorNotANumber) {
  const std::vector<std::size_t> offsets = {0, 1};
  const std::vector<std::uint8_t> mask = {1};
  const std::vector<double> logprobs = {-1.0};
  const std::vector<double> proximal = {-2000.0};
  const std::vector<double> advantages = {-1.0};
  std::vector<double> gradient(1);
  PolicyLossOptions options;
  options.log_ratio_clamp.reset();
  const PolicyLossInputs<double> inputs{
      {offsets, mask, {}}, logprobs, proximal, advantages, {}, {}, {}};
  EXPECT_EQ(policy_loss<double>(inputs, options, {gradient, {}}).status().message(),
            "non_finite_result: gradient[0] (row 0, token 0) is inf");
}

TEST(Refusals, OptionsOutOfRangeOrInConflict) {
  const auto refused = [](const std::function<void(PolicyLossOptions&)>& change) {
    PolicyLossOptions options;
    change(options);
    return validate(options).message().substr(0, 10) == "bad_option";
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& o) { o.clip_low = -0.1; }));
  EXPECT_TRUE(refused([](auto& o) { o.ratio_cap = 0.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.dual_clip = 1.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.cispo_low = 2.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.sapo_tau_negative = 0.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.log_ratio_clamp = -1.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.kl_coefficient = -1.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.kl.output_clamp = -1.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.sequence_advantage = SequenceAdvantage::kRowMean; }));
  EXPECT_TRUE(refused([](auto& o) {
    o.weight_denominator = WeightDenominator::kWeights;
    o.aggregate.global_tokens = 3;
  }));
  EXPECT_TRUE(refused([](auto& o) { o.rollout_correction.emplace().upper = 0.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.rollout_correction.emplace().lower = 3.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.rollout_correction.emplace().reject.emplace_back(); }));
  EXPECT_TRUE(refused([](auto& o) {
    o.rollout_correction.emplace().reject.push_back(
        {RejectStat::kK3, RejectScope::kToken, 0.5, 1.0});
  }));
}

TEST(Refusals, AggregationWithAZeroDenominator) {
  AggregateOptions options;
  options.global_tokens = 0;
  const BatchCounts counts{.tokens = 3, .seqs = 1, .rows = 1, .longest = 3};
  EXPECT_EQ(Aggregator::create(options, counts).status().message(),
            "bad_option: global_tokens, global_seqs, global_rows and horizon must be at least 1");
  EXPECT_EQ(Aggregator::create(options, BatchCounts()).value().row_scale(0), 0.0);
}

TEST(Gae, ZeroStepsCannotBeCombinedWithTruncatedRows) {
  const std::vector<std::size_t> offsets = {0, 2};
  const std::vector<std::uint8_t> mask = {1, 1};
  const std::vector<double> column = {0.5, 0.5};
  const std::vector<double> bootstrap = {1.0};
  const std::vector<std::uint8_t> truncated = {1};
  std::vector<double> returns(2);
  std::vector<double> advantages(2);
  GaeOptions options;
  options.masked = MaskedSteps::kZeroStep;
  const GaeInputs<double> inputs{{offsets, mask, {}}, column, column, bootstrap, truncated};
  EXPECT_EQ(gae<double>(inputs, options, {returns, advantages}).message(),
            "bad_option: masked steps of reward 0 cannot be combined with truncated row 0");
  EXPECT_EQ(
      gae<double>({{offsets, mask, {}}, column, column, {}, truncated}, {}, {returns, advantages})
          .message(),
      "bad_shape: truncated row 0 needs a bootstrap value");
}

TEST(GroupAdvantage, MeanOfEachGroupIsZeroForGroupIdsInAnyOrder) {
  const std::vector<double> rewards = {1.0, 0.25, 0.0, 0.5, -3.0, 0.75};
  const std::vector<GroupId> groups = {GroupId{9}, GroupId{2}, GroupId{9},
                                       GroupId{2}, GroupId{9}, GroupId{2}};
  std::vector<double> advantages(6);
  ASSERT_TRUE(grpo_advantages<double>({rewards, groups, {}}, {}, advantages).ok());
  EXPECT_NEAR(advantages[0] + advantages[2] + advantages[4], 0.0, 1e-15);
  EXPECT_NEAR(advantages[1] + advantages[3] + advantages[5], 0.0, 1e-15);
}

// The shifted rewards and their sums are exact. Only the means are rounded, by at most 2^-23, and
// then divided by deviations of at least 0.14.
TEST(GroupAdvantage, ACommonOffsetOfTheRewardsChangesNoAdvantage) {
  constexpr double kOffset = 1073741824.0;
  constexpr double kTolerance = 1e-6;
  const std::vector<double> rewards = {0.0, 0.25, 1.0, 0.5, 0.5, 0.75};
  const std::vector<GroupId> groups = {GroupId{0}, GroupId{0}, GroupId{0},
                                       GroupId{1}, GroupId{1}, GroupId{1}};
  std::vector<double> shifted;
  for (const double reward : rewards) {
    shifted.push_back(reward + kOffset);
  }
  std::vector<double> expected(rewards.size());
  std::vector<double> found(rewards.size());
  const auto expect_equal = [&](const std::string& what) {
    for (std::size_t i = 0; i < rewards.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], kTolerance) << what << ", sample " << i;
    }
  };
  for (const AdvantageScale scale :
       {AdvantageScale::kNone, AdvantageScale::kGroupStd, AdvantageScale::kBatchStd,
        AdvantageScale::kBatchCenteredStd}) {
    GrpoAdvantageOptions options;
    options.scale = scale;
    ASSERT_TRUE(grpo_advantages<double>({rewards, groups, {}}, options, expected).ok());
    ASSERT_TRUE(grpo_advantages<double>({shifted, groups, {}}, options, found).ok());
    expect_equal("grpo, scale " + std::to_string(static_cast<int>(scale)));
  }
  for (const bool normalize : {false, true}) {
    RlooAdvantageOptions options;
    options.normalize = normalize;
    ASSERT_TRUE(rloo_advantages<double>({rewards, groups, {}}, options, expected).ok());
    ASSERT_TRUE(rloo_advantages<double>({shifted, groups, {}}, options, found).ok());
    expect_equal(normalize ? "rloo, normalized" : "rloo");
  }
}

TEST(GroupAdvantage, EqualRewardsInTheBatchGiveExactlyZeroEvenForRawSingletons) {
  const std::vector<double> rewards = {0.1, 0.1};
  const std::vector<GroupId> groups = {GroupId{0}, GroupId{1}};
  std::vector<double> advantages(2);
  GrpoAdvantageOptions options;
  options.scale = AdvantageScale::kBatchStd;
  options.singleton = SingletonRule::kRaw;
  ASSERT_TRUE(grpo_advantages<double>({rewards, groups, {}}, options, advantages).ok());
  EXPECT_EQ(advantages, (std::vector<double>{0.0, 0.0}));
}

}  // namespace
}  // namespace tidemill::engines
