// SPDX-License-Identifier: Apache-2.0
// Compares forecasts with values computed by hand, for unknown, certain and random lengths.
#include "engines/scheduler/page_forecast.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace tidemill::engines {
namespace {

ForecastSequence sequence_of(std::int64_t prompt, std::int64_t limit, const Survival& survival) {
  ForecastSequence sequence;
  sequence.length = prompt;
  sequence.max_response_length = limit;
  sequence.pages_held = (prompt + 15) / 16;
  sequence.pages_released = sequence.pages_held;
  sequence.survival = &survival;
  return sequence;
}

// Returns the fewest pages with which `sequence` may start in addition to those already added.
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
  // With 32 prompt tokens and 100 more, the limit is reached at 132 tokens, or 9 pages.
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 100, unknown)), 9);
  forecast.start(sequence_of(32, 100, unknown), 2);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 100, unknown)), 18);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 0, unknown)), 9)
      << "a sequence that ends at once is gone before the first reaches its limit";
}

TEST(PageForecastTest, CountsOnThePagesOfSequencesThatEnd) {
  const std::vector<std::int64_t> ended = {16};
  const Survival known(ended, {}, 0.0);
  PageForecast forecast(16, 0, 1000, 3.0);
  // All three sequences certainly end at 16 tokens, so two pages and one more suffice for each.
  forecast.start(sequence_of(32, 1000, known), 2);
  forecast.start(sequence_of(32, 1000, known), 2);
  EXPECT_EQ(fewest_pages(forecast, sequence_of(32, 1000, known)), 9);
}

TEST(PageForecastTest, KeepsAMarginForRandomLengths) {
  const std::vector<std::int64_t> ended = {16, 800};
  const Survival half(ended, {}, 0.0);
  PageForecast bold(16, 0, 1000, 0.0);
  PageForecast careful(16, 0, 1000, 2.0);
  for (int i = 0; i < 50; ++i) {
    bold.start(sequence_of(32, 1000, half), 2);
    careful.start(sequence_of(32, 1000, half), 2);
  }
  const std::int64_t mean = fewest_pages(bold, sequence_of(32, 1000, half));
  const std::int64_t with_margin = fewest_pages(careful, sequence_of(32, 1000, half));
  // Half of 51 sequences need 52 pages each, which is 1,326 on average with a standard deviation of
  // sqrt(51) / 2 * 52 = 186. The interval that contains iteration 800 may count a sixteenth more.
  EXPECT_GE(mean, 1326);
  EXPECT_LE(mean, 1326 * 17 / 16);
  EXPECT_GE(with_margin - mean, 2 * 185);
  EXPECT_LE(with_margin - mean, 2 * 186 * 17 / 16);
}

}  // namespace
}  // namespace tidemill::engines
