// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/sampling/mass_kernels.hpp"

namespace tidemill::engines {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::size_t size, std::uint64_t seed) {
  RandomStream random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) {
    logit = static_cast<float>(3.0 * random.normal());
  }
  return logits;
}

/// Returns options with a bias of 0, which selects the general path without changing the result.
SamplingOptions general(SamplingOptions options) {
  options.logit_bias.emplace_back(0, 0.0F);
  return options;
}

TEST(Sampler, PlainAndGeneralPathSampleTheSameToken) {
  Sampler sampler;
  int draws = 0;
  for (const std::size_t size : {1UL, 7UL, 512UL, 513UL, 3001UL}) {
    for (const float temperature : {0.0F, 0.3F, 1.0F, 1.7F}) {
      const std::vector<float> logits = random_logits(size, size);
      SamplingOptions options;
      options.temperature = temperature;
      for (std::uint64_t position = 0; position < 200; ++position) {
        const SamplingKey key{11, SampleId{size}, position};
        ASSERT_EQ(sampler.sample(logits, options, {}, key).value(),
                  sampler.sample(logits, general(options), {}, key).value());
        ++draws;
      }
    }
  }
  EXPECT_EQ(draws, 5 * 4 * 200);
}

TEST(Sampler, TheTokenDependsOnlyOnItsKey) {
  const std::vector<float> logits = random_logits(100, 1);
  SamplingOptions options;
  options.temperature = 3.0F;
  Sampler first;
  std::vector<std::int32_t> tokens;
  for (std::uint64_t position = 0; position < 50; ++position) {
    tokens.push_back(first.sample(logits, options, {}, {5, SampleId{9}, position}).value());
  }
  Sampler second;
  for (std::uint64_t position = 50; position-- > 0;) {  // another order, with other calls between
    (void)second.sample(random_logits(300, position), {}, {}, {1, SampleId{2}, 3});
    EXPECT_EQ(second.sample(logits, options, {}, {5, SampleId{9}, position}).value(),
              tokens[position]);
  }
  EXPECT_GT(std::set<std::int32_t>(tokens.begin(), tokens.end()).size(), 10U);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits = random_logits(40, 3);
  SamplingOptions options;
  options.temperature = 0.8F;
  options.top_p = 0.9F;
  Sampler sampler;
  std::vector<float> probabilities(logits.size());
  ASSERT_TRUE(sampler.distribution(logits, options, {}, probabilities).ok());
  constexpr int kDraws = 40000;
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < kDraws; ++i) {
    const SamplingKey key{1, SampleId{4}, static_cast<std::uint64_t>(i)};
    ++counts[static_cast<std::size_t>(sampler.sample(logits, options, {}, key).value())];
  }
  for (std::size_t t = 0; t < counts.size(); ++t) {
    const double p = static_cast<double>(probabilities[t]);
    // Five standard deviations of a binomial count; exactly 0 for dropped tokens.
    EXPECT_LE(std::abs(counts[t] - kDraws * p), 5.0 * std::sqrt(kDraws * p * (1.0 - p))) << t;
  }
}

TEST(Sampler, ExtremeUniformNumbersChooseTheFirstAndLastKeptToken) {
  const std::vector<float> logits = {-kInfinity, 0.0F, 1.0F, 0.5F, -kInfinity};
  Sampler sampler;
  EXPECT_EQ(sampler.sample_with(logits, {}, {}, 0.0).value(), 1);
  EXPECT_EQ(sampler.sample_with(logits, {}, {}, std::nextafter(1.0, 0.0)).value(), 3);
}

TEST(Sampler, GreedyChoosesTheFirstOfTheLargestLogits) {
  const std::vector<float> logits = {1.0F, 3.0F, 3.0F, 2.0F};
  SamplingOptions options;
  options.temperature = 0.0F;
  Sampler sampler;
  EXPECT_EQ(sampler.sample_with(logits, options, {}, 0.9).value(), 1);
  options.top_k = 1;  // filters have no effect
  EXPECT_EQ(sampler.sample_with(logits, options, {}, 0.9).value(), 1);
  options.logit_bias = {{3, 5.0F}};
  EXPECT_EQ(sampler.sample_with(logits, options, {}, 0.9).value(), 3);
}

