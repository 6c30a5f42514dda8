// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/rl/algorithm.hpp"
#include "engines/rl/policy_loss.hpp"
#include "engines/rl/policy_token_loss.hpp"
#include "engines/rl/sft_token_loss.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::engines {
namespace {

/// A batch of ragged sequences whose masks have holes, with one sequence fully masked, and the
/// current log-probabilities that a model would compute.
struct Batch {
  std::vector<TrainSequence> sequences;
  std::vector<std::vector<float>> logprobs, entropies, dlogprobs, dentropies;
  double ratio_max = 0.0;

  explicit Batch(std::uint64_t seed) {
    RandomStream random(seed);
    const auto uniform = [&](double low, double high) {
      return static_cast<float>(low + (high - low) * random.uniform());
    };
    for (std::uint64_t row = 0; row < 7; ++row) {
      const std::size_t length = 2 + random.below(9);
      TrainSequence sequence;
      sequence.id = SampleId{100 + row};
      sequence.ids.assign(length, 1);
      for (std::size_t t = 0; t < length; ++t) {
        sequence.response_mask.push_back(row != 3 && random.below(3) != 0 ? 1 : 0);
        sequence.behavior_logprobs.push_back(uniform(-3.0, -0.1));
        sequence.proximal_logprobs.push_back(sequence.behavior_logprobs[t] + uniform(-0.5, 0.5));
        sequence.reference_logprobs.push_back(uniform(-3.0, -0.1));
        sequence.advantages.push_back(uniform(-1.0, 1.0));
      }
      sequence.response_mask[0] = 1;  // never a target
      logprobs.emplace_back();
      entropies.emplace_back();
      for (std::size_t t = 0; t < length; ++t) {
        logprobs.back().push_back(sequence.behavior_logprobs[t] + uniform(-0.5, 0.5));
        entropies.back().push_back(uniform(0.0, 2.0));
      }
      sequences.push_back(sequence);
    }
  }

  std::vector<LossRow> rows() {
    std::vector<LossRow> result;
    dlogprobs.clear();
    dentropies.clear();
    for (const TrainSequence& sequence : sequences) {
      dlogprobs.emplace_back(sequence.ids.size(), 0.0F);
      dentropies.emplace_back(sequence.ids.size(), 0.0F);
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      result.push_back({&sequences[i], logprobs[i], entropies[i], dlogprobs[i], dentropies[i]});
    }
    return result;
  }

