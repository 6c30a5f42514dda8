// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/rl/algorithm.hpp"
#include "engines/rl/policy_loss.hpp"
#include "engines/rl/policy_terms.hpp"
#include "engines/rl/policy_token_loss.hpp"
#include "engines/rl/rollout_correction.hpp"
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

  std::vector<LossSequence> rows() {
    std::vector<LossSequence> result;
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
    const std::vector<LossSequence> all = rows();
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

// Returns the gradients of a token-local loss, `size` tokens at a time. The log-probabilities of
// other tokens are not known to it.
void expect_gradients_of_tokens(TokenLoss& loss, Batch& batch, std::size_t size) {
  static_cast<void>(batch.evaluate(loss, batch.sequences.size()));
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const std::size_t length = batch.sequences[i].ids.size();
    std::vector<float> dlogprobs(length);
    std::vector<float> dentropies(length);
    for (std::size_t first = 0; first < length; first += size) {
      const std::size_t count = std::min(size, length - first);
      const auto part = [=](auto& column) { return std::span(column).subspan(first, count); };
      const std::vector<float> logprobs(batch.logprobs[i].begin() + std::ptrdiff_t(first),
                                        batch.logprobs[i].begin() + std::ptrdiff_t(first + count));
      const Status status =
          loss.token_gradients({&batch.sequences[i], first, logprobs, part(batch.entropies[i]),
                                part(dlogprobs), part(dentropies)});
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(dlogprobs, batch.dlogprobs[i]) << i;
    EXPECT_EQ(dentropies, batch.dentropies[i]) << i;
  }
}

TEST(PolicyTokenLoss, TokenGradientsAreThoseOfTheSequences) {
  std::size_t local = 0;
  for (const PolicyTokenLossOptions& options : variants()) {
    for (const bool weighted : {false, true}) {
      Batch batch(1);
      for (TrainSequence& sequence : batch.sequences) {
        for (std::size_t t = 0; weighted && t < sequence.ids.size(); ++t) {
          sequence.token_weights.push_back(static_cast<float>(t % 3));
        }
      }
      PolicyTokenLoss loss =
          PolicyTokenLoss::create(options, count_targets(batch.sequences)).value();
      if (!loss.is_token_local()) {
        continue;
      }
      ++local;
      for (const std::size_t size : {1UL, 3UL, 100UL}) {
        expect_gradients_of_tokens(loss, batch, size);
      }
    }
  }
  EXPECT_GT(local, variants().size());
}

TEST(PolicyTokenLoss, IsNotTokenLocalIfRowsAreComparedAsAWhole) {
  const auto is_local = [](auto change) {
    PolicyTokenLossOptions options;
    options.old_logprobs = OldLogprobs::kProximal;
    options.policy.rollout_correction = RolloutCorrectionOptions();
    change(options.policy);
    return PolicyTokenLoss::create(options, {.tokens = 1, .seqs = 1, .rows = 1, .longest = 2})
        .value()
        .is_token_local();
  };
  EXPECT_TRUE(is_local([](PolicyLossOptions&) {}));
  EXPECT_TRUE(is_local([](PolicyLossOptions& o) {
    o.rollout_correction->reject = {{RejectStat::kK3, RejectScope::kToken, {}, 0.1}};
  }));
  EXPECT_FALSE(is_local([](PolicyLossOptions& o) { o.ratio_level = RatioLevel::kSequence; }));
  EXPECT_FALSE(is_local([](PolicyLossOptions& o) { o.off_policy_delta = 0.1; }));
  EXPECT_FALSE(is_local(
      [](PolicyLossOptions& o) { o.rollout_correction->level = CorrectionLevel::kSequence; }));
  EXPECT_FALSE(is_local(
      [](PolicyLossOptions& o) { o.rollout_correction->rule = CorrectionRule::kSeqMask; }));
  EXPECT_FALSE(is_local([](PolicyLossOptions& o) {
    o.rollout_correction->reject = {{RejectStat::kK3, RejectScope::kSeqMean, {}, 0.1}};
  }));
}

TEST(PolicyTokenLoss, TokenGradientsRefuseWhatEvaluateRefuses) {
  Batch batch(1);
  PolicyTokenLoss loss = PolicyTokenLoss::create({}, count_targets(batch.sequences)).value();
  TrainSequence& sequence = batch.sequences.front();
  std::vector<float> out(sequence.ids.size());
  sequence.advantages.pop_back();
  LossSums sums;
  const std::vector<LossSequence> rows = batch.rows();
  const Status refused = loss.evaluate(std::span(rows).first(1), sums);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(loss.token_gradients(
                    {&sequence, 0, batch.logprobs.front(), batch.entropies.front(), out, out})
                .to_string(),
            refused.to_string());
}

TEST(SftTokenLoss, TokenGradientsAreThoseOfTheSequences) {
  for (const bool weighted : {false, true}) {
    Batch batch(1);
    for (TrainSequence& sequence : batch.sequences) {
      for (std::size_t t = 0; weighted && t < sequence.ids.size(); ++t) {
        sequence.token_weights.push_back(static_cast<float>(t % 3));
      }
    }
    SftTokenLoss loss(count_targets(batch.sequences));
    EXPECT_TRUE(loss.is_token_local());
    for (const std::size_t size : {1UL, 3UL, 100UL}) {
      expect_gradients_of_tokens(loss, batch, size);
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
  const BatchCounts totals = count_targets(batch.sequences);
  const std::int64_t targets = totals.tokens;
  double sum = 0.0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    for (std::size_t t = 1; t < batch.logprobs[i].size(); ++t) {
      sum += batch.sequences[i].response_mask[t] * static_cast<double>(batch.logprobs[i][t]);
    }
  }
  SftTokenLoss whole(totals);
  const LossSums want = batch.evaluate(whole, 7);
  EXPECT_NEAR(want.at("loss"), -sum / static_cast<double>(targets), 1e-12);
  EXPECT_EQ(want.at("tokens"), static_cast<double>(targets));
  const auto gradient = batch.dlogprobs;
  for (const std::size_t size : {1UL, 2UL, 4UL}) {
    SftTokenLoss cut(totals);
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
  SftTokenLoss loss{BatchCounts()};
  EXPECT_EQ(batch.evaluate(loss, 7).at("loss"), 0.0);
  Batch other(7);
  LossSums sums;
  EXPECT_EQ(loss.evaluate(other.rows(), sums).message(),
            "bad_option: sample 100 has targets, but the loss was created for none");
}

/// Returns a sequence without a prompt whose tokens after token 0 are all targets.
TrainSequence sequence_of(std::uint64_t id, std::size_t length) {
  TrainSequence sequence;
  sequence.id = SampleId{id};
  sequence.ids.assign(length, 1);
  sequence.response_mask.assign(length, 1);
  sequence.advantages.assign(length, 1.0F);
  sequence.behavior_logprobs.assign(length, -2.0F);
  sequence.proximal_logprobs.assign(length, -2.0F);
  return sequence;
}

/// Evaluates `loss` on one row at a time.
LossSums evaluate_rows(TokenLoss& loss, const std::vector<TrainSequence>& sequences,
                       const std::vector<std::vector<float>>& logprobs,
                       const std::vector<std::vector<float>>& entropies = {}) {
  LossSums sums;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::vector<float> dlogprobs(logprobs[i].size(), 0.0F);
    std::vector<float> dentropies(logprobs[i].size(), 0.0F);
    LossSequence row{&sequences[i], logprobs[i], {}, dlogprobs, dentropies};
    if (!entropies.empty()) {
      row.entropies = entropies[i];
    }
    const Status status = loss.evaluate({&row, 1}, sums);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  return sums;
}

// The metrics of three rows by hand. The ratios of the first row are 2, 1/2 and 1 (masked: 4), the
// second row has no target, and those of the third are 1/4 and 1.
TEST(PolicyTokenLoss, ReportsTheMetricsOfAllRows) {
  const double ln2 = std::log(2.0);
  const auto log2 = static_cast<float>(ln2);
  std::vector<TrainSequence> sequences = {sequence_of(1, 5), sequence_of(2, 3), sequence_of(3, 3)};
  sequences[0].response_mask[4] = 0;
  sequences[1].response_mask = {1, 0, 0};
  sequences[0].advantages = {9.0F, 1.0F, -1.0F, 1.0F, 1.0F};
  sequences[2].advantages = {9.0F, 1.0F, -1.0F};
  const std::vector<std::vector<float>> logprobs = {
      {9.0F, -2.0F + log2, -2.0F - log2, -2.0F, -2.0F + 2.0F * log2},
      {9.0F, -1.0F, -1.0F},
      {9.0F, -2.0F - 2.0F * log2, -2.0F}};
  const std::vector<std::vector<float>> entropies = {
      {7.0F, 0.5F, 0.25F, 1.0F, 7.0F}, {7.0F, 7.0F, 7.0F}, {7.0F, 0.125F, 2.0F}};
  PolicyTokenLoss loss = PolicyTokenLoss::create({}, count_targets(sequences)).value();
  const LossSums sums = evaluate_rows(loss, sequences, logprobs, entropies);
  EXPECT_EQ(sums.at("tokens"), 5.0);
  EXPECT_EQ(sums.at("rejected_tokens"), 0.0);
  // Ratio 2 with A > 0 and ratio 1/2 with A < 0 are clipped. Ratio 1/4 with A > 0 is not.
  EXPECT_EQ(sums.at("clipped_tokens"), 2.0);
  EXPECT_NEAR(sums.at("ratio_sum"), 2.0 + 0.5 + 1.0 + 0.25 + 1.0, 1e-6);
  EXPECT_NEAR(loss.ratio_max(), 2.0, 1e-6);  // of the first row, not of the last
  // k1 is behavior minus current: -ln 2 + ln 2 + 0 + 2 ln 2 + 0. k3 is r - 1 - ln r.
  EXPECT_NEAR(sums.at("kl_k1_sum"), 2.0 * ln2, 1e-6);
  EXPECT_NEAR(sums.at("kl_k3_sum"), (1.0 - ln2) + (-0.5 + ln2) + 0.0 + (-0.75 + 2.0 * ln2), 1e-6);
  EXPECT_NEAR(sums.at("entropy_sum"), 0.5 + 0.25 + 1.0 + 0.125 + 2.0, 1e-12);
  // max(-A r, -A clip(r)): -1.2, 0.8, -1, -0.25, 1.
  EXPECT_NEAR(sums.at("loss"), (-1.2 + 0.8 - 1.0 - 0.25 + 1.0) / 5.0, 1e-6);
}

TEST(PolicyTokenLoss, ReportsADivergenceOfEitherSign) {
  const auto k1_and_k3 = [](float log_ratio) {
    const std::vector<TrainSequence> sequences = {sequence_of(1, 2)};
    PolicyTokenLoss loss = PolicyTokenLoss::create({}, count_targets(sequences)).value();
    const LossSums sums = evaluate_rows(loss, sequences, {{0.0F, -2.0F + log_ratio}});
    return std::pair(sums.at("kl_k1_sum"), sums.at("kl_k3_sum"));
  };
  EXPECT_EQ(k1_and_k3(0.5F).first, -0.5);
  EXPECT_EQ(k1_and_k3(-0.5F).first, 0.5);
  EXPECT_DOUBLE_EQ(k1_and_k3(0.5F).second, std::exp(0.5) - 1.5);
  EXPECT_DOUBLE_EQ(k1_and_k3(-0.5F).second, std::exp(-0.5) - 0.5);
  // Log-ratios beyond 20 count as 20.
  EXPECT_EQ(k1_and_k3(30.0F).first, -20.0);
  EXPECT_EQ(k1_and_k3(-30.0F).first, 20.0);
  EXPECT_DOUBLE_EQ(k1_and_k3(30.0F).second, std::expm1(20.0) - 20.0);
  EXPECT_DOUBLE_EQ(k1_and_k3(-30.0F).second, std::expm1(-20.0) + 20.0);
}

TEST(PolicyTokenLoss, ReportsNoEntropyIfTheEngineComputesNone) {
  const std::vector<TrainSequence> sequences = {sequence_of(1, 3)};
  PolicyTokenLoss loss = PolicyTokenLoss::create({}, count_targets(sequences)).value();
  EXPECT_FALSE(evaluate_rows(loss, sequences, {{0.0F, -2.0F, -2.0F}}).contains("entropy_sum"));
}

/// Options that reject tokens or rows of `Batch`, under every aggregation.
std::vector<PolicyTokenLossOptions> rejecting_variants() {
  std::vector<RolloutCorrectionOptions> corrections;
  corrections.emplace_back().reject = {{RejectStat::kRatio, RejectScope::kToken, 0.8, 1.2}};
  corrections.emplace_back().reject = {{RejectStat::kK3, RejectScope::kSeqMax, {}, 0.1}};
  corrections.emplace_back().rule = CorrectionRule::kMask;
  corrections.back().lower = 0.9;
  corrections.back().upper = 1.1;
  corrections.emplace_back().rule = CorrectionRule::kSeqMask;
  corrections.back().sequence_weight = SequenceWeight::kGeometric;
  corrections.back().lower = 0.8;
  corrections.back().upper = 1.2;
  std::vector<PolicyTokenLossOptions> result;
  for (const RolloutCorrectionOptions& correction : corrections) {
    for (const Aggregation aggregation :
         {Aggregation::kTokenMean, Aggregation::kTokenSum, Aggregation::kSeqMeanTokenSum,
          Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSumNorm,
          Aggregation::kBatchFixedLength}) {
      PolicyTokenLossOptions& options = result.emplace_back();
      options.old_logprobs = OldLogprobs::kProximal;
      options.policy.rollout_correction = correction;
      options.policy.aggregate.kind = aggregation;
      options.policy.dual_clip = 3.0;
      options.policy.kl_coefficient = 0.1;
    }
  }
  return result;
}

/// The columns of a batch, one sequence after the other.
struct Columns {
  std::vector<std::size_t> offsets = {0};
  std::vector<std::uint8_t> mask;
  std::vector<float> logprobs, behavior, proximal, reference, advantages, entropies, dlogprobs,
      dentropies;
};

Columns columns_of(const Batch& batch) {
  Columns columns;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const TrainSequence& sequence = batch.sequences[i];
    columns.mask.push_back(0);
    columns.mask.insert(columns.mask.end(), sequence.response_mask.begin() + 1,
                        sequence.response_mask.end());
    columns.offsets.push_back(columns.mask.size());
    append(columns.logprobs, batch.logprobs[i]);
    append(columns.behavior, sequence.behavior_logprobs);
    append(columns.proximal, sequence.proximal_logprobs);
    append(columns.reference, sequence.reference_logprobs);
    append(columns.advantages, sequence.advantages);
    append(columns.entropies, batch.entropies[i]);
    append(columns.dlogprobs, batch.dlogprobs[i]);
    append(columns.dentropies, batch.dentropies[i]);
  }
  return columns;
}

// Denominators count rejected tokens, so the loss of a micro-batch needs no other micro-batch.
TEST(PolicyTokenLoss, WithRejectionIsThePolicyLossOfTheWholeBatch) {
  int rejections = 0;
  for (const PolicyTokenLossOptions& options : rejecting_variants()) {
    Batch batch(9);
    PolicyTokenLoss loss = PolicyTokenLoss::create(options, count_targets(batch.sequences)).value();
    const LossSums sums = batch.evaluate(loss, 2);
    const Columns columns = columns_of(batch);
    std::vector<float> gradient(columns.mask.size());
    const PolicyLossReport want = policy_loss<float>({{columns.offsets, columns.mask, {}},
                                                      columns.logprobs,
                                                      columns.proximal,
                                                      columns.advantages,
                                                      columns.behavior,
                                                      columns.reference,
                                                      {}},
                                                     options.policy, {gradient, {}})
                                      .value();
    EXPECT_NEAR(sums.at("loss"), want.loss, 1e-12 * (1.0 + std::abs(want.loss)));
    EXPECT_EQ(columns.dlogprobs, gradient);
    // Counts the rejected tokens by their gradients: a target that is not rejected has the gradient
    // of its KL estimate, which is not 0.
    double rejected = 0.0;
    double ratio_sum = 0.0;
    for (std::size_t t = 0; t < columns.mask.size(); ++t) {
      rejected += columns.mask[t] != 0 && gradient[t] == 0.0F ? 1.0 : 0.0;
      const double log_ratio = double{columns.logprobs[t]} - double{columns.proximal[t]};
      ratio_sum += columns.mask[t] != 0 ? std::exp(log_ratio) : 0.0;
    }
    EXPECT_EQ(sums.at("rejected_tokens"), rejected);
    EXPECT_NEAR(sums.at("ratio_sum"), ratio_sum, 1e-9) << "of rejected tokens too";
    rejections += rejected > 0.0 && rejected < sums.at("tokens") ? 1 : 0;
  }
  EXPECT_EQ(rejections, 24);
}

// The bonus covers all targets, rejected ones too, with the denominators of the loss.
TEST(PolicyTokenLoss, TheEntropyBonusCoversRejectedTokens) {
  for (PolicyTokenLossOptions options : rejecting_variants()) {
    Batch batch(9);
    const BatchCounts totals = count_targets(batch.sequences);
    PolicyTokenLoss plain = PolicyTokenLoss::create(options, totals).value();
    const LossSums without = batch.evaluate(plain, 2);
    EXPECT_GT(without.at("rejected_tokens"), 0.0);
    const auto dlogprobs = batch.dlogprobs;
    options.entropy_coefficient = 0.5;
    PolicyTokenLoss bonus = PolicyTokenLoss::create(options, totals).value();
    const LossSums with = batch.evaluate(bonus, 2);
    const Columns columns = columns_of(batch);
    AggregateOptions aggregation = options.policy.aggregate;
    aggregation.horizon = totals.longest;
    std::vector<float> slopes(columns.mask.size());
    const double entropy =
        aggregate<float>({{columns.offsets, columns.mask, {}}, columns.entropies}, aggregation,
                         slopes)
            .value();
    EXPECT_GT(entropy, 0.0);
    EXPECT_NEAR(with.at("loss"), without.at("loss") - 0.5 * entropy, 1e-12 * (1.0 + entropy));
    EXPECT_EQ(batch.dlogprobs, dlogprobs) << "the bonus acts only on entropies";
    for (std::size_t t = 0; t < slopes.size(); ++t) {
      EXPECT_FLOAT_EQ(columns.dentropies[t], -0.5F * slopes[t]) << t;
    }
    for (const char* metric : {"rejected_tokens", "clipped_tokens", "ratio_sum", "kl_k1_sum"}) {
      EXPECT_EQ(with.at(metric), without.at(metric)) << metric;
    }
  }
}

// A loss is evaluated again for the next minibatch of the same step: the second call starts from
// nothing but its own rows, and adds to the sums that it is given.
TEST(PolicyTokenLoss, ASecondEvaluationGivesTheSameSumsAndGradients) {
  for (const PolicyTokenLossOptions& options : rejecting_variants()) {
    Batch batch(10);
    PolicyTokenLoss loss = PolicyTokenLoss::create(options, count_targets(batch.sequences)).value();
    const LossSums first = batch.evaluate(loss, 3);
    const auto gradient = batch.dlogprobs;
    EXPECT_EQ(batch.evaluate(loss, 3), first);
    EXPECT_EQ(batch.dlogprobs, gradient);
    LossSums twice = first;
    const std::vector<LossSequence> rows = batch.rows();
    ASSERT_TRUE(loss.evaluate(rows, twice).ok());
    for (const auto& [name, value] : first) {
      EXPECT_NEAR(twice.at(name), 2.0 * value, 1e-9 * (1.0 + std::abs(value))) << name;
    }
  }
}

TEST(SftTokenLoss, ReportsTheEntropiesOfAllRows) {
  std::vector<TrainSequence> sequences = {sequence_of(1, 3), sequence_of(2, 2), sequence_of(3, 3)};
  sequences[2].response_mask = {1, 0, 1};
  SftTokenLoss loss(count_targets(sequences));
  const LossSums sums =
      evaluate_rows(loss, sequences, {{0.0F, -1.0F, -2.0F}, {0.0F, -4.0F}, {0.0F, -9.0F, -0.5F}},
                    {{9.0F, 0.5F, 0.25F}, {9.0F, 1.0F}, {9.0F, 9.0F, 2.0F}});
  EXPECT_EQ(sums.at("tokens"), 4.0);
  EXPECT_EQ(sums.at("entropy_sum"), 3.75);
  EXPECT_DOUBLE_EQ(sums.at("loss"), 7.5 / 4.0);
}

/// Runs a correction on two rows of given log-ratios. The second token of the first row is masked.
struct Corrected {
  std::vector<double> weights = std::vector<double>(7);
  std::vector<std::uint8_t> kept = std::vector<std::uint8_t>(7);
};

Corrected correct(const RolloutCorrectionOptions& options, const std::vector<double>& ratios) {
  std::vector<double> proximal;
  for (const double ratio : ratios) {
    proximal.push_back(std::log(ratio));
  }
  const std::vector<double> behavior(7, 0.0);
  const std::vector<std::size_t> offsets = {0, 4, 7};
  const std::vector<std::uint8_t> mask = {1, 0, 1, 1, 1, 1, 1};
  Corrected out;
  const Status status = rollout_correction<double>({{offsets, mask, {}}, proximal, behavior},
                                                   options, {out.weights, out.kept});
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

// Weights are divided by the mean over the kept tokens. Rejected tokens count neither in its sum
// nor in its denominator.
TEST(RolloutCorrection, NormalizesByTheMeanWeightOfKeptTokens) {
  RolloutCorrectionOptions options;
  options.rule = CorrectionRule::kRaw;
  options.batch_normalize = true;
  options.reject = {{RejectStat::kRatio, RejectScope::kToken, {}, 3.0}};
  const std::vector<double> ratios = {2.0, 9.0, 8.0, 1.0, 0.5, 0.5, 16.0};
  const Corrected by_token = correct(options, ratios);
  EXPECT_EQ(by_token.kept, (std::vector<std::uint8_t>{1, 0, 0, 1, 1, 1, 0}));
  const std::vector<double> want = {2.0, 0.0, 0.0, 1.0, 0.5, 0.5, 0.0};
  for (std::size_t t = 0; t < want.size(); ++t) {
    EXPECT_NEAR(by_token.weights[t], want[t] / 1.0, 1e-12) << t;  // (2 + 1 + 0.5 + 0.5) / 4
  }
  // By sequence: the mean over rows with kept tokens of the mean weight of their kept tokens.
  options.level = CorrectionLevel::kSequence;
  options.sequence_weight = SequenceWeight::kGeometric;
  options.reject[0].upper = 7.0;
  const std::vector<double> rows = {2.0, 9.0, 8.0, 4.0, 1.0, 8.0, 1.0};
  const Corrected by_row = correct(options, rows);
  EXPECT_EQ(by_row.kept, (std::vector<std::uint8_t>{1, 0, 0, 1, 1, 0, 1}));
  // Row weights (2 * 8 * 4)^(1/3) = 4 and (1 * 8 * 1)^(1/3) = 2, so the mean is 3.
  for (const auto& [token, weight] : std::vector<std::pair<std::size_t, double>>{
           {0, 4.0 / 3.0}, {2, 0.0}, {3, 4.0 / 3.0}, {4, 2.0 / 3.0}, {5, 0.0}, {6, 2.0 / 3.0}}) {
    EXPECT_NEAR(by_row.weights[token], weight, 1e-12) << token;
  }
  // A row without kept tokens does not count.
  options.reject = {{RejectStat::kRatio, RejectScope::kSeqMax, {}, 8.5}};
  const Corrected one_row = correct(options, {2.0, 9.0, 8.0, 4.0, 1.0, 10.0, 1.0});
  EXPECT_EQ(one_row.kept, (std::vector<std::uint8_t>{1, 0, 1, 1, 0, 0, 0}));
  EXPECT_NEAR(one_row.weights[0], 1.0, 1e-12);
}

// A value that equals a bound is inside it. The ratios are powers of e, whose logarithms are exact.
TEST(RolloutCorrection, BoundsAreInclusive) {
  const std::vector<double> behavior = {-1.0, -1.0, -1.0};
  const std::vector<double> proximal = {-1.0, -1.0, -1.5};  // log-ratios 0, 0, -0.5
  const std::vector<std::size_t> offsets = {0, 3};
  const std::vector<std::uint8_t> mask = {1, 1, 1};
  const auto kept = [&](const RolloutCorrectionOptions& options) {
    std::vector<double> weights(3);
    std::vector<std::uint8_t> result(3);
    EXPECT_TRUE(rollout_correction<double>({{offsets, mask, {}}, proximal, behavior}, options,
                                           {weights, result})
                    .ok());
    return result;
  };
  using Kept = std::vector<std::uint8_t>;
  RolloutCorrectionOptions options;
  options.reject = {{RejectStat::kRatio, RejectScope::kToken, 1.0, {}}};
  EXPECT_EQ(kept(options), (Kept{1, 1, 0}));
  options.reject = {{RejectStat::kK1, RejectScope::kToken, {}, 1.0}};  // k1 is 0, 0, 0.5
  EXPECT_EQ(kept(options), (Kept{1, 1, 0}));
  options.reject = {{RejectStat::kK2, RejectScope::kToken, {}, 0.125}};  // 0.5 * 0.5^2
  EXPECT_EQ(kept(options), (Kept{1, 1, 1}));
  options.reject = {{RejectStat::kK2, RejectScope::kSeqMax, {}, std::nextafter(0.125, 0.0)}};
  EXPECT_EQ(kept(options), (Kept{0, 0, 0}));
  options.reject = {{RejectStat::kRatio, RejectScope::kSeqMax, 1.0, 1.0}};  // the maximum is 0
  EXPECT_EQ(kept(options), (Kept{1, 1, 1}));
  options.reject.clear();
  options.rule = CorrectionRule::kMask;
  options.lower = 1.0;
  options.upper = 1.0;
  EXPECT_EQ(kept(options), (Kept{1, 1, 0}));
}

// The largest value of a row whose values are all negative is negative.
TEST(RolloutCorrection, TheLargestOfNegativeValuesIsNegative) {
  RolloutCorrectionOptions options;
  options.reject = {{RejectStat::kRatio, RejectScope::kSeqMax, 0.9, {}}};
  const Corrected low = correct(options, {0.5, 1.0, 0.8, 0.7, 0.5, 0.95, 0.5});
  EXPECT_EQ(low.kept, (std::vector<std::uint8_t>{0, 0, 0, 0, 1, 1, 1}));
}

// The loss of dual clip is -c A at most, and applies only to negative advantages. At the bound
// itself the gradient is still that of the ratio.
TEST(PolicyTerms, DualClipBoundsOnlyNegativeAdvantages) {
  PolicyLossOptions options;
  options.dual_clip = 3.0;
  const auto term = [&](double ratio, double advantage) {
    return policy_term({{ratio, ratio}, advantage, -1.0}, options);
  };
  EXPECT_EQ(term(2.5, -2.0).value, 5.0);
  EXPECT_EQ(term(2.5, -2.0).by_log_ratio, 5.0);
  EXPECT_EQ(term(3.0, -2.0).value, 6.0);
  EXPECT_EQ(term(3.0, -2.0).by_log_ratio, 6.0);
  EXPECT_EQ(term(4.0, -2.0).value, 6.0);
  EXPECT_EQ(term(4.0, -2.0).by_log_ratio, 0.0);
  EXPECT_EQ(term(4.0, 2.0).value, -2.4);  // clipped at 1.2
  EXPECT_EQ(term(0.5, 2.0).value, -1.0);
  EXPECT_EQ(term(0.5, 2.0).by_log_ratio, -1.0);
}

// Ratios at the bounds of the clip are not clipped, and log-ratios at the clamp have a gradient.
TEST(PolicyTerms, ValuesAtTheBoundsAreInside) {
  PolicyLossOptions options;
  options.clip_low = 0.5;
  options.clip_high = 0.5;
  EXPECT_FALSE(is_clipped(1.5, 1.0, options));
  EXPECT_TRUE(is_clipped(std::nextafter(1.5, 2.0), 1.0, options));
  EXPECT_FALSE(is_clipped(2.0, -1.0, options));
  EXPECT_FALSE(is_clipped(2.0, 0.0, options));
  EXPECT_FALSE(is_clipped(0.5, -1.0, options));
  EXPECT_TRUE(is_clipped(std::nextafter(0.5, 0.0), -1.0, options));
  EXPECT_FALSE(is_clipped(0.25, 1.0, options));
  for (const double log_ratio : {-2.0, 2.0}) {
    EXPECT_EQ(importance_ratio(log_ratio, 2.0).value, std::exp(log_ratio));
    EXPECT_EQ(importance_ratio(log_ratio, 2.0).slope, std::exp(log_ratio));
    EXPECT_EQ(importance_ratio(1.5 * log_ratio, 2.0).value, std::exp(log_ratio));
    EXPECT_EQ(importance_ratio(1.5 * log_ratio, 2.0).slope, 0.0);
  }
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
