// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/adamw.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

struct State {
  std::vector<float> weights, gradient, first, second;
};

State random_state(std::size_t size) {
  RandomStream random(4);
  State state{std::vector<float>(size), std::vector<float>(size), std::vector<float>(size),
              std::vector<float>(size)};
  for (std::size_t i = 0; i < size; ++i) {
    state.weights[i] = static_cast<float>(random.normal());
    state.gradient[i] = static_cast<float>(random.normal());
    state.first[i] = static_cast<float>(0.1 * random.normal());
    state.second[i] = static_cast<float>(random.uniform());
  }
  return state;
}

void update(State& state, std::size_t begin, std::size_t end) {
  const auto part = [&](std::vector<float>& values) {
    return std::span<float>(values).subspan(begin, end - begin);
  };
  const AdamWStep step{
      .learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.7, .step = 3};
  adamw_update<float>(adamw_factors<float>({}, step), {part(state.weights), part(state.gradient),
                                                       part(state.first), part(state.second)});
}

TEST(AdamW, EverySplitGivesTheSameBits) {
  constexpr std::size_t kSize = 1003;
  State whole = random_state(kSize);
  update(whole, 0, kSize);
  for (const std::size_t parts : {2UL, 3UL, 7UL, 1003UL}) {
    State split = random_state(kSize);
    for (std::size_t p = 0; p < parts; ++p) {
      update(split, p * kSize / parts, (p + 1) * kSize / parts);
    }
    EXPECT_EQ(split.weights, whole.weights);
    EXPECT_EQ(split.first, whole.first);
    EXPECT_EQ(split.second, whole.second);
  }
}

TEST(AdamW, TheFirstStepMovesByTheLearningRateForAnyGradient) {
  for (const double gradient : {1e-6, 1.0, -300.0}) {
    double weight = 2.0;
    double first = 0.0;
    double second = 0.0;
    adamw_update<double>(adamw_factors<double>({}, {.learning_rate = 0.01}),
                         {{&weight, 1}, {&gradient, 1}, {&first, 1}, {&second, 1}});
    EXPECT_NEAR(weight, gradient > 0.0 ? 1.99 : 2.01, 0.01 * 1e-8 / std::abs(gradient) + 1e-15);
  }
}

TEST(AdamW, WithAZeroGradientOnlyDecayActs) {
  double weight = 2.0;
  const double gradient = 0.0;
  double first = 0.0;
  double second = 0.0;
  adamw_update<double>(adamw_factors<double>({}, {.learning_rate = 0.01, .weight_decay = 0.5}),
                       {{&weight, 1}, {&gradient, 1}, {&first, 1}, {&second, 1}});
  EXPECT_EQ(weight, 2.0 * (1.0 - 0.01 * 0.5));
}

TEST(AdamWOptions, RefusalsNameTheOption) {
  EXPECT_TRUE(validate(AdamWOptions{}).ok());
  EXPECT_EQ(validate(AdamWOptions{.beta1 = 1.0}).message(), "beta1 and beta2 must be in [0, 1)");
  EXPECT_EQ(validate(AdamWOptions{.beta2 = -0.1}).message(), "beta1 and beta2 must be in [0, 1)");
  EXPECT_EQ(validate(AdamWOptions{.epsilon = 0.0}).message(), "epsilon must be finite and above 0");
}

}  // namespace
}  // namespace tidemill::engines
