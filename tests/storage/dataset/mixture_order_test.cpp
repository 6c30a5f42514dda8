// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/mixture_order.hpp"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::storage {
namespace {

TEST(MixtureOrder, DealsInProportionToTheWeightsInEveryStretch) {
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

TEST(MixtureOrder, SharesOfAnySizeAreDealt) {
  MixtureOrder one({7.0});
  EXPECT_EQ(one.at(41).position, 41U);
  MixtureOrder extreme({1e300, 1e-300});
  EXPECT_EQ(extreme.at(100'000).source, 0U);
  MixtureOrder reversed({1e-300, 1e300});
  EXPECT_EQ(reversed.at(100'000).source, 1U);
}

}  // namespace
}  // namespace tidemill::storage