TEST(Sampler, PenaltiesCountTheOutputAndUseThePromptOnce) {
  const std::vector<float> logits = {2.0F, -1.0F, 2.0F, 2.0F};
  const std::vector<std::int32_t> prompt = {0, 0, 1};
  const std::vector<std::int32_t> output = {2, 2, 0};
  SamplingOptions options;
  options.repetition_penalty = 2.0F;
  options.frequency_penalty = 0.25F;
  options.presence_penalty = 0.5F;
  Sampler sampler;
  std::vector<float> got(4);
  ASSERT_TRUE(sampler.distribution(logits, options, {prompt, output}, got).ok());
  const double want[] = {2.0 / 2 - 0.25 - 0.5, -1.0 * 2, 2.0 / 2 - 2 * 0.25 - 0.5, 2.0};
  double total = 0.0;
  for (const double logit : want) {
    total += std::exp(logit);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(got[i], std::exp(want[i]) / total, 1e-7);
  }
}

TEST(Sampler, TopPOfAFlatDistributionKeepsThatShareOfTheTokens) {
  const std::vector<float> logits(10000, 1.0F);
  SamplingOptions options;
  options.top_p = 0.5F;
  Sampler sampler;
  std::vector<float> probabilities(logits.size());
  EXPECT_EQ(sampler.distribution(logits, options, {}, probabilities).value(), 5000);
  EXPECT_EQ(probabilities.front(), 0.0F);  // of equal tokens, the lowest id is dropped first
  EXPECT_GT(probabilities.back(), 0.0F);
}

TEST(Sampler, TopPAgreesWithASortOfAllTokens) {
  const std::vector<float> logits = random_logits(5000, 12);
  Sampler sampler;
  std::vector<float> full(logits.size());
  std::vector<float> got(logits.size());
  ASSERT_TRUE(sampler.distribution(logits, {}, {}, full).ok());
  std::vector<float> sorted = full;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (const float top_p : {0.01F, 0.1F, 0.5F, 0.9F, 0.99F, 0.999F}) {
    double mass = 0.0;
    std::int64_t want = 0;
    while (mass < static_cast<double>(top_p)) {
      mass += static_cast<double>(sorted[static_cast<std::size_t>(want++)]);
    }
    SamplingOptions options;
    options.top_p = top_p;
    EXPECT_EQ(sampler.distribution(logits, options, {}, got).value(), want) << top_p;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i] > 0.0F, full[i] >= sorted[static_cast<std::size_t>(want - 1)]);
    }
  }
}

TEST(Sampler, RefusesLogitsThatAreNotADistribution) {
  Sampler sampler;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{0.0F, nan}, {0.0F, kInfinity}, {-kInfinity, -kInfinity}}) {
    for (const float temperature : {0.0F, 1.0F}) {
      SamplingOptions options;
      options.temperature = temperature;
      const Result<std::int32_t> token = sampler.sample(logits, options, {}, {0, SampleId{17}, 4});
      EXPECT_EQ(token.status().code(), Errc::kInternal);
      EXPECT_EQ(token.status().message().find("sample 17, position 4: "), 0U);
      EXPECT_FALSE(sampler.sample_with(logits, general(options), {}, 0.5).ok());
    }
  }
}

TEST(Sampler, RefusesHistoryOutsideTheVocabulary) {
  const std::vector<float> logits(4, 0.0F);
  const std::vector<std::int32_t> output = {4};
  SamplingOptions options;
  options.presence_penalty = 1.0F;
  Sampler sampler;
  EXPECT_EQ(sampler.sample_with(logits, options, {{}, output}, 0.5).status().message(),
            "token 4 is outside the vocabulary");
  options.presence_penalty = 0.0F;
  options.repetition_penalty = 2.0F;
  const std::vector<std::int32_t> prompt = {3, -1};
  EXPECT_EQ(sampler.sample_with(logits, options, {prompt, {}}, 0.5).status().message(),
            "token -1 is outside the vocabulary");
  EXPECT_TRUE(sampler.sample_with(logits, options, {std::span(prompt).first(1), {}}, 0.5).ok());
}

