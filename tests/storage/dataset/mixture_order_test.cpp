// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/mixture_order.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

TEST(MixtureOrder, DrawsInProportionToTheWeightsInEveryRange) {
  const std::vector<double> weights{3.0, 0.5, 1.0, 0.01};
  MixtureOrder order(weights);
  std::vector<std::uint64_t> drawn(weights.size());
  for (std::uint64_t position = 0; position < 100'000; ++position) {
    const MixtureOrder::Draw draw = order.at(position);
    ASSERT_EQ(draw.position, drawn.at(draw.source)) << position;
    ++drawn[draw.source];
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double share = static_cast<double>(position + 1) * weights[i] / 4.51;
      ASSERT_NEAR(static_cast<double>(drawn[i]), share, 4.0)
          << "source " << i << " at " << position;
    }
  }
}

TEST(MixtureOrder, IsAFunctionOfThePosition) {
  MixtureOrder straight({1.0, 2.0, 0.25});
  std::vector<MixtureOrder::Draw> expected;
  for (std::uint64_t position = 0; position < 1000; ++position) {
    expected.push_back(straight.at(position));
  }
  MixtureOrder jumping({4.0, 8.0, 1.0});  // the same shares
  for (const std::uint64_t position : {999U, 0U, 500U, 499U, 500U, 3U, 998U}) {
    const MixtureOrder::Draw draw = jumping.at(position);
    EXPECT_EQ(draw.source, expected[position].source) << position;
    EXPECT_EQ(draw.position, expected[position].position) << position;
  }
}

TEST(MixtureOrder, DrawsFromSharesOfAnySize) {
  MixtureOrder one({7.0});
  EXPECT_EQ(one.at(41).position, 41U);
  MixtureOrder extreme({1e300, 1e-300});
  EXPECT_EQ(extreme.at(100'000).source, 0U);
  MixtureOrder reversed({1e-300, 1e300});
  EXPECT_EQ(reversed.at(100'000).source, 1U);
}

TEST(MixtureOrder, NoSourceIsLeftOutForLong) {
  for (const double weight : {1e-4, 0.003, 0.1, 0.5, 0.62, 0.99, 1.0, 3.0, 50.0}) {
    const std::vector<double> weights{0.7, weight, 0.3};
    MixtureOrder order(weights);
    std::vector<std::uint64_t> next(weights.size());  // the first position after the last draw
    std::vector<std::uint64_t> longest(weights.size());
    for (std::uint64_t position = 0; position < 1'000'000; ++position) {
      const std::size_t source = order.at(position).source;
      longest[source] = std::max(longest[source], position + 1 - next[source]);
      next[source] = position + 1;
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_LE(longest[i], order.longest_gap(i)) << "source " << i << ", middle weight " << weight;
      EXPECT_LE(order.longest_gap(i), 8 * longest[i] + 8) << "the bound is not loose";
      EXPECT_GT(longest[i], 0U) << "source " << i << ", middle weight " << weight;
    }
  }
  EXPECT_EQ(MixtureOrder({7.0}).longest_gap(0), 1U);
  const MixtureOrder extreme({1e-300, 1e300});
  EXPECT_EQ(extreme.longest_gap(0), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(extreme.longest_gap(1), 1U);
}

}  // namespace
}  // namespace tidemill::storage
