// SPDX-License-Identifier: Apache-2.0
// Adapters trained over frozen bases in int8 and NF4: what must have the same bits has, and the
// loss stays beside that of a bf16 base.
#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/formats/adapter_files.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/golden.hpp"

namespace tidemill::engines {
namespace {

// Mean cross entropy of the targets.
class CrossEntropy final : public TokenLoss {
public:
  explicit CrossEntropy(std::size_t targets) : targets_(static_cast<double>(targets)) {}

  Status evaluate(std::span<const LossRow> rows, LossSums& sums) override {
    for (const LossRow& row : rows) {
      for (std::size_t t = 1; t < row.logprobs.size(); ++t) {
        if (row.sequence->response_mask[t] != 0) {
          sums["loss"] -= double{row.logprobs[t]} / targets_;
          row.dlogprobs[t] = static_cast<float>(-1.0 / targets_);
        }
      }
    }
    return {};
  }

private:
  double targets_;
};

struct Case {
  std::string model;
  DType compute;
  Backend backend = Backend::kCpu;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " " << dtype_name(c.compute) << " " << backend_name(c.backend);
}

std::string case_name(const ::testing::TestParamInfo<Case>& test) {
  std::string name = test.param.model + "_" + std::string(dtype_name(test.param.compute)) + "_" +
                     backend_name(test.param.backend);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class QuantizedBaseTest : public ::testing::TestWithParam<Case> {
protected:
  // A new adapter, whose update is 0, over the golden model.
  [[nodiscard]] RuntimeOptions options(DType compute) const {
    const DType cache = cache_type(compute);
    RuntimeOptions options =
        small_options(model_.config, GetParam().backend, 1024, Training::kYes, cache);
    options.compute = compute;
    options.optimizer->total_steps = kSteps;
    options.optimizer->weight_decay = 0.0;
    AdapterConfig adapter;
    adapter.rank = 8;
    adapter.alpha = 16.0;
    adapter.targets.kind = ModuleSelector::Kind::kAllLinear;
    adapter.targets.names.clear();
    options.adapter = make_adapter(adapter, model_, 3).value();
    return options;
  }

  // Sequences that go on by a rule, so that there is something to learn.
  [[nodiscard]] std::vector<TrainSequence> sequences(std::uint64_t seed) const {
    RandomStream random(seed);
    std::vector<TrainSequence> all;
    for (std::uint64_t id = 0; id < 8; ++id) {
      TrainSequence sequence;
      sequence.id = {id};
      auto token = static_cast<std::int32_t>(random.below(32));
      for (int t = 0; t < 24; ++t) {
        sequence.ids.push_back(token);
        sequence.response_mask.push_back(t == 0 ? 0 : 1);
        token = random.below(4) == 0 ? static_cast<std::int32_t>(random.below(32))
                                     : (token * 5 + 3) % 32;
      }
      all.push_back(std::move(sequence));
    }
    return all;
  }

  // Trains on one batch and returns its loss.
  static double train(TrainEngine& engine, const std::vector<TrainSequence>& batch,
                      std::int64_t budget) {
    CrossEntropy loss(batch.size() * (batch[0].ids.size() - 1));
    EXPECT_TRUE(engine.begin_batch(&loss, 1.0F).ok());
    for (const TrainSequence& sequence : batch) {
      EXPECT_TRUE(engine.add(sequence).ok());
    }
    while (engine.has_work()) {
      EXPECT_TRUE(engine.step({budget}).ok());
    }
    const auto report = engine.update();
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.value().sums.at("loss");
  }

  [[nodiscard]] std::vector<double> losses(DType compute, int steps) const {
    const auto runtime = open_runtime(model_, options(compute)).value();
    std::vector<double> all;
    for (int step = 0; step < steps; ++step) {
      all.push_back(train(*runtime->train(), sequences(static_cast<std::uint64_t>(step)), 4096));
    }
    return all;
  }

  static constexpr int kSteps = 40;
  ModelFiles model_ = golden_model(GetParam().model);
};

// The base stays as it is, any cut into micro-batches gives the same adapter, and what rollout says
// of its tokens training says too, to the bit.
TEST_P(QuantizedBaseTest, TrainsTheAdapterExactly) {
  const RuntimeOptions opened = options(GetParam().compute);
  const auto whole = open_runtime(model_, opened).value();
  const auto cut = open_runtime(model_, opened).value();
  const Snapshot before = whole->initial();
  for (int step = 0; step < 3; ++step) {
    const auto batch = sequences(static_cast<std::uint64_t>(step));
    const double a = train(*whole->train(), batch, 4096);
    const double b = train(*cut->train(), batch, 30);
    EXPECT_NEAR(a, b, 1e-9);  // doubles, added up in another order
  }
  const Snapshot after = whole->train()->commit({0, 0, 1}).value();
  EXPECT_EQ(after.base_digest, before.base_digest);
  EXPECT_NE(after.adapter_digest, before.adapter_digest);
  EXPECT_TRUE(same_tensors(after.adapter, cut->train()->commit({0, 0, 1}).value().adapter));

  ASSERT_TRUE(whole->rollout().load(after, WeightArrival::kFinish).ok());
  const RolloutRequest request = sampling_request(1, model_.config, 9, 20);
  ResultKeeper results;
  run_requests(whole->rollout(), {request}, results, 7);
  const RolloutResult& result = results.at(1);
  const auto scored = whole->train()->score(after, {to_sequence(request, result)}, 1.0F).value();
  ASSERT_EQ(result.response_ids.size(), 20U);
  for (std::size_t t = 0; t < 20; ++t) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(result.behavior_logprobs[t]),
              std::bit_cast<std::uint32_t>(scored[0][request.prompt_ids.size() + t]))
        << t;
  }
}

// The golden models are random: what they say of any token is a guess, so that this is a test of
// learning over a base that was rounded, not of how much of a model's knowledge rounding leaves.
TEST_P(QuantizedBaseTest, LearnsAsOverABf16Base) {
  const std::vector<double> bf16 = losses(DType::kBF16, kSteps);
  const std::vector<double> rounded = losses(GetParam().compute, kSteps);
  double difference = 0.0;
  double largest = 0.0;
  double mean = 0.0;
  for (std::size_t i = 0; i < bf16.size(); ++i) {
    difference += (rounded[i] - bf16[i]) / static_cast<double>(kSteps);
    largest = std::max(largest, std::abs(rounded[i] / bf16[i] - 1.0));
    mean += bf16[i] / static_cast<double>(kSteps);
  }
  std::cout << bf16.front() << " -> " << bf16.back() << ", " << rounded.front() << " -> "
            << rounded.back() << ", mean difference " << difference / mean << ", largest "
            << largest << "\n";
  EXPECT_LT(rounded.back(), 0.7 * rounded.front());
  EXPECT_LT(std::abs(difference) / mean, 0.01);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, QuantizedBaseTest,
    ::testing::Values(Case{"llama-bf16-sharded", DType::kBlockI8},
                      Case{"llama-bf16-sharded", DType::kNf4}, Case{"qwen3-tiny", DType::kBlockI8},
                      Case{"qwen3-tiny", DType::kNf4},
                      Case{"llama-bf16-sharded", DType::kNf4, Backend::kReference}),
    case_name);

}  // namespace
}  // namespace tidemill::engines