// The probabilities of a call go to an array of its size, also after a call that failed.
TEST(Sampler, ADistributionHasTheSizeOfTheLogits) {
  const std::vector<float> logits = {0.0F, std::log(3.0F), -kInfinity};
  Sampler sampler;
  std::vector<float> probabilities(2);
  EXPECT_EQ(sampler.distribution(logits, {}, {}, probabilities).status().message(),
            "probabilities and logits must have the same size");
  probabilities.resize(4);
  EXPECT_FALSE(sampler.distribution(logits, {}, {}, probabilities).ok());
  probabilities.resize(3);
  const std::vector<float> bad = {0.0F, std::nanf(""), 0.0F};
  EXPECT_EQ(sampler.distribution(bad, {}, {}, probabilities).status().code(), Errc::kInternal);
  for (const bool plain : {true, false}) {
    const SamplingOptions options = plain ? SamplingOptions{} : general({});
    EXPECT_EQ(sampler.distribution(logits, options, {}, probabilities).value(), 2);
    EXPECT_NEAR(probabilities[0], 0.25F, 1e-6F);
    EXPECT_NEAR(probabilities[1], 0.75F, 1e-6F);
    EXPECT_EQ(probabilities[2], 0.0F);
  }
  SamplingOptions greedy;
  greedy.temperature = 0.0F;
  EXPECT_EQ(sampler.distribution(logits, greedy, {}, probabilities).value(), 1);
  EXPECT_EQ(probabilities, (std::vector<float>{0.0F, 1.0F, 0.0F}));
}

// A probability that is exactly min_p times the largest is kept.
TEST(Sampler, MinPKeepsATokenAtTheBoundAndDropsTheNextLower) {
  const std::vector<float> logits = {2.0F, 1.0F, 2.0F, 0.5F};
  Sampler sampler;
  std::vector<float> got(4);
  const auto kept = [&](float min_p, float temperature) {
    SamplingOptions options;
    options.min_p = min_p;
    options.temperature = temperature;
    return sampler.distribution(logits, options, {}, got).value();
  };
  const float share = exp_nonpositive(-1.0F);  // of token 1, relative to tokens 0 and 2
  EXPECT_EQ(kept(share, 1.0F), 3);
  EXPECT_GT(got[1], 0.0F);
  EXPECT_EQ(got[3], 0.0F);
  EXPECT_EQ(kept(std::nextafter(share, 1.0F), 1.0F), 2);
  EXPECT_EQ(got[1], 0.0F);
  EXPECT_EQ(kept(1.0F, 1.0F), 2) << "all that tie with the most probable token";
  EXPECT_EQ(got[0], 0.5F);
  EXPECT_EQ(kept(exp_nonpositive(-0.5F), 2.0F), 3) << "the temperature acts before";
}

// The tokens before the dropped ones have exactly the mass top_p.
TEST(Sampler, TopPKeepsTheFewestTokensWhoseMassIsAtLeastTheBound) {
  Sampler sampler;
  std::vector<float> got(4);
  const auto kept = [&](const std::vector<float>& logits, float top_p) {
    SamplingOptions options;
    options.top_p = top_p;
    return sampler.distribution(logits, options, {}, got).value();
  };
  const std::vector<float> flat(4, 1.0F);
  EXPECT_EQ(kept(flat, 0.5F), 2);
  EXPECT_EQ(got, (std::vector<float>{0.0F, 0.0F, 0.5F, 0.5F}));
  EXPECT_EQ(kept(flat, std::nextafter(0.5F, 1.0F)), 3);
  EXPECT_EQ(kept(flat, std::nextafter(0.5F, 0.0F)), 2);
  EXPECT_EQ(kept(flat, 1e-9F), 1) << "the most probable token is always kept";
  EXPECT_EQ(kept(flat, std::nextafter(1.0F, 0.0F)), 4);
  EXPECT_EQ(kept({0.0F, 3.0F, 0.0F, 3.0F}, 0.25F), 1);
  EXPECT_EQ(got[3], 1.0F) << "of equal tokens, the lowest id is dropped first";
}

