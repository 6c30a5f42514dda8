// SPDX-License-Identifier: Apache-2.0
// Options of the policy loss that act together: gradients against numerical slopes, and the loss of
// single tokens by hand.
#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/rl/policy_loss.hpp"

namespace tidemill::engines {
namespace {

/// Rows of mixed lengths whose masks have holes: one row has a single valid token, and one has
/// none.
struct RandomColumns {
  explicit RandomColumns(std::uint64_t seed) {
    RandomStream random(seed);
    const auto uniform = [&](double low, double high) {
      return low + (high - low) * random.uniform();
    };
    for (const std::size_t length : {6UL, 1UL, 9UL, 3UL, 4UL}) {
      for (std::size_t t = 0; t < length; ++t) {
        mask.push_back(length == 3 || (length == 9 && t % 4 == 2) ? 0 : 1);
        proximal.push_back(uniform(-2.0, -0.1));
        behavior.push_back(proximal.back() + uniform(-0.4, 0.4));
        reference.push_back(proximal.back() + uniform(-0.6, 0.6));
        logprobs.push_back(proximal.back() + uniform(-0.9, 1.6));
        advantages.push_back(uniform(-1.5, 1.5));
        token_weights.push_back(uniform(0.1, 2.0));
      }
      offsets.push_back(mask.size());
    }
  }

  [[nodiscard]] PolicyLossInputs<double> inputs(const std::vector<double>& current) const {
    return {{offsets, mask, {}}, current, proximal, advantages, behavior, reference, token_weights};
  }

  std::vector<std::size_t> offsets = {0};
  std::vector<std::uint8_t> mask;
  std::vector<double> logprobs, proximal, behavior, reference, advantages, token_weights;
};

/// Options in which several features are on at the same time.
std::vector<PolicyLossOptions> combinations() {
  std::vector<PolicyLossOptions> all;
  for (const PolicyLossKind kind :
       {PolicyLossKind::kPpo, PolicyLossKind::kReinforce, PolicyLossKind::kSapo}) {
    for (const KlEstimator estimator : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3}) {
      for (const bool unbiased : {false, true}) {
        for (const RatioLevel level : {RatioLevel::kToken, RatioLevel::kSequence}) {
          PolicyLossOptions options;
          options.kind = kind;
          options.ratio_level = level;
          options.dual_clip = 1.5;
          options.ratio_cap = 3.0;
          options.kl_coefficient = 0.3;
          options.kl.estimator = estimator;
          options.kl.unbiased = unbiased;
          options.aggregate.kind = Aggregation::kSeqMeanTokenMean;
          RolloutCorrectionOptions& correction = options.rollout_correction.emplace();
          correction.batch_normalize = true;
          correction.reject = {{RejectStat::kRatio, RejectScope::kToken, 0.75, 1.3}};
          all.push_back(options);
          options.reject_denominator = RejectDenominator::kKept;
          options.aggregate.kind = Aggregation::kTokenMean;
          options.weight_denominator = WeightDenominator::kWeights;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

TEST(CombinedOptions, GradientsMatchNumericalSlopes) {
  int num_rejected = 0;
  int num_clipped = 0;
  for (const std::uint64_t seed : {1U, 2U}) {
    const RandomColumns columns(seed);
    for (const PolicyLossOptions& options : combinations()) {
      std::vector<double> gradient(columns.mask.size());
      const PolicyLossReport report =
          policy_loss<double>(columns.inputs(columns.logprobs), options, {gradient, {}}).value();
      num_rejected += static_cast<int>(report.tokens - report.kept_tokens);
      num_clipped += static_cast<int>(report.clipped_tokens);
      for (std::size_t t = 0; t < gradient.size(); ++t) {
        const auto loss_at = [&](double step) {
          std::vector<double> moved = columns.logprobs;
          moved[t] += step;
          std::vector<double> unused(moved.size());
          return policy_loss<double>(columns.inputs(moved), options, {unused, {}}).value().loss;
        };
        constexpr double kStep = 1e-6;
        const double slope = (loss_at(kStep) - loss_at(-kStep)) / (2.0 * kStep);
        // The loss is about 1 and has 16 digits, so a difference of two has about 1e-10 of error.
        EXPECT_NEAR(gradient[t], slope, 1e-8) << t;
        if (columns.mask[t] == 0) {
          EXPECT_EQ(gradient[t], 0.0);
        }
      }
    }
  }
  EXPECT_GT(num_rejected, 100);
  EXPECT_GT(num_clipped, 100);
}

// One row of two tokens. The first is bounded by the dual clip, the second is rejected. The KL
// estimate of a token counts whatever its policy loss does, and a rejected token has neither.
TEST(CombinedOptions, TheKlPenaltyActsBesideTheDualClip) {
  const std::vector<std::size_t> offsets = {0, 2};
  const std::vector<std::uint8_t> mask = {1, 1};
  const double ln2 = std::log(2.0);
  const std::vector<double> proximal = {-3.0, -3.0};
  const std::vector<double> logprobs = {-3.0 + 2.0 * ln2, -3.0};  // ratios 4 and 1
  const std::vector<double> behavior = {-3.0 - ln2, -3.0 - 2.0 * ln2};
  const std::vector<double> reference = {-3.0 + ln2, -4.0};
  const std::vector<double> advantages = {-1.0, 1.0};
  PolicyLossOptions options;
  options.dual_clip = 3.0;
  options.kl_coefficient = 0.5;
  options.kl.estimator = KlEstimator::kK2;
  options.rollout_correction.emplace().rule = CorrectionRule::kRaw;
  options.rollout_correction->reject = {{RejectStat::kRatio, RejectScope::kToken, {}, 3.0}};
  std::vector<double> gradient(2);
  const PolicyLossReport report =
      policy_loss<double>(
          {{offsets, mask, {}}, logprobs, proximal, advantages, behavior, reference, {}}, options,
          {gradient, {}})
          .value();
  // The first token: weight 2 times 3 (dual clip) plus 0.5 * ln(2)^2 / 2; the mean is over both.
  EXPECT_NEAR(report.loss, (2.0 * 3.0 + 0.5 * 0.5 * ln2 * ln2) / 2.0, 1e-12);
  EXPECT_NEAR(gradient[0], 0.5 * ln2 / 2.0, 1e-12) << "only the KL estimate has a slope";
  EXPECT_EQ(gradient[1], 0.0);
  EXPECT_EQ(report.tokens, 2);
  EXPECT_EQ(report.kept_tokens, 1);
  EXPECT_NEAR(report.ratio_sum, 5.0, 1e-12);
  EXPECT_NEAR(report.ratio_max, 4.0, 1e-12);
}

}  // namespace
}  // namespace tidemill::engines
