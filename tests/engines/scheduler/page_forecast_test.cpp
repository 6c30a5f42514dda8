// SPDX-License-Identifier: Apache-2.0
// What is forecast against what happens when nothing, everything and half is left to chance.
#include "engines/scheduler/page_forecast.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

ForecastSequence sequence_of(std::int64_t prompt, std::int64_t most, const Survival& survival) {
  ForecastSequence sequence;
  sequence.length = prompt;
  sequence.max_response_length = most;
  sequence.pages_held = (prompt + 15) / 16;
  sequence.pages_given_back = sequence.pages_held;
  sequence.survival = &survival;
  return sequence;
}

// The fewest pages that a sequence fits into beside those counted in.
std::int64_t fewest_pages(const PageForecast& forecast, const ForecastSequence& sequence) {
  std::int64_t pages = 0;
  while (!forecast.fits(sequence, sequence.pages_held, pages)) {
    ++pages;
  }
  return pages;
}

TEST(PageForecastTest, ExpectsTheLimitWhenNothingIsKnown) {
  const Survival unknown;
  PageForecast forecast(16, 0, 100, 3.0);
  // 32 prompt tokens and 100 more: the limit is reached at 132 tokens, 9 pages.
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 100, unknown)), 9);
  forecast.start(sequence_of(32, 100, unknown), 2);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 100, unknown)), 18);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 0, unknown)), 9)
      << "one that ends at once is gone when the first is at its longest";
}

TEST(PageForecastTest, CountsOnThePagesOfThoseThatEnd) {
  const std::vector<std::int64_t> ended = {16};
  const Survival known(ended, {}, 0.0);
  PageForecast forecast(16, 0, 1000, 3.0);
  // All end at 16 tokens, which is sure, so that three of two pages and one more each suffice.
  forecast.start(sequence_of(32, 1000, known), 2);
  forecast.start(sequence_of(32, 1000, known), 2);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 1000, known)), 9);
}

TEST(PageForecastTest, KeepsAMarginWhereChanceRules) {
  const std::vector<std::int64_t> ended = {16, 800};
  const Survival half(ended, {}, 0.0);
  PageForecast bold(16, 0, 1000, 0.0);
  PageForecast careful(16, 0, 1000, 2.0);
  for (int i = 0; i < 50; ++i) {
    bold.start(sequence_of(32, 1000, half), 2);
    careful.start(sequence_of(32, 1000, half), 2);
  }
  const std::int64_t mean = fewest_pages(bold, sequence_of(32, 1000, half));
  const std::int64_t most = fewest_pages(careful, sequence_of(32, 1000, half));
  // Half of 51 sequences need 52 pages: 1,326, and sqrt(51) / 2 * 52 is a deviation of 186. The
  // interval that 800 iterations end in may have counted a sixteenth more.
  EXPECT_GE(mean, 1326);
  EXPECT_LE(mean, 1326 * 17 / 16);
  EXPECT_GE(most - mean, 2 * 185);
  EXPECT_LE(most - mean, 2 * 186 * 17 / 16);
}

}  // namespace
}  // namespace tidemill::engines