  /// Evaluates in micro-batches of `size` rows.
  LossSums evaluate(TokenLoss& loss, std::size_t size) {
    const std::vector<LossRow> all = rows();
    LossSums sums;
    for (std::size_t begin = 0; begin < all.size(); begin += size) {
      const std::size_t count = std::min(size, all.size() - begin);
      const Status status = loss.evaluate(std::span(all).subspan(begin, count), sums);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    return sums;
  }
};

/// Every algorithm of the table, plus options that the table does not use.
std::vector<PolicyTokenLossOptions> variants() {
  std::vector<PolicyTokenLossOptions> result;
  for (const Algorithm& row : algorithms()) {
    result.emplace_back().policy = row.policy;
    result.back().policy.aggregate.horizon = 12;
    result.push_back(result.back());
    result.back().old_logprobs = OldLogprobs::kProximal;
    result.back().policy.kl_coefficient = 0.1;
    result.back().entropy_coefficient = 0.01;
  }
  result.emplace_back().policy.ratio_level = RatioLevel::kSequence;
  return result;
}

TEST(PolicyTokenLoss, EverySplitIntoMicroBatchesGivesTheSameBits) {
  for (const PolicyTokenLossOptions& options : variants()) {
    Batch batch(1);
    const BatchCounts totals = count_targets(batch.sequences);
    PolicyTokenLoss whole = PolicyTokenLoss::create(options, totals).value();
    const LossSums want = batch.evaluate(whole, batch.sequences.size());
    const auto want_dlogprobs = batch.dlogprobs;
    const auto want_dentropies = batch.dentropies;
    for (const std::size_t size : {1UL, 2UL, 3UL, 5UL}) {
      PolicyTokenLoss cut = PolicyTokenLoss::create(options, totals).value();
      EXPECT_EQ(batch.evaluate(cut, size), want);
      EXPECT_EQ(batch.dlogprobs, want_dlogprobs);
      EXPECT_EQ(batch.dentropies, want_dentropies);
      EXPECT_EQ(cut.ratio_max(), whole.ratio_max());
    }
  }
}

TEST(PolicyTokenLoss, IsThePolicyLossOfTheWholeBatch) {
  for (PolicyTokenLossOptions options : variants()) {
    options.entropy_coefficient = 0.0;
    Batch batch(2);
    PolicyTokenLoss loss = PolicyTokenLoss::create(options, count_targets(batch.sequences)).value();
    const LossSums sums = batch.evaluate(loss, 2);

    std::vector<std::size_t> offsets = {0};
    std::vector<std::uint8_t> mask;
    std::vector<float> logprobs, behavior, proximal, reference, advantages, dlogprobs;
    const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      const TrainSequence& sequence = batch.sequences[i];
      mask.push_back(0);
      mask.insert(mask.end(), sequence.response_mask.begin() + 1, sequence.response_mask.end());
      offsets.push_back(mask.size());
      append(logprobs, batch.logprobs[i]);
      append(behavior, sequence.behavior_logprobs);
      append(proximal, sequence.proximal_logprobs);
      append(reference, sequence.reference_logprobs);
      append(advantages, sequence.advantages);
      append(dlogprobs, batch.dlogprobs[i]);
    }
    const bool decoupled = options.old_logprobs == OldLogprobs::kProximal;
    if (decoupled) {
      options.policy.rollout_correction.emplace();
    }
    std::vector<float> gradient(mask.size());
    const PolicyLossReport want = policy_loss<float>({{offsets, mask, {}},
                                                      logprobs,
                                                      decoupled ? proximal : behavior,
                                                      advantages,
                                                      behavior,
                                                      reference,
                                                      {}},
                                                     options.policy, {gradient, {}})
                                      .value();
    EXPECT_NEAR(sums.at("loss"), want.loss, 1e-12);
    EXPECT_EQ(sums.at("tokens"), static_cast<double>(want.tokens));
    EXPECT_EQ(sums.at("clipped_tokens"), static_cast<double>(want.clipped_tokens));
    EXPECT_EQ(sums.at("rejected_tokens"), 0.0);
    EXPECT_NEAR(sums.at("ratio_sum"), want.ratio_sum, 1e-12 * want.ratio_sum);
    EXPECT_EQ(loss.ratio_max(), want.ratio_max);
    EXPECT_EQ(dlogprobs, gradient);
  }
}

TEST(PolicyTokenLoss, OnPolicyTheRatiosAreOneAndTheDivergenceIsZero) {
  Batch batch(3);
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    batch.logprobs[i] = batch.sequences[i].behavior_logprobs;
  }
  const BatchCounts totals = count_targets(batch.sequences);
  PolicyTokenLoss loss = PolicyTokenLoss::create({}, totals).value();
  const LossSums sums = batch.evaluate(loss, 3);
  EXPECT_EQ(sums.at("ratio_sum"), sums.at("tokens"));
  EXPECT_EQ(loss.ratio_max(), 1.0);
  EXPECT_EQ(sums.at("kl_k1_sum"), 0.0);
  EXPECT_EQ(sums.at("kl_k3_sum"), 0.0);
  EXPECT_EQ(sums.at("clipped_tokens"), 0.0);
  const auto scale = static_cast<double>(totals.tokens);
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    for (std::size_t t = 1; t < batch.logprobs[i].size(); ++t) {
      const bool target = batch.sequences[i].response_mask[t] != 0;
      const double advantage = batch.sequences[i].advantages[t];
      EXPECT_EQ(batch.dlogprobs[i][t], target ? static_cast<float>(-advantage / scale) : 0.0F);
    }
    EXPECT_EQ(batch.dlogprobs[i][0], 0.0F);
  }
}

TEST(PolicyTokenLoss, EntropyBonusLowersTheLossByTheScaledMeanEntropy) {
  Batch batch(4);
  const BatchCounts totals = count_targets(batch.sequences);
  PolicyTokenLoss plain = PolicyTokenLoss::create({}, totals).value();
  const LossSums without = batch.evaluate(plain, 7);
  PolicyTokenLossOptions options;
  options.entropy_coefficient = 0.5;
  PolicyTokenLoss bonus = PolicyTokenLoss::create(options, totals).value();
  const LossSums with = batch.evaluate(bonus, 7);
  const double tokens = with.at("tokens");
  EXPECT_NEAR(with.at("loss"), without.at("loss") - 0.5 * with.at("entropy_sum") / tokens, 1e-12);
  EXPECT_EQ(batch.dentropies[3], std::vector<float>(batch.dentropies[3].size(), 0.0F));
  double sum = 0.0;
  for (const auto& row : batch.dentropies) {
    for (const float slope : row) {
      sum += static_cast<double>(slope);
    }
  }
  EXPECT_NEAR(sum, -0.5, 1e-6);
}

