// SPDX-License-Identifier: Apache-2.0
// Tests estimates of lengths from responses that ended and responses that still run.
#include "engines/scheduler/length_forecast.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

TEST(SurvivalTest, KnowsNothingAtFirst) {
  EXPECT_EQ(Survival{}.longer_than(0), 1.0);
  EXPECT_EQ(Survival{}.longer_than(1000000), 1.0);
}

// Without running responses, it is the share of ended responses that were longer.
TEST(SurvivalTest, IsTheShareOfLongerResponses) {
  const std::vector<std::int64_t> ended = {2, 4, 4, 10};
  const Survival survival(ended, {}, 0.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(0), 1.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(1), 1.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(2), 0.75);
  EXPECT_DOUBLE_EQ(survival.longer_than(3), 0.75);
  EXPECT_DOUBLE_EQ(survival.longer_than(4), 0.25);
  EXPECT_DOUBLE_EQ(survival.longer_than(9), 0.25);
  EXPECT_DOUBLE_EQ(survival.longer_than(10), 0.0);
}

// The Kaplan-Meier product by hand: at 2, one of 5 ends (3 ended, 2 still run beyond); at 4, one of
// 3 (2 ended, 1 runs beyond); at 6, one of 2 (1 ended, 1 runs at 7).
TEST(SurvivalTest, CountsRunningResponsesUpToTheirLength) {
  const std::vector<std::int64_t> ended = {2, 4, 6};
  const std::vector<std::int64_t> running = {3, 7};
  const Survival survival(ended, running, 0.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(2), 4.0 / 5.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(4), 4.0 / 5.0 * 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(6), 4.0 / 5.0 * 2.0 / 3.0 * 1.0 / 2.0);
  EXPECT_DOUBLE_EQ(survival.longer_than(500), 4.0 / 5.0 * 2.0 / 3.0 * 1.0 / 2.0);
}

// A response that runs and has just reached a length counts among those that reached it.
TEST(SurvivalTest, CountsRunningResponsesOfTheSameLength) {
  const std::vector<std::int64_t> ended = {4};
  EXPECT_DOUBLE_EQ(Survival(ended, std::vector<std::int64_t>{4}, 0.0).longer_than(4), 0.5);
  EXPECT_DOUBLE_EQ(Survival(ended, std::vector<std::int64_t>{3}, 0.0).longer_than(4), 0.0);
  EXPECT_DOUBLE_EQ(Survival(ended, std::vector<std::int64_t>{5, 4}, 0.0).longer_than(4), 2.0 / 3.0);
}

TEST(SurvivalTest, ThePseudoCountKeepsItAboveZero) {
  const std::vector<std::int64_t> ended = {5};
  EXPECT_DOUBLE_EQ(Survival(ended, {}, 1.0).longer_than(5), 0.5);
}

// Beyond the size of the table, lengths share buckets, and estimates are never too low.
TEST(SurvivalTest, EstimatesForLongLengthsAreRoundedUp) {
  std::vector<std::int64_t> ended;
  for (std::int64_t length = 1; length <= 100000; length += 13) {
    ended.push_back(length);
  }
  const Survival survival(ended, {}, 0.0);
  double before = 1.0;
  for (std::int64_t length = 0; length < 100100; length += 7) {
    const auto longer = static_cast<double>(ended.end() - std::ranges::upper_bound(ended, length));
    const double share = longer / static_cast<double>(ended.size());
    EXPECT_GE(survival.longer_than(length), share - 1e-12) << length;
    EXPECT_LE(survival.longer_than(length), share + 0.001) << length;
    EXPECT_LE(survival.longer_than(length), before);
    before = survival.longer_than(length);
  }
}

TEST(LengthForecastTest, KeepsLimitsOfDifferentMagnitudeApart) {
  EXPECT_EQ(LengthForecast::class_of(0), 0U);
  EXPECT_EQ(LengthForecast::class_of(1), 0U);
  EXPECT_EQ(LengthForecast::class_of(2), 1U);
  EXPECT_EQ(LengthForecast::class_of(16), 4U);
  EXPECT_EQ(LengthForecast::class_of(17), 5U);
  LengthForecast forecast;
  for (int i = 0; i < 100; ++i) {
    forecast.add(16, 3);
  }
  EXPECT_LT(forecast.survival(LengthForecast::class_of(10), {}).longer_than(3), 0.02);
  EXPECT_EQ(forecast.survival(LengthForecast::class_of(17), {}).longer_than(3), 1.0);
}

TEST(LengthForecastTest, ForgetsOldResponses) {
  LengthForecast forecast;
  for (std::size_t i = 0; i < LengthForecast::kWindow; ++i) {
    forecast.add(16, 3);
  }
  for (std::size_t i = 0; i < LengthForecast::kWindow; ++i) {
    forecast.add(16, 9);
  }
  EXPECT_EQ(forecast.survival(4, {}).longer_than(8), 1.0);
}

}  // namespace
}  // namespace tidemill::engines