TEST(Sampler, TopKKeepsEveryTokenThatTiesWithTheLast) {
  const std::vector<float> logits = {1.0F, 2.0F, 1.0F, 0.0F, 1.0F, -kInfinity};
  Sampler sampler;
  std::vector<float> got(6);
  const auto kept = [&](std::int32_t k, float top_p = 1.0F) {
    SamplingOptions options;
    options.top_k = k;
    options.top_p = top_p;
    return sampler.distribution(logits, options, {}, got).value();
  };
  EXPECT_EQ(kept(1), 1);
  EXPECT_EQ(kept(2), 4);
  EXPECT_EQ(got[3], 0.0F);
  EXPECT_EQ(kept(3), 4);
  EXPECT_EQ(kept(4), 4);
  EXPECT_EQ(kept(5), 5);
  EXPECT_EQ(kept(6), 5) << "a token of probability 0 is never kept";
  EXPECT_EQ(kept(1000), 5);
  EXPECT_EQ(kept(2, 0.6F), 2) << "top-p counts the mass of the tokens that top-k kept";
  EXPECT_GT(got[4], 0.0F);
}

// Several biases of one token add up, and every step follows the bias.
TEST(Sampler, BiasesOfOneTokenAddUp) {
  const std::vector<float> logits(3, 0.0F);
  SamplingOptions options;
  options.logit_bias = {{1, 2.0F}, {2, 1.0F}, {1, -1.0F}, {1, 0.5F}};
  Sampler sampler;
  std::vector<float> got(3);
  ASSERT_TRUE(sampler.distribution(logits, options, {}, got).ok());
  EXPECT_NEAR(got[1] / got[0], std::exp(1.5), 1e-5);
  EXPECT_NEAR(got[2] / got[0], std::exp(1.0), 1e-5);
}

// Each penalty alone, and a repetition penalty of 1, whatever the sign of the logit.
TEST(Sampler, APenaltyActsAlone) {
  const std::vector<float> logits = {0.0F, 1.5F, -1.5F, 0.5F};
  const std::vector<std::int32_t> prompt = {3, 1, 2};
  const std::vector<std::int32_t> output = {1, 1, 2, 0};
  Sampler sampler;
  std::vector<float> plain(4);
  ASSERT_TRUE(sampler.distribution(logits, general({}), {}, plain).ok());
  const auto logit_of = [&](const SamplingOptions& options, std::size_t token) {
    std::vector<float> got(4);
    EXPECT_TRUE(sampler.distribution(logits, options, {prompt, output}, got).ok());
    // Token 3 occurs only in the prompt, where the frequency and presence penalties do not see it.
    return static_cast<double>(logits[3]) +
           std::log(static_cast<double>(got[token]) / static_cast<double>(got[3]));
  };
  SamplingOptions frequency;
  frequency.frequency_penalty = 0.25F;
  EXPECT_NEAR(logit_of(frequency, 0), 0.0 - 0.25, 1e-6);
  EXPECT_NEAR(logit_of(frequency, 1), 1.5 - 2 * 0.25, 1e-6);
  EXPECT_NEAR(logit_of(frequency, 2), -1.5 - 0.25, 1e-6);
  SamplingOptions presence;
  presence.presence_penalty = -0.25F;  // a reward
  EXPECT_NEAR(logit_of(presence, 0), 0.0 + 0.25, 1e-6);
  EXPECT_NEAR(logit_of(presence, 1), 1.5 + 0.25, 1e-6);
  EXPECT_NEAR(logit_of(presence, 2), -1.5 + 0.25, 1e-6);
  SamplingOptions repetition;
  repetition.repetition_penalty = 2.0F;
  const double shift = 0.5 - 0.25;  // token 3 is penalized as well
  EXPECT_NEAR(logit_of(repetition, 0) - shift, 0.0, 1e-6);
  EXPECT_NEAR(logit_of(repetition, 1) - shift, 0.75, 1e-6);
  EXPECT_NEAR(logit_of(repetition, 2) - shift, -3.0, 1e-6);
  SamplingOptions none = general({});
  none.repetition_penalty = 1.0F;
  std::vector<float> got(4);
  ASSERT_TRUE(sampler.distribution(logits, none, {prompt, output}, got).ok());
  EXPECT_EQ(got, plain);
}

