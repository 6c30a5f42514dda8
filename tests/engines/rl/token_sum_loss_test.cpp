// SPDX-License-Identifier: Apache-2.0
#include "engines/rl/token_sum_loss.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::engines {
namespace {

constexpr std::array kTokenSumKinds = {
    TokenSumKind::kCrossEntropy, TokenSumKind::kImportanceSampling,
    TokenSumKind::kPpo,          TokenSumKind::kCispo,
    TokenSumKind::kDro,          TokenSumKind::kGspo};

/// A sequence with targets at every second token, whose log-probabilities `l` differ from those of
/// sampling by up to 0.6, so that ratios are clipped on both sides.
struct SumCase {
  TrainSequence sequence;
  std::vector<float> l;

  explicit SumCase(std::uint64_t seed, std::size_t length = 24) {
    RandomStream random(seed);
    const auto uniform = [&](double low, double high) {
      return static_cast<float>(low + (high - low) * random.uniform());
    };
    sequence.id = SampleId{7};
    sequence.ids.assign(length, 1);
    for (std::size_t t = 0; t < length; ++t) {
      sequence.response_mask.push_back(t % 2 == 1 ? 1 : 0);
      sequence.behavior_logprobs.push_back(uniform(-3.0, -0.7));
      sequence.advantages.push_back(uniform(-1.5, 1.5));
      sequence.token_weights.push_back(t % 3 == 0 ? 0.0F : 1.0F);
      l.push_back(sequence.behavior_logprobs[t] + uniform(-0.6, 0.6));
    }
  }
};

/// Runs a loss on one case.
struct SumResult {
  double loss = 0.0;
  double tokens = 0.0;
  std::vector<float> gradient;
};

SumResult run(const TokenSumOptions& options, const SumCase& one) {
  TokenSumLoss loss = TokenSumLoss::create(options).value();
  SumResult result;
  result.gradient.assign(one.l.size(), 0.0F);
  const LossSequence current{&one.sequence, one.l, {}, result.gradient, {}};
  LossSums sums;
  const Status status = loss.evaluate({&current, 1}, sums);
  EXPECT_TRUE(status.ok()) << status.to_string();
  result.loss = sums["loss"];
  result.tokens = sums["tokens"];
  return result;
}

Status refusal(const TokenSumOptions& options, const SumCase& one) {
  TokenSumLoss loss = TokenSumLoss::create(options).value();
  std::vector<float> gradient(one.l.size(), 0.0F);
  const LossSequence current{&one.sequence, one.l, {}, gradient, {}};
  LossSums sums;
  return loss.evaluate({&current, 1}, sums);
}

/// The loss as its definition writes it, in double precision. What the definition treats as a
/// constant is computed from `constant`, everything else from `l`.
double by_definition(const TokenSumOptions& options, const TrainSequence& sequence,
                     const std::vector<double>& l, const std::vector<double>& constant) {
  double mean = 0.0;
  double marked = 0.0;
  for (std::size_t t = 0; t < l.size(); ++t) {
    if (sequence.response_mask[t] != 0 && sequence.token_weights[t] != 0.0F) {
      mean += constant[t] - static_cast<double>(sequence.behavior_logprobs[t]);
      marked += 1.0;
    }
  }
  mean /= marked;
  double loss = 0.0;
  for (std::size_t t = 0; t < l.size(); ++t) {
    if (sequence.response_mask[t] == 0) {
      continue;
    }
    const double a = static_cast<double>(sequence.advantages[t]);
    const double q = static_cast<double>(sequence.behavior_logprobs[t]);
    const auto clip = [&](double r) {
      return std::min(std::max(r, options.ratio_low), options.ratio_high);
    };
    const auto ppo = [&](double r) { return -std::min(r * a, clip(r) * a); };
    switch (options.kind) {
      case TokenSumKind::kCrossEntropy: loss += -a * l[t]; break;
      case TokenSumKind::kImportanceSampling: loss += -std::exp(l[t] - q) * a; break;
      case TokenSumKind::kPpo: loss += ppo(std::exp(l[t] - q)); break;
      case TokenSumKind::kCispo: loss += -clip(std::exp(constant[t] - q)) * l[t] * a; break;
      case TokenSumKind::kDro:
        loss += -(l[t] * a - 0.5 * options.beta * (l[t] - q) * (l[t] - q));
        break;
      case TokenSumKind::kGspo: loss += ppo(std::exp(mean + l[t] - constant[t])); break;
    }
  }
  return loss;
}

// Clips at the usual bounds, so that every formula is clipped in some of the cases.
TokenSumOptions clipping(TokenSumKind kind) {
  TokenSumOptions options = default_options(kind);
  if (kind == TokenSumKind::kGspo) {
    options.ratio_low = 0.98;
    options.ratio_high = 1.03;
  }
  return options;
}

TEST(TokenSumLossTest, EqualsItsDefinition) {
  int compared = 0;
  for (const TokenSumKind kind : kTokenSumKinds) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const SumCase one(seed);
      const std::vector<double> l(one.l.begin(), one.l.end());
      const double expected = by_definition(clipping(kind), one.sequence, l, l);
      const SumResult result = run(clipping(kind), one);
      // Both sums are in double precision; their terms are rounded in a different order.
      EXPECT_NEAR(result.loss, expected, 1e-12) << static_cast<int>(kind) << " " << seed;
      EXPECT_EQ(result.tokens, 12.0);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 120);
}

