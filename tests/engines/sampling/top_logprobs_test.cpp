// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/top_logprobs.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

TEST(TopLogprobsTest, OrdersTokensByLogitThenId) {
  const std::vector<float> logits{1.0F, 3.0F, 2.0F, 3.0F};
  const auto top = top_logprobs(logits, 1.0F, 3);
  ASSERT_EQ(top.size(), 3U);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 3);
  EXPECT_EQ(top[2].token, 2);
  const double sum = std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0);
  EXPECT_NEAR(top[0].logprob, 3.0 - std::log(sum), 1e-6);
  EXPECT_NEAR(top[2].logprob, 2.0 - std::log(sum), 1e-6);
  EXPECT_EQ(top_logprobs(logits, 1.0F, 9).size(), 4U);
  EXPECT_TRUE(top_logprobs(logits, 1.0F, 0).empty());
}

TEST(TopLogprobsTest, KeepsTheBitsOfTheKnownToken) {
  const std::vector<float> logits{1.0F, 3.0F, 2.0F};
  const TokenLogprob known{2, -1.40760589F};
  const auto top = top_logprobs(logits, 1.0F, 3, known);
  EXPECT_EQ(top[1], known);
  EXPECT_NEAR(top[0].logprob, known.logprob + 1.0F, 1e-6);
  EXPECT_NEAR(top[2].logprob, known.logprob - 1.0F, 1e-6);
}

TEST(TopLogprobsTest, AgreesWithSorting) {
  RandomStream random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random.below(300));
    for (float& logit : logits) {
      logit = static_cast<float>(random.below(40)) / 4.0F;  // many are equal
    }
    const auto count = static_cast<std::size_t>(random.below(70));
    const float inv_temperature = 0.5F + static_cast<float>(random.uniform());
    std::vector<std::int32_t> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<std::int32_t>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    double sum = 0.0;
    for (const float logit : logits) {
      sum += std::exp(static_cast<double>(logit) * inv_temperature);
    }
    const auto top = top_logprobs(logits, inv_temperature, count);
    ASSERT_EQ(top.size(), std::min(count, logits.size()));
    for (std::size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].token, order[i]);
      const double logit = logits[static_cast<std::size_t>(order[i])];
      ASSERT_NEAR(top[i].logprob, logit * inv_temperature - std::log(sum), 1e-5);
    }
  }
}

}  // namespace
}  // namespace tidemill::engines
