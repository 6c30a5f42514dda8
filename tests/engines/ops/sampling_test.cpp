// SPDX-License-Identifier: Apache-2.0
// Tests that every backend samples with the bits of the portable loops and of the oracle, with any
// number of threads.
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engines/ops/host/host_backend.hpp"
#include "engines/sampling/sampler.hpp"
#include "tests/engines/ops/device_values.hpp"
#include "tests/engines/ops/fixtures.hpp"
#include "tests/engines/sampling/sorting_sampler.hpp"

namespace tidemill::engines::ops_test {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;

class SamplingLoops : public OpsTest {};

std::uint64_t bits_of(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

// Blocks of every size, with logits from far below to the largest.
std::vector<Floats> blocks_of_logits() {
  std::vector<Floats> blocks;
  RandomStream random(5);
  for (std::size_t size = 1; size <= kMassBlock; size += size < 70 ? 1 : 37) {
    for (const double deviation : {0.1, 3.0, 60.0, 1e30}) {
      Floats block(size);
      for (float& logit : block) {
        logit =
            random.below(20) == 0 ? -kInfinite : static_cast<float>(deviation * random.normal());
      }
      blocks.push_back(block);
    }
  }
  blocks.emplace_back(kMassBlock, -kInfinite);
  blocks.emplace_back(kMassBlock, 0.0F);
  return blocks;
}

TEST_P(SamplingLoops, HaveTheBitsOfThePortableOnes) {
  const MassKernels& own = ops().mass_kernels();
  const MassKernels& portable = portable_mass_kernels();
  int compared = 0;
  for (const Floats& logits : blocks_of_logits()) {
    const std::size_t size = logits.size();
    const Largest largest = own.largest(logits.data(), size);
    ASSERT_EQ(largest.value, portable.largest(logits.data(), size).value);
    ASSERT_FALSE(largest.has_nan);
    const double finite = std::isfinite(largest.value) ? largest.value : 0.0;
    // A largest logit between two floats results from a penalty.
    for (const double top : {finite, finite + 0.1, finite + 1e-9}) {
      for (const float temperature : {1.0F, 0.7F, 1e-3F, 1e30F}) {
        Floats masses(size + 1, -1.0F);
        Floats expected(size);
        own.compute_masses(logits.data(), size, top, temperature, masses.data());
        portable.compute_masses(logits.data(), size, top, temperature, expected.data());
        ASSERT_EQ(masses.back(), -1.0F);
        masses.pop_back();
        ASSERT_EQ(masses, expected) << top << ' ' << temperature;
        ASSERT_EQ(bits_of(own.sum(masses.data(), size)),
                  bits_of(portable.sum(masses.data(), size)));
        for (const float min : {0.0F, 1e-30F, 0.3F, 1.0F}) {
          for (const int bits : {51, 44, 20}) {
            ASSERT_EQ(own.fixed_point_sum(masses.data(), size, bits, min),
                      portable.fixed_point_sum(masses.data(), size, bits, min));
          }
          for (const float max : {0.0F, 0.5F, 1.0F, kInfinite}) {
            std::vector<std::int32_t> found(size);
            std::vector<std::int32_t> wanted(size);
            found.resize(own.find(masses.data(), size, min, max, found.data()));
            wanted.resize(portable.find(masses.data(), size, min, max, wanted.data()));
            ASSERT_EQ(found, wanted);
          }
          Floats left = masses;
          left.push_back(-1.0F);
          own.drop_below(left.data(), size, min);
          ASSERT_EQ(left.back(), -1.0F);
          left.pop_back();
          portable.drop_below(expected.data(), size, min);
          ASSERT_EQ(left, expected);
        }
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, (81 * 4 + 2) * 3 * 4);
}

TEST_P(SamplingLoops, FindNanAtAnyPosition) {
  for (const std::size_t size : {1UL, 16UL, 33UL, kMassBlock}) {
    for (std::size_t at = 0; at < size; ++at) {
      Floats logits(size, 2.0F);
      logits[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(ops().mass_kernels().largest(logits.data(), size).has_nan);
      logits[at] = kInfinite;
      const Largest largest = ops().mass_kernels().largest(logits.data(), size);
      EXPECT_FALSE(largest.has_nan);
      EXPECT_EQ(largest.value, std::numeric_limits<double>::infinity());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingLoops, ::testing::ValuesIn(backends()), backend_name);

// Rows for all workers, rows that are left over, and one row for several workers.
class WideSampling : public OpsTest {
protected:
  static constexpr std::int64_t kVocabulary = 5003;

  WideSampling() {
    RandomStream random(8);
    for (std::size_t i = 0; i < 5 * kVocabulary; ++i) {
      values_.push_back(static_cast<float>(4.0 * random.normal()));
    }
    options_.resize(5);
    options_[1].top_p = 0.9F;
    options_[2].top_k = 40;
    options_[2].repetition_penalty = 1.2F;
    options_[3].temperature = 0.6F;
    options_[3].top_p = 0.95F;
    options_[3].min_p = 0.01F;
    options_[4].temperature = 0.0F;
  }

  [[nodiscard]] std::vector<SampleOutcome> sample(int threads, std::int64_t rows) const {
    Workers workers(threads);
    const auto ops = host::make_backend(GetParam().make(workers).value());
    const DeviceValues logits(*ops, 5, kVocabulary, values_);
    std::vector<SampleRequest> requests;
    for (std::int64_t row = 0; row < rows; ++row) {
      requests.push_back({row, &options_[static_cast<std::size_t>(row)], history(), key(row)});
    }
    return ops->sample(logits.matrix(), requests).value();
  }

  [[nodiscard]] TokenHistory history() const { return {prompt_, {}}; }
  static SamplingKey key(std::int64_t row) {
    return {3, SampleId{static_cast<std::uint64_t>(row)}, 7};
  }
  [[nodiscard]] std::span<const float> row(std::int64_t t) const {
    return std::span(values_).subspan(static_cast<std::size_t>(t * kVocabulary), kVocabulary);
  }

  Floats values_;
  std::vector<SamplingOptions> options_;
  std::vector<std::int32_t> prompt_ = {1, 4000, 17, 1};
};

TEST_P(WideSampling, TokensAreThoseOfTheOracleWithAnyNumberOfThreads) {
  for (const std::int64_t rows : {1, 2, 3, 5}) {
    const std::vector<SampleOutcome> one = sample(1, rows);
    for (std::int64_t t = 0; t < rows; ++t) {
      const auto& options = options_[static_cast<std::size_t>(t)];
      const SortedRow sorted = sort_row(row(t), options, history());
      const SamplingKey name = key(t);
      EXPECT_EQ(one[static_cast<std::size_t>(t)].token,
                sample_sorted(sorted, keyed_uniform(name.seed, name.sample.value, name.position)));
    }
    for (const int threads : {2, 3, 4}) {
      const std::vector<SampleOutcome> more = sample(threads, rows);
      ASSERT_EQ(more.size(), one.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(more[i].token, one[i].token);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(more[i].logprob),
                  std::bit_cast<std::uint32_t>(one[i].logprob));
        EXPECT_EQ(more[i].error, "");
      }
    }
  }
}

// Workers divide a row if there are too few rows for all of them.
TEST_P(WideSampling, LogProbabilitiesOfDividedRowsHaveTheSameBits) {
  const auto score = [&](int threads, std::int64_t rows) {
    Workers workers(threads);
    const auto own = GetParam().make(workers).value();
    const ConstMatrix logits{values_.data(), rows, kVocabulary, kVocabulary};
    std::vector<std::int32_t> targets = {5, -1, 0, kVocabulary - 1, 1024};
    targets.resize(static_cast<std::size_t>(rows));
    Floats scores(targets.size() * 2);
    own->log_softmax_gather(logits, targets, 1.0F / 0.7F, std::span(scores).first(targets.size()),
                            std::span(scores).subspan(targets.size()));
    return scores;
  };
  for (const std::int64_t rows : {1, 2, 3, 5}) {
    const Floats one = score(1, rows);
    for (const int threads : {2, 3, 4}) {
      EXPECT_EQ(score(threads, rows), one) << rows << " rows, " << threads << " threads";
    }
  }
}

// The entropy of softmax(logits / temperature) in double precision.
double entropy_of(std::span<const float> logits, float temperature) {
  const double inverse = 1.0 / static_cast<double>(temperature == 0.0F ? 1.0F : temperature);
  const auto top = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0.0;
  double weighted = 0.0;
  for (const float logit : logits) {
    const double below = (static_cast<double>(logit) - top) * inverse;
    const double weight = std::exp(below);
    sum += weight;
    weighted += weight > 0.0 ? weight * below : 0.0;
  }
  return std::log(sum) - weighted / sum;
}

class SampledEntropy : public OpsTest {
protected:
  // Samples one row with every option of sampling that the entropy must ignore.
  [[nodiscard]] SampleOutcome sample(const Floats& row, float temperature,
                                     bool wants_entropy) const {
    Workers workers(2);
    const auto ops = host::make_backend(GetParam().make(workers).value());
    const DeviceValues logits(*ops, row);
    SamplingOptions options;
    options.temperature = temperature;
    options.top_p = 0.5F;
    options.top_k = 10;
    options.presence_penalty = 0.5F;
    options.logit_bias = {{0, 3.0F}};
    const std::vector<std::int32_t> output = {0};
    SampleRequest request{0, &options, {{}, output}, {1, SampleId{2}, 3}};
    request.wants_entropy = wants_entropy;
    return ops->sample(logits.matrix(), {&request, 1}).value()[0];
  }
};

// The tolerance is that of the operations on rows: float sums of 1024 columns.
TEST_P(SampledEntropy, AgreesWithDoublePrecisionAndLeavesTheLogProbabilityAlone) {
  RandomStream random(17);
  for (const std::size_t size : {1UL, 2UL, 100UL, 1024UL, 5000UL}) {
    for (const double deviation : {0.0, 0.3, 3.0, 30.0}) {
      Floats row(size);
      for (float& logit : row) {
        logit = static_cast<float>(deviation * random.normal());
      }
      for (const float temperature : {0.0F, 0.5F, 1.0F, 4.0F}) {
        const SampleOutcome with = sample(row, temperature, true);
        const SampleOutcome without = sample(row, temperature, false);
        const double expected = entropy_of(row, temperature);
        expect_close(static_cast<double>(with.entropy), expected, 2e-6, 1.0 + expected, "entropy");
        EXPECT_GE(with.entropy, 0.0F);
        EXPECT_LE(static_cast<double>(with.entropy),
                  std::log(static_cast<double>(size)) * (1.0 + 2e-6));
        EXPECT_EQ(without.entropy, 0.0F);
        EXPECT_EQ(with.token, without.token);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(with.logprob),
                  std::bit_cast<std::uint32_t>(without.logprob));
      }
    }
  }
}

TEST_P(SampledEntropy, IsZeroForOneTokenAndIgnoresImpossibleOnes) {
  EXPECT_EQ(sample(Floats{5.0F}, 1.0F, true).entropy, 0.0F);
  EXPECT_EQ(sample(Floats{-kInfinite, 5.0F, -kInfinite}, 1.0F, true).entropy, 0.0F);
  const Floats two = {-kInfinite, 5.0F, -kInfinite, 5.0F};
  expect_close(static_cast<double>(sample(two, 1.0F, true).entropy), std::log(2.0), 2e-6, 1.0,
               "two tokens");
}

TEST_P(SampledEntropy, ARowThatFailsHasNone) {
  const SampleOutcome failed = sample(Floats{1.0F, std::nanf("")}, 1.0F, true);
  EXPECT_NE(failed.error, "");
  EXPECT_EQ(failed.entropy, 0.0F);
}

INSTANTIATE_TEST_SUITE_P(Backends, SampledEntropy, ::testing::ValuesIn(backends()), backend_name);

INSTANTIATE_TEST_SUITE_P(Backends, WideSampling, ::testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tidemill::engines::ops_test
