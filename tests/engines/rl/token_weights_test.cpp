// SPDX-License-Identifier: Apache-2.0
// Token weights in the losses that the training engine calls, compared with plain loops.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/rl/policy_token_loss.hpp"
#include "engines/rl/sft_token_loss.hpp"
#include "engines/rl/train_targets.hpp"

namespace tidemill::engines {
namespace {

/// What a model computes for one sequence, and what a loss makes of it.
struct Row {
  TrainSequence sequence;
  std::vector<float> logprobs, entropies, dlogprobs, dentropies;
};

using Batch = std::vector<Row>;

/// Returns six ragged sequences with masks that have holes. Row 4 has no target.
Batch random_batch(std::uint64_t seed) {
  RandomStream random(seed);
  const auto uniform = [&](double low, double high) {
    return static_cast<float>(low + (high - low) * random.uniform());
  };
  Batch batch(6);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Row& row = batch[i];
    const std::size_t length = 3 + random.below(7);
    row.sequence.id = SampleId{i};
    row.sequence.ids.assign(length, 1);
    for (std::size_t t = 0; t < length; ++t) {
      row.sequence.response_mask.push_back(i != 4 && random.below(3) != 0 ? 1 : 0);
      row.sequence.behavior_logprobs.push_back(uniform(-3.0, -0.1));
      row.sequence.reference_logprobs.push_back(uniform(-3.0, -0.1));
      row.sequence.advantages.push_back(uniform(-1.0, 1.0));
      row.sequence.token_weights.push_back(uniform(0.0, 2.0));
      row.logprobs.push_back(row.sequence.behavior_logprobs[t] + uniform(-0.5, 0.5));
      row.entropies.push_back(uniform(0.0, 2.0));
    }
    row.dlogprobs.assign(length, 0.0F);
    row.dentropies.assign(length, 0.0F);
  }
  return batch;
}

std::vector<TrainSequence> sequences_of(const Batch& batch) {
  std::vector<TrainSequence> sequences;
  for (const Row& row : batch) {
    sequences.push_back(row.sequence);
  }
  return sequences;
}

Status evaluate(TokenLoss& loss, Batch& batch, LossSums& sums) {
  for (Row& row : batch) {
    const LossSequence one{&row.sequence, row.logprobs, row.entropies, row.dlogprobs,
                           row.dentropies};
    const Status status = loss.evaluate({&one, 1}, sums);
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

bool is_target(const Row& row, std::size_t t) {
  return t > 0 && row.sequence.response_mask[t] != 0;
}

double weight(const Row& row, std::size_t t) {
  return row.sequence.token_weights.empty() ? 1.0 : row.sequence.token_weights[t];
}

/// The sums of a batch that denominators are made of.
struct Counts {
  double weight = 0.0;
  double sequences = 0.0;
};

double weight_of_row(const Row& row) {
  double sum = 0.0;
  for (std::size_t t = 0; t < row.logprobs.size(); ++t) {
    sum += is_target(row, t) ? weight(row, t) : 0.0;
  }
  return sum;
}

Counts count(const Batch& batch) {
  Counts counts;
  for (const Row& row : batch) {
    counts.weight += weight_of_row(row);
    counts.sequences += weight_of_row(row) > 0.0 ? 1.0 : 0.0;
  }
  return counts;
}

/// Returns the scale of the token losses of a row: the formulas of `Aggregation`, with weights.
double scale_of(Aggregation kind, const Counts& counts, const Row& row, double rows,
                double horizon) {
  switch (kind) {
    case Aggregation::kTokenMean: return 1.0 / counts.weight;
    case Aggregation::kTokenSum: return 1.0;
    case Aggregation::kSeqMeanTokenSum: return 1.0 / counts.sequences;
    case Aggregation::kSeqMeanTokenMean: return 1.0 / (weight_of_row(row) * counts.sequences);
    case Aggregation::kSeqMeanTokenSumNorm: return 1.0 / (counts.sequences * horizon);
    case Aggregation::kBatchFixedLength: return 1.0 / (rows * horizon);
  }
  return 0.0;
}

constexpr double kKl = 0.1;
constexpr double kEntropy = 0.01;
constexpr std::int64_t kHorizon = 12;

PolicyTokenLossOptions options_of(Aggregation kind) {
  PolicyTokenLossOptions options;
  options.policy.aggregate.kind = kind;
  options.policy.aggregate.horizon = kHorizon;
  options.policy.kl_coefficient = kKl;
  options.entropy_coefficient = kEntropy;
  return options;
}

constexpr Aggregation kKinds[] = {
    Aggregation::kTokenMean,           Aggregation::kTokenSum,
    Aggregation::kSeqMeanTokenSum,     Aggregation::kSeqMeanTokenMean,
    Aggregation::kSeqMeanTokenSumNorm, Aggregation::kBatchFixedLength};

// The clipped loss of PPO with a KL term (k3) and an entropy bonus, token by token.
TEST(TokenWeights, ThePolicyLossIsThatOfAPlainLoop) {
  for (const Aggregation kind : kKinds) {
    Batch batch = random_batch(3);
    PolicyTokenLoss loss =
        PolicyTokenLoss::create(options_of(kind), count_targets(sequences_of(batch))).value();
    LossSums sums;
    const Status status = evaluate(loss, batch, sums);
    ASSERT_TRUE(status.ok()) << status.to_string();

    const Counts counts = count(batch);
    double want = 0.0;
    for (const Row& row : batch) {
      for (std::size_t t = 0; t < row.logprobs.size(); ++t) {
        if (!is_target(row, t)) {
          EXPECT_EQ(row.dlogprobs[t], 0.0F);
          EXPECT_EQ(row.dentropies[t], 0.0F);
          continue;
        }
        const double scale =
            weight(row, t) * scale_of(kind, counts, row, static_cast<double>(batch.size()),
                                      static_cast<double>(kHorizon));
        const double a = row.sequence.advantages[t];
        const double r = std::exp(static_cast<double>(row.logprobs[t]) -
                                  static_cast<double>(row.sequence.behavior_logprobs[t]));
        const double clipped = -a * std::clamp(r, 0.8, 1.2);
        const double d = static_cast<double>(row.logprobs[t]) -
                         static_cast<double>(row.sequence.reference_logprobs[t]);
        want += scale * (std::max(-a * r, clipped) + kKl * (std::exp(-d) - 1.0 + d) -
                         kEntropy * static_cast<double>(row.entropies[t]));
        const double slope = (-a * r >= clipped ? -a * r : 0.0) + kKl * (1.0 - std::exp(-d));
        // Gradients are floats.
        EXPECT_NEAR(row.dlogprobs[t], scale * slope, 1e-6 * std::max(1.0, std::abs(scale * slope)));
        EXPECT_NEAR(row.dentropies[t], -scale * kEntropy, 1e-7);
      }
    }
    EXPECT_NEAR(sums.at("loss"), want, 1e-9) << "aggregation " << static_cast<int>(kind);
  }
}

TEST(TokenWeights, TheSupervisedLossIsAWeightedMean) {
  Batch batch = random_batch(4);
  SftTokenLoss loss(count_targets(sequences_of(batch)));
  LossSums sums;
  ASSERT_TRUE(evaluate(loss, batch, sums).ok());
  const double total = count(batch).weight;
  double want = 0.0;
  for (const Row& row : batch) {
    for (std::size_t t = 0; t < row.logprobs.size(); ++t) {
      const double share = is_target(row, t) ? weight(row, t) / total : 0.0;
      want -= share * static_cast<double>(row.logprobs[t]);
      EXPECT_NEAR(row.dlogprobs[t], -share, 1e-7);
    }
  }
  EXPECT_NEAR(sums.at("loss"), want, 1e-12);
}

TEST(TokenWeights, WeightsOfOneChangeNoBit) {
  Batch plain = random_batch(5);
  Batch ones = plain;
  for (Row& row : plain) {
    row.sequence.token_weights.clear();
  }
  for (Row& row : ones) {
    std::fill(row.sequence.token_weights.begin(), row.sequence.token_weights.end(), 1.0F);
  }
  const auto expect_equal = [&](TokenLoss& of_plain, TokenLoss& of_ones) {
    LossSums plain_sums;
    LossSums ones_sums;
    ASSERT_TRUE(evaluate(of_plain, plain, plain_sums).ok());
    ASSERT_TRUE(evaluate(of_ones, ones, ones_sums).ok());
    EXPECT_EQ(plain_sums, ones_sums);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(plain[i].dlogprobs, ones[i].dlogprobs);
      EXPECT_EQ(plain[i].dentropies, ones[i].dentropies);
    }
  };
  // Counts without a weight are those of a caller that knows of no weights.
  BatchCounts unweighted = count_targets(sequences_of(plain));
  unweighted.weight.reset();
  for (const Aggregation kind : kKinds) {
    PolicyTokenLoss of_plain = PolicyTokenLoss::create(options_of(kind), unweighted).value();
    PolicyTokenLoss of_ones =
        PolicyTokenLoss::create(options_of(kind), count_targets(sequences_of(ones))).value();
    expect_equal(of_plain, of_ones);
  }
  SftTokenLoss of_plain(unweighted);
  SftTokenLoss of_ones(count_targets(sequences_of(ones)));
  expect_equal(of_plain, of_ones);
}

// In a token mean, a token of weight 0 is the same as a masked one.
TEST(TokenWeights, ATokenOfWeightZeroIsLeftOut) {
  Batch weighted = random_batch(6);
  Batch masked = weighted;
  for (std::size_t i = 0; i < weighted.size(); ++i) {
    for (std::size_t t = 0; t < weighted[i].logprobs.size(); ++t) {
      const bool out = (i + t) % 3 == 0;
      weighted[i].sequence.token_weights[t] = out ? 0.0F : 1.0F;
      masked[i].sequence.response_mask[t] =
          out ? std::uint8_t{0} : masked[i].sequence.response_mask[t];
    }
    masked[i].sequence.token_weights.clear();
  }
  SftTokenLoss of_weighted(count_targets(sequences_of(weighted)));
  SftTokenLoss of_masked(count_targets(sequences_of(masked)));
  LossSums weighted_sums;
  LossSums masked_sums;
  ASSERT_TRUE(evaluate(of_weighted, weighted, weighted_sums).ok());
  ASSERT_TRUE(evaluate(of_masked, masked, masked_sums).ok());
  EXPECT_EQ(weighted_sums.at("loss"), masked_sums.at("loss"));
  for (std::size_t i = 0; i < weighted.size(); ++i) {
    for (std::size_t t = 0; t < weighted[i].logprobs.size(); ++t) {
      EXPECT_EQ(weighted[i].dlogprobs[t] + 0.0F, masked[i].dlogprobs[t] + 0.0F);
    }
  }
}

TEST(TokenWeights, ABatchWithoutWeightHasNoLoss) {
  for (const Aggregation kind : kKinds) {
    Batch batch = random_batch(7);
    for (Row& row : batch) {
      std::fill(row.sequence.token_weights.begin(), row.sequence.token_weights.end(), 0.0F);
    }
    const BatchCounts totals = count_targets(sequences_of(batch));
    PolicyTokenLoss policy = PolicyTokenLoss::create(options_of(kind), totals).value();
    SftTokenLoss supervised(totals);
    for (TokenLoss* loss :
         {static_cast<TokenLoss*>(&policy), static_cast<TokenLoss*>(&supervised)}) {
      LossSums sums;
      ASSERT_TRUE(evaluate(*loss, batch, sums).ok());
      EXPECT_EQ(sums.at("loss"), 0.0);
      for (const Row& row : batch) {
        EXPECT_TRUE(std::all_of(row.dlogprobs.begin(), row.dlogprobs.end(),
                                [](float x) { return x == 0.0F; }));
      }
    }
  }
}

TEST(TokenWeights, RefusesWeightsThatAreNone) {
  const auto message = [](float value) {
    Batch batch = random_batch(8);
    batch[2].sequence.response_mask.back() = 1;
    batch[2].sequence.token_weights.back() = value;
    PolicyTokenLoss loss =
        PolicyTokenLoss::create({}, count_targets(sequences_of(random_batch(8)))).value();
    LossSums sums;
    const std::string policy = evaluate(loss, batch, sums).message();
    SftTokenLoss supervised(count_targets(sequences_of(random_batch(8))));
    EXPECT_EQ(evaluate(supervised, batch, sums).message(), policy);
    return policy;
  };
  EXPECT_EQ(message(0.5F), "");
  EXPECT_EQ(message(-0.5F).substr(0, 26), "bad_weight: token_weights[");
  EXPECT_NE(message(-0.5F).find("is negative (sample 2)"), std::string::npos);
  EXPECT_EQ(message(std::numeric_limits<float>::quiet_NaN()).substr(0, 26),
            "non_finite: token_weights[");
  Batch batch = random_batch(8);
  batch[1].sequence.token_weights.pop_back();
  SftTokenLoss loss(count_targets(sequences_of(batch)));
  LossSums sums;
  EXPECT_EQ(evaluate(loss, batch, sums).message().substr(0, 28), "bad_shape: token_weights has");
}

}  // namespace
}  // namespace tidemill::engines