// A sampler is used for one sequence after the other: histories of a call must not act in the next,
// even if a call fails in between.
TEST(Sampler, NothingOfACallActsInTheNext) {
  const std::vector<float> small = random_logits(5, 21);
  const std::vector<float> large = random_logits(700, 22);
  SamplingOptions penalized;
  penalized.repetition_penalty = 1.3F;
  penalized.frequency_penalty = 0.5F;
  penalized.top_k = 3;
  SamplingOptions greedy;
  greedy.temperature = 0.0F;
  const std::vector<std::int32_t> many = {4, 4, 3, 0, 1};
  const std::vector<std::int32_t> few = {2};
  const std::vector<std::int32_t> outside = {1, 700};
  const auto fresh = [](const auto& logits, const SamplingOptions& options,
                        const TokenHistory& history) {
    Sampler sampler;
    std::vector<float> probabilities(logits.size());
    EXPECT_TRUE(sampler.distribution(logits, options, history, probabilities).ok());
    return probabilities;
  };
  Sampler sampler;
  const auto again = [&](const auto& logits, const SamplingOptions& options,
                         const TokenHistory& history) {
    std::vector<float> probabilities(logits.size());
    EXPECT_TRUE(sampler.distribution(logits, options, history, probabilities).ok());
    return probabilities;
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(again(large, penalized, {many, many}), fresh(large, penalized, {many, many}));
    EXPECT_EQ(again(small, penalized, {few, many}), fresh(small, penalized, {few, many}));
    EXPECT_FALSE(sampler.sample_with(large, penalized, {many, outside}, 0.5).ok());
    EXPECT_EQ(again(large, penalized, {few, {}}), fresh(large, penalized, {few, {}}));
    EXPECT_EQ(again(small, greedy, {}), fresh(small, greedy, {}));
    EXPECT_EQ(again(large, {}, {many, many}), fresh(large, {}, {}));
  }
}

// The lowest temperature leaves one token, and a very high one makes all of them equal.
TEST(Sampler, TemperaturesAtTheirLimitsGiveDistributions) {
  const std::vector<float> logits = {10.0F, 10.5F, -10.0F};
  Sampler sampler;
  std::vector<float> got(3);
  SamplingOptions options;
  options.temperature = kMinTemperature;
  ASSERT_TRUE(sampler.distribution(logits, options, {}, got).ok());
  EXPECT_EQ(got, (std::vector<float>{0.0F, 1.0F, 0.0F}));
  options.temperature = std::numeric_limits<float>::max();
  ASSERT_TRUE(sampler.distribution(logits, options, {}, got).ok());
  EXPECT_EQ(got, (std::vector<float>(3, 1.0F / 3.0F)));
}

TEST(SamplingOptions, ValuesAtTheLimitsAreAccepted) {
  const auto accepted = [](auto change) {
    SamplingOptions options;
    change(options);
    return validate(options, 10).ok();
  };
  EXPECT_TRUE(accepted([](auto& o) { o.temperature = 0.0F; }));
  EXPECT_TRUE(accepted([](auto& o) { o.temperature = kMinTemperature; }));
  EXPECT_FALSE(accepted([](auto& o) { o.temperature = std::nextafter(kMinTemperature, 0.0F); }));
  EXPECT_TRUE(accepted([](auto& o) { o.top_p = 1.0F; }));
  EXPECT_TRUE(accepted([](auto& o) { o.top_p = std::numeric_limits<float>::denorm_min(); }));
  EXPECT_FALSE(accepted([](auto& o) { o.top_p = std::nextafter(1.0F, 2.0F); }));
  EXPECT_TRUE(accepted([](auto& o) { o.min_p = 1.0F; }));
  EXPECT_FALSE(accepted([](auto& o) { o.min_p = std::nextafter(1.0F, 2.0F); }));
  EXPECT_FALSE(accepted([](auto& o) { o.min_p = -std::nextafter(0.0F, 1.0F); }));
  EXPECT_TRUE(accepted([](auto& o) { o.top_k = std::numeric_limits<std::int32_t>::max(); }));
  EXPECT_TRUE(accepted([](auto& o) { o.logit_bias = {{9, 1.0F}, {0, -1.0F}}; }));
  EXPECT_FALSE(accepted([](auto& o) { o.logit_bias = {{-1, 1.0F}}; }));
}