TEST(TokenSumLossTest, GradientsAreThoseOfFiniteDifferences) {
  int clipped = 0;
  int compared = 0;
  for (const TokenSumKind kind : kTokenSumKinds) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const SumCase one(seed);
      const std::vector<double> l(one.l.begin(), one.l.end());
      const SumResult result = run(clipping(kind), one);
      for (std::size_t t = 0; t < l.size(); ++t) {
        constexpr double kStep = 1e-6;
        std::vector<double> above = l;
        std::vector<double> below = l;
        above[t] += kStep;
        below[t] -= kStep;
        const double slope = (by_definition(clipping(kind), one.sequence, above, l) -
                              by_definition(clipping(kind), one.sequence, below, l)) /
                             (2.0 * kStep);
        // The gradient is rounded to float, at most 1e-7 of values below 3; differences of doubles
        // near 10 over 2e-6 have errors of 1e-9.
        EXPECT_NEAR(static_cast<double>(result.gradient[t]), slope, 4e-7)
            << static_cast<int>(kind) << " " << seed << " " << t;
        clipped += one.sequence.response_mask[t] != 0 && result.gradient[t] == 0.0F ? 1 : 0;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 6 * 20 * 24);
  EXPECT_GT(clipped, 50);  // PPO and GSPO drop the gradients of clipped tokens
}

TEST(TokenSumLossTest, GradientsOfTokensHaveTheBitsOfSequences) {
  for (const TokenSumKind kind : kTokenSumKinds) {
    TokenSumLoss loss = TokenSumLoss::create(clipping(kind)).value();
    EXPECT_EQ(loss.is_token_local(), kind != TokenSumKind::kGspo);
    if (!loss.is_token_local()) {
      continue;
    }
    const SumCase one(3);
    const SumResult whole = run(clipping(kind), one);
    for (std::size_t first = 0; first < one.l.size(); first += 5) {
      const std::size_t count = std::min<std::size_t>(5, one.l.size() - first);
      std::vector<float> gradient(count, 0.0F);
      ASSERT_TRUE(
          loss.token_gradients(
                  {&one.sequence, first, std::span(one.l).subspan(first, count), {}, gradient, {}})
              .ok());
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(gradient[i], whole.gradient[first + i]);
      }
    }
  }
}

TEST(TokenSumLossTest, EqualPoliciesGiveRatiosOfExactlyOne) {
  for (const TokenSumKind kind : {TokenSumKind::kImportanceSampling, TokenSumKind::kPpo,
                                  TokenSumKind::kCispo, TokenSumKind::kGspo}) {
    SumCase one(5);
    one.l = one.sequence.behavior_logprobs;
    const SumResult result = run(default_options(kind), one);
    for (std::size_t t = 1; t < one.l.size(); t += 2) {
      EXPECT_EQ(result.gradient[t], -one.sequence.advantages[t]) << static_cast<int>(kind);
    }
  }
}

TEST(TokenSumLossTest, TokensWithoutAdvantageCostNothingWhateverTheirRatio) {
  for (const TokenSumKind kind :
       {TokenSumKind::kImportanceSampling, TokenSumKind::kPpo, TokenSumKind::kCispo}) {
    SumCase one(6);
    one.sequence.advantages[3] = 0.0F;
    one.sequence.behavior_logprobs[3] = -2000.0F;  // the ratio overflows
    const SumResult result = run(default_options(kind), one);
    EXPECT_EQ(result.gradient[3], 0.0F);
    EXPECT_TRUE(std::isfinite(result.loss));
  }
}

