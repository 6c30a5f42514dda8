// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/learning_rate.hpp"

#include <cmath>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

TEST(LearningRate, ConstantDoesNotChange) {
  const LearningRateOptions options{.learning_rate = 0.5};
  for (const int step : {1, 5, 10, 100}) {
    EXPECT_EQ(learning_rate_at(options, step, 10), 0.5);
  }
}

TEST(LearningRate, WarmUpRisesInEqualIncrements) {
  const LearningRateOptions options{.learning_rate = 0.8, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 1, 10), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 2, 10), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 4, 10), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5, 10), 0.8);
}

TEST(LearningRate, LinearFallsInEqualIncrementsAndIsAboveZeroInTheLastStep) {
  const LearningRateOptions options{
      .kind = LearningRateScheduleKind::kLinear, .learning_rate = 1.0, .warmup_steps = 2};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 3, 6), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 4, 6), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 6, 6), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 7, 6), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 70, 6), 0.0);
}

TEST(LearningRate, CosineIsSymmetricAroundItsMiddle) {
  const LearningRateOptions options{.kind = LearningRateScheduleKind::kCosine,
                                    .learning_rate = 1.0};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 1, 8), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5, 8), 0.5);
  for (int step = 1; step <= 8; ++step) {
    EXPECT_NEAR(learning_rate_at(options, step, 8) + learning_rate_at(options, 10 - step, 8), 1.0,
                1e-15);
  }
}

TEST(LearningRate, EndsAtTheFinalShare) {
  for (const LearningRateScheduleKind kind :
       {LearningRateScheduleKind::kLinear, LearningRateScheduleKind::kCosine}) {
    const LearningRateOptions options{.kind = kind, .learning_rate = 2.0, .final_share = 0.1};
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 1, 5), 2.0);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 6, 5), 0.2);
  }
}

TEST(LearningRate, AWarmUpAsLongAsTheRunEndsAtThePeak) {
  const LearningRateOptions options{
      .kind = LearningRateScheduleKind::kCosine, .learning_rate = 1.0, .warmup_steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 5, 5), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 6, 5), 0.0);
}

TEST(LearningRateOptions, RefusalsNameTheOption) {
  EXPECT_TRUE(validate(LearningRateOptions{}).ok());
  EXPECT_EQ(validate(LearningRateOptions{.learning_rate = -1.0}).message(),
            "learning_rate must be finite and at least 0");
  EXPECT_EQ(validate(LearningRateOptions{.warmup_steps = -1}).message(),
            "warmup_steps must be at least 0");
  EXPECT_EQ(validate(LearningRateOptions{.final_share = 1.5}).message(),
            "final_share must be in [0, 1]");
}

}  // namespace
}  // namespace tidemill::engines