TEST(SamplingOptions, RefusalsNameTheOption) {
  const auto message = [](auto change) {
    SamplingOptions options;
    change(options);
    return validate(options, 10).message();
  };
  EXPECT_EQ(message([](auto& o) { o.temperature = -1.0F; }),
            "sampling.temperature must be finite and at least 0");
  EXPECT_EQ(message([](auto& o) { o.temperature = 1e-39F; }),
            "sampling.temperature must be 0 or at least 0.001");
  EXPECT_EQ(message([](auto& o) { o.top_k = -1; }), "sampling.top_k must be at least 0");
  EXPECT_EQ(message([](auto& o) { o.top_p = 0.0F; }), "sampling.top_p must be in (0, 1]");
  EXPECT_EQ(message([](auto& o) { o.min_p = std::nanf(""); }), "sampling.min_p must be in [0, 1]");
  EXPECT_EQ(message([](auto& o) { o.repetition_penalty = 0.0F; }),
            "sampling.repetition_penalty must be finite and above 0");
  EXPECT_EQ(message([](auto& o) { o.presence_penalty = kInfinity; }),
            "sampling.frequency_penalty and presence_penalty must be finite");
  EXPECT_EQ(message([](auto& o) {
              o.logit_bias = {{10, 1.0F}};
            }),
            "sampling.logit_bias must be on tokens in 0..9, not 10");
  EXPECT_EQ(message([](auto& o) {
              o.logit_bias = {{3, kInfinity}};
            }),
            "sampling.logit_bias must be finite (token 3)");
  // Numbers that are not finite fail every comparison or none.
  const float nan = std::nanf("");
  for (const float bad : {nan, kInfinity, -kInfinity}) {
    EXPECT_EQ(message([&](auto& o) { o.temperature = bad; }),
              "sampling.temperature must be finite and at least 0");
    EXPECT_EQ(message([&](auto& o) { o.top_p = bad; }), "sampling.top_p must be in (0, 1]");
    EXPECT_EQ(message([&](auto& o) { o.min_p = bad; }), "sampling.min_p must be in [0, 1]");
    EXPECT_EQ(message([&](auto& o) { o.repetition_penalty = bad; }),
              "sampling.repetition_penalty must be finite and above 0");
    EXPECT_EQ(message([&](auto& o) { o.frequency_penalty = bad; }),
              "sampling.frequency_penalty and presence_penalty must be finite");
    EXPECT_EQ(message([&](auto& o) { o.presence_penalty = bad; }),
              "sampling.frequency_penalty and presence_penalty must be finite");
    EXPECT_EQ(message([&](auto& o) {
                o.logit_bias = {{3, 1.0F}, {4, bad}};
              }),
              "sampling.logit_bias must be finite (token 4)");
  }
  EXPECT_EQ(message([](auto& o) { o.repetition_penalty = -1.0F; }),
            "sampling.repetition_penalty must be finite and above 0");
  EXPECT_EQ(message([](auto& o) { o.frequency_penalty = -2.0F; }), "");
  EXPECT_EQ(message([](auto& o) {
              o.logit_bias = {{-1, 1.0F}};
            }),
            "sampling.logit_bias must be on tokens in 0..9, not -1");
  EXPECT_EQ(message([](auto&) {}), "");
}

}  // namespace
}  // namespace tidemill::engines
