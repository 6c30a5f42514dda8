// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/algorithm.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

TEST(Algorithm, TableHasThePublishedDefaults) {
  const Algorithm grpo = find_algorithm("grpo").value();
  EXPECT_EQ(grpo.advantage, AdvantageKind::kGrpo);
  EXPECT_EQ(grpo.grpo.scale, AdvantageScale::kGroupStd);
  EXPECT_EQ(grpo.grpo.ddof, 1);
  EXPECT_EQ(grpo.grpo.eps, 1e-6);
  EXPECT_EQ(grpo.grpo.singleton, SingletonRule::kZero);
  EXPECT_EQ(grpo.policy.clip_low, 0.2);
  EXPECT_EQ(grpo.policy.clip_high, 0.2);
  EXPECT_EQ(grpo.policy.aggregate.kind, Aggregation::kSeqMeanTokenMean);
  EXPECT_FALSE(grpo.group_filter.has_value());

  const Algorithm dr_grpo = find_algorithm("dr_grpo").value();
  EXPECT_EQ(dr_grpo.grpo.scale, AdvantageScale::kNone);
  EXPECT_EQ(dr_grpo.policy.aggregate.kind, Aggregation::kBatchFixedLength);

  const Algorithm dapo = find_algorithm("dapo").value();
  EXPECT_EQ(dapo.grpo.scale, AdvantageScale::kGroupStd);
  EXPECT_EQ(dapo.policy.clip_low, 0.2);
  EXPECT_EQ(dapo.policy.clip_high, 0.28);
  EXPECT_EQ(dapo.policy.aggregate.kind, Aggregation::kTokenMean);
  ASSERT_TRUE(dapo.group_filter.has_value());
  EXPECT_EQ(dapo.group_filter->rule, GroupFilterRule::kNotAllEqual);

  const Algorithm rloo = find_algorithm("rloo").value();
  EXPECT_EQ(rloo.advantage, AdvantageKind::kRloo);
  EXPECT_EQ(rloo.policy.aggregate.kind, Aggregation::kSeqMeanTokenSum);
}

TEST(Algorithm, EveryRowIsValidAndFoundByNameAndHasNoKl) {
  const std::vector<Algorithm> table = algorithms();
  ASSERT_EQ(table.size(), 4U);
  for (const Algorithm& row : table) {
    EXPECT_TRUE(validate(row.policy).ok()) << row.name;
    EXPECT_EQ(row.policy.kl_coefficient, 0.0) << row.name;
    EXPECT_FALSE(row.overlong.has_value()) << row.name;
    EXPECT_FALSE(row.summary.empty()) << row.name;
    EXPECT_EQ(find_algorithm(row.name).value().summary, row.summary);
  }
}

TEST(Algorithm, AnUnknownNameIsRefusedWithTheKnownNames) {
  EXPECT_EQ(find_algorithm("zzz").status().message(),
            "unknown algorithm zzz; known: grpo, dr_grpo, dapo, rloo");
  EXPECT_EQ(find_algorithm("").status().code(), Errc::kInvalidArgument);
  EXPECT_LT(find_algorithm(std::string(100000, 'g')).status().message().size(), 100U);
}

TEST(Algorithm, AdvantagesUseTheOptionsOfTheRow) {
  const std::vector<double> rewards = {1.0, 0.0, 0.0, 0.0};
  const std::vector<GroupId> groups(4, GroupId{7});
  std::vector<double> advantages(4);
  const GroupRewards<double> samples{rewards, groups, {}};
  ASSERT_TRUE(
      algorithm_advantages<double>(find_algorithm("rloo").value(), samples, advantages).ok());
  EXPECT_DOUBLE_EQ(advantages[0], 1.0);
  EXPECT_DOUBLE_EQ(advantages[1], -1.0 / 3.0);
  ASSERT_TRUE(
      algorithm_advantages<double>(find_algorithm("dr_grpo").value(), samples, advantages).ok());
  EXPECT_DOUBLE_EQ(advantages[0], 0.75);
  ASSERT_TRUE(
      algorithm_advantages<double>(find_algorithm("grpo").value(), samples, advantages).ok());
  EXPECT_DOUBLE_EQ(advantages[0], 0.75 / (0.5 + 1e-6));
}

}  // namespace
}  // namespace tidemill::engines