TEST(TokenSumLossTest, DefaultsAreThoseOfTheDocuments) {
  EXPECT_EQ(default_options(TokenSumKind::kPpo).ratio_low, 0.8);
  EXPECT_EQ(default_options(TokenSumKind::kPpo).ratio_high, 1.2);
  EXPECT_EQ(default_options(TokenSumKind::kGspo).ratio_low, 1.0 - 3e-4);
  EXPECT_EQ(default_options(TokenSumKind::kGspo).ratio_high, 1.0 + 4e-4);
  EXPECT_EQ(token_sum_kind("gspo"), TokenSumKind::kGspo);
  EXPECT_EQ(token_sum_kind("stable_reinforce"), std::nullopt);
}

TEST(TokenSumLossTest, RefusesWhatItCannotCompute) {
  const auto message = [](TokenSumKind kind, auto change) {
    SumCase one(8);
    change(one);
    return refusal(default_options(kind), one).message();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(message(TokenSumKind::kPpo, [](SumCase& x) { x.sequence.advantages.clear(); }),
            "bad_shape: advantages has 0 values, expected 24 (sample 7)");
  EXPECT_EQ(message(TokenSumKind::kPpo, [](SumCase& x) { x.sequence.behavior_logprobs.clear(); }),
            "bad_shape: behavior_logprobs has 0 values, expected 24 (sample 7)");
  EXPECT_EQ(message(TokenSumKind::kGspo, [](SumCase& x) { x.sequence.token_weights.clear(); }),
            "bad_shape: token_weights has 0 values, expected 24 (sample 7)");
  EXPECT_EQ(message(TokenSumKind::kDro, [&](SumCase& x) { x.sequence.advantages[5] = nan; }),
            "non_finite: advantages[5] (sample 7) is not finite");
  EXPECT_EQ(message(TokenSumKind::kCispo, [&](SumCase& x) { x.l[5] = nan; }),
            "non_finite: logprobs[5] (sample 7) is not finite");
  EXPECT_EQ(message(TokenSumKind::kImportanceSampling,
                    [](SumCase& x) { x.sequence.behavior_logprobs[5] = -1000.0F; }),
            "non_finite_result: loss[5] (sample 7) overflows");
  EXPECT_EQ(message(TokenSumKind::kGspo,
                    [](SumCase& x) { std::ranges::fill(x.sequence.token_weights, 0.0F); }),
            "bad_option: the ratio mask marks no target (sample 7)");
  EXPECT_EQ(
      message(TokenSumKind::kPpo, [](SumCase& x) { x.sequence.response_mask[5] = 2; }).substr(0, 9),
      "bad_mask:");
}

TEST(TokenSumLossTest, RefusesOptionsOutOfRange) {
  for (const auto& [low, high, beta] :
       std::vector<std::array<double, 3>>{{-0.1, 1.2, 0.0},
                                          {1.2, 1.1, 0.0},
                                          {0.8, HUGE_VAL, 0.0},
                                          {0.8, 1.2, -1.0},
                                          {0.8, 1.2, std::nan("")}}) {
    EXPECT_FALSE(TokenSumLoss::create({TokenSumKind::kPpo, low, high, beta}).ok())
        << low << " " << high << " " << beta;
  }
}

TEST(TokenSumLossTest, ForwardGivesTheLossOfGivenLogprobs) {
  std::vector<SumCase> cases = {SumCase(1), SumCase(2, 9)};
  const std::vector<TrainSequence> sequences = {cases[0].sequence, cases[1].sequence};
  const std::vector<std::vector<float>> logprobs = {cases[0].l, cases[1].l};
  TokenSumLoss loss = TokenSumLoss::create(default_options(TokenSumKind::kDro)).value();
  const Result<LossSums> sums = evaluate_forward(loss, sequences, logprobs);
  ASSERT_TRUE(sums.ok());
  EXPECT_EQ(sums.value().at("loss"), run(default_options(TokenSumKind::kDro), cases[0]).loss +
                                         run(default_options(TokenSumKind::kDro), cases[1]).loss);
  EXPECT_EQ(sums.value().at("tokens"), 12.0 + 4.0);
}

}  // namespace
}  // namespace tidemill::engines