TEST(PolicyTokenLoss, RefusalsNameTheSample) {
  const auto message = [](auto change) {
    Batch batch(5);
    change(batch);
    PolicyTokenLoss loss = PolicyTokenLoss::create({}, count_targets(batch.sequences)).value();
    LossSums sums;
    return loss.evaluate(batch.rows(), sums).message();
  };
  EXPECT_EQ(message([](Batch&) {}), "");
  EXPECT_EQ(message([](Batch& b) { b.sequences[2].advantages.clear(); }).substr(0, 34),
            "bad_shape: advantages has 0 values");
  EXPECT_NE(message([](Batch& b) { b.sequences[2].advantages.clear(); }).find("(sample 102)"),
            std::string::npos);
  EXPECT_NE(message([](Batch& b) {
              b.sequences[1].response_mask.back() = 2;
            }).find("bad_mask: response_mask["),
            std::string::npos);
  const std::string nan = message([](Batch& b) {
    b.sequences[4].response_mask.back() = 1;
    b.sequences[4].behavior_logprobs.back() = std::numeric_limits<float>::quiet_NaN();
  });
  EXPECT_EQ(nan.substr(0, 29), "non_finite: behavior_logprobs");
  EXPECT_NE(nan.find("sample 104"), std::string::npos);
}

TEST(PolicyTokenLoss, RefusesOptionsThatNeedTheWholeBatchAtOnce) {
  const auto refused = [](const std::function<void(PolicyTokenLossOptions&)>& change) {
    PolicyTokenLossOptions options;
    change(options);
    return !PolicyTokenLoss::create(options, {3, 1, 1, 3}).ok();
  };
  EXPECT_FALSE(refused([](auto&) {}));
  EXPECT_TRUE(refused([](auto& o) { o.policy.reject_denominator = RejectDenominator::kKept; }));
  EXPECT_TRUE(refused([](auto& o) { o.policy.weight_denominator = WeightDenominator::kWeights; }));
  EXPECT_TRUE(refused([](auto& o) { o.policy.rollout_correction.emplace(); }));
  EXPECT_TRUE(refused([](auto& o) {
    o.old_logprobs = OldLogprobs::kProximal;
    o.policy.rollout_correction.emplace().batch_normalize = true;
  }));
  EXPECT_TRUE(refused([](auto& o) { o.entropy_coefficient = -1.0; }));
}

TEST(SftTokenLoss, IsTheTokenMeanOfTheWholeStepForEverySplit) {
  Batch batch(6);
  const std::int64_t targets = count_targets(batch.sequences).tokens;
  double sum = 0.0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    for (std::size_t t = 1; t < batch.logprobs[i].size(); ++t) {
      sum += batch.sequences[i].response_mask[t] * static_cast<double>(batch.logprobs[i][t]);
    }
  }
  SftTokenLoss whole(targets);
  const LossSums want = batch.evaluate(whole, 7);
  EXPECT_NEAR(want.at("loss"), -sum / static_cast<double>(targets), 1e-12);
  EXPECT_EQ(want.at("tokens"), static_cast<double>(targets));
  const auto gradient = batch.dlogprobs;
  for (const std::size_t size : {1UL, 2UL, 4UL}) {
    SftTokenLoss cut(targets);
    EXPECT_EQ(batch.evaluate(cut, size), want);
    EXPECT_EQ(batch.dlogprobs, gradient);
  }
  EXPECT_EQ(gradient[3], std::vector<float>(gradient[3].size(), 0.0F));  // fully masked
  EXPECT_EQ(gradient[0][0], 0.0F);                                       // never a target
}

TEST(SftTokenLoss, AStepWithoutTargetsIsZero) {
  Batch batch(7);
  for (TrainSequence& sequence : batch.sequences) {
    std::fill(sequence.response_mask.begin() + 1, sequence.response_mask.end(), std::uint8_t{0});
  }
  SftTokenLoss loss(0);
  EXPECT_EQ(batch.evaluate(loss, 7).at("loss"), 0.0);
  Batch other(7);
  LossSums sums;
  EXPECT_EQ(loss.evaluate(other.rows(), sums).message(),
            "bad_option: sample 100 has targets, but the loss was created for none");
}

TEST(CountTargets, CountsRowsSequencesAndTokensButNotTokenZero) {
  Batch batch(8);
  const BatchCounts counts = count_targets(batch.sequences);
  EXPECT_EQ(counts.rows, 7);
  EXPECT_LE(counts.seqs, 6);  // the mask of row 3 is set only at token 0, which is never a target
  std::int64_t tokens = 0;
  for (const TrainSequence& sequence : batch.sequences) {
    for (std::size_t t = 1; t < sequence.response_mask.size(); ++t) {
      tokens += sequence.response_mask[t];
    }
  }
  EXPECT_EQ(counts.tokens, tokens);
}

}  // namespace
}  // namespace tidemill::engines
