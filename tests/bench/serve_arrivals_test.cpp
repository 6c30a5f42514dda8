// SPDX-License-Identifier: Apache-2.0
// Tests the load that `tidemill-bench serve` puts on servers: its rate, its bursts and its lengths.
#include "bench/serve_arrivals.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace tidemill::bench {
namespace {

struct Moments {
  double mean = 0.0;
  double cv = 0.0;
};

Moments gaps_of(const std::vector<PlannedRequest>& requests) {
  double last = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  for (const PlannedRequest& request : requests) {
    const double gap = request.start_s - last;
    last = request.start_s;
    sum += gap;
    squares += gap * gap;
  }
  const auto count = static_cast<double>(requests.size());
  const double mean = sum / count;
  return {mean, std::sqrt(squares / count - mean * mean) / mean};
}

TEST(ServeArrivalsTest, TimesBetweenArrivalsHaveTheRateAndTheVariation) {
  for (const double cv : {0.5, 1.0, 3.0}) {
    ArrivalOptions options;
    options.rate = 20.0;
    options.cv = cv;
    options.seconds = 5000.0;
    const auto requests = plan_arrivals(options);
    // Five standard errors of the mean of 100,000 gaps.
    EXPECT_NEAR(gaps_of(requests).mean * 20.0, 1.0, 5.0 * cv / std::sqrt(1e5)) << cv;
    EXPECT_NEAR(gaps_of(requests).cv / cv, 1.0, 0.1) << cv;
    EXPECT_LT(requests.back().start_s, options.seconds);
  }
}

TEST(ServeArrivalsTest, LengthsAreFixedOrHaveTheGivenMedian) {
  ArrivalOptions options;
  options.rate = 100.0;
  options.seconds = 100.0;
  options.prompt_tokens = 128;
  for (const PlannedRequest& request : plan_arrivals(options)) {
    ASSERT_EQ(request.prompt_tokens, 128);
    ASSERT_EQ(request.new_tokens, 64);
  }
  options.length_sigma = 0.8;
  auto requests = plan_arrivals(options);
  const auto by_prompt = [](const PlannedRequest& a, const PlannedRequest& b) {
    return a.prompt_tokens < b.prompt_tokens;
  };
  std::sort(requests.begin(), requests.end(), by_prompt);
  const double median = static_cast<double>(requests[requests.size() / 2].prompt_tokens);
  EXPECT_NEAR(median / 128.0, 1.0, 0.06);
  EXPECT_GE(requests.front().prompt_tokens, 1);
  EXPECT_LT(requests.front().prompt_tokens, 64);
  EXPECT_EQ(requests.back().prompt_tokens, 4 * 128) << "the longest allowed";
}

TEST(ServeArrivalsTest, TheSeedDecides) {
  ArrivalOptions options;
  options.cv = 3.0;
  options.length_sigma = 0.5;
  options.rate = 10.0;
  const auto first = plan_arrivals(options);
  const auto again = plan_arrivals(options);
  options.seed = 2;
  const auto other = plan_arrivals(options);
  ASSERT_FALSE(first.empty());
  ASSERT_EQ(first.size(), again.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].start_s, again[i].start_s);
    EXPECT_EQ(first[i].prompt_tokens, again[i].prompt_tokens);
  }
  EXPECT_NE(first.front().start_s, other.front().start_s);
}

}  // namespace
}  // namespace tidemill::bench
