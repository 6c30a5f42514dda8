// SPDX-License-Identifier: Apache-2.0
// Adapters trained over frozen bases in int8 and NF4: results that must have equal bits do, and the
// loss stays close to that of a bf16 base.
#include <algorithm>
#include <bit>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/random.hpp"
#include "base/tensor/block_int8.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/golden.hpp"

namespace tidemill::engines {
namespace {

// Mean cross entropy of the targets.
class CrossEntropy final : public TokenLoss {
public:
  explicit CrossEntropy(std::size_t targets) : targets_(static_cast<double>(targets)) {}

  Status evaluate(std::span<const LossSequence> rows, LossSums& sums) override {
    for (const LossSequence& row : rows) {
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

constexpr const char* kShipped = "arithmetic";

ModelFiles load_model(const std::string& name) {
  return name == kShipped
             ? open_model(std::string(TIDEMILL_SOURCE_DIR) + "/examples/models/" + name,
                          TensorPlacement::kMapped)
                   .value()
             : golden_model(name);
}

struct Row {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> answer;
};

// Returns the rows that the shipped model was trained on, as ids. Every answer ends with the
// end-of-sequence token.
std::vector<Row> shipped_rows() {
  const std::string root(TIDEMILL_SOURCE_DIR);
  const Tokenizer tokenizer = Tokenizer::load(root + "/examples/models/arithmetic").value();
  const std::string text =
      read_text_file(root + "/examples/arithmetic/data/sft.jsonl", 8U << 20U).value();
  std::vector<Row> rows;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    const Json row = parse_json(std::string_view(text).substr(begin, end - begin)).value();
    const auto ids = [&](const char* key) {
      return tokenizer.encode(*row.find(key)->if_string(), AddSpecialTokens::kNo).value();
    };
    rows.push_back({ids("prompt"), ids("answer")});
    rows.back().answer.push_back(256);
    begin = end + 1;
  }
  EXPECT_EQ(rows.size(), 38525U);
  return rows;
}

struct QuantizedCase {
  std::string model;
  DType compute;
  Backend backend = Backend::kCpu;
};

std::ostream& operator<<(std::ostream& out, const QuantizedCase& c) {
  return out << c.model << " " << dtype_name(c.compute) << " " << backend_name(c.backend);
}

std::string case_name(const ::testing::TestParamInfo<QuantizedCase>& test) {
  std::string name = test.param.model + "_" + std::string(dtype_name(test.param.compute)) + "_" +
                     backend_name(test.param.backend);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

enum class UseDora : std::uint8_t { kNo, kYes };

class QuantizedBaseTest : public ::testing::TestWithParam<QuantizedCase> {
protected:
  // Returns options with a new adapter, whose contribution is 0.
  [[nodiscard]] RuntimeOptions options(DType compute, UseDora dora = UseDora::kNo) const {
    const DType cache = cache_type(compute);
    RuntimeOptions options =
        small_options(model_.config, GetParam().backend, 1024, Training::kYes, cache);
    options.compute = compute;
    options.optimizer->total_steps = kSteps;
    options.optimizer->weight_decay = 0.0;
    options.optimizer->schedule.learning_rate = GetParam().model == kShipped ? 1e-3 : 1e-2;
    AdapterConfig adapter;
    adapter.rank = 8;
    adapter.alpha = 16.0;
    adapter.targets.kind = ModuleSelector::Kind::kAllLinear;
    adapter.targets.names.clear();
    adapter.use_dora = dora == UseDora::kYes;
    options.adapter = make_adapter(adapter, model_, compute, 3).value();
    return options;
  }

  // Returns sequences that follow a rule, so that there is something to learn.
  [[nodiscard]] std::vector<TrainSequence> sequences(std::uint64_t seed) const {
    if (GetParam().model == kShipped) {
      return sums(seed);
    }
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

  // Returns 64 rows of the shipped data that are far apart, and different ones in every step.
  [[nodiscard]] std::vector<TrainSequence> sums(std::uint64_t step) const {
    std::vector<TrainSequence> all;
    for (std::uint64_t i = 0; i < 64; ++i) {
      const Row& row = rows_.at((step * 64 + i) * 7919 % rows_.size());
      TrainSequence sequence;
      sequence.id = {i};
      sequence.ids = row.prompt;
      sequence.ids.insert(sequence.ids.end(), row.answer.begin(), row.answer.end());
      sequence.response_mask.assign(row.prompt.size(), 0);
      sequence.response_mask.resize(sequence.ids.size(), 1);
      all.push_back(std::move(sequence));
    }
    return all;
  }

  // Trains on one batch and returns its loss.
  static double train(TrainingJob& engine, const std::vector<TrainSequence>& batch,
                      std::int64_t budget) {
    std::size_t targets = 0;
    for (const TrainSequence& sequence : batch) {
      targets += static_cast<std::size_t>(
          std::count(sequence.response_mask.begin(), sequence.response_mask.end(), 1));
    }
    CrossEntropy loss(targets);
    EXPECT_TRUE(begin(engine, batch, &loss, 1.0F).ok());
    while (engine.has_work()) {
      EXPECT_TRUE(engine.advance({budget}).ok());
    }
    const auto report = update(engine);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.value().sums.at("loss");
  }

  [[nodiscard]] std::vector<double> losses(DType compute, int steps) const {
    const auto runtime = open_runtime(model_, options(compute)).value();
    std::vector<double> all;
    for (int step = 0; step < steps; ++step) {
      all.push_back(
          train(*runtime->policy_job(), sequences(static_cast<std::uint64_t>(step)), 4096));
    }
    return all;
  }

  static constexpr int kSteps = 40;
  ModelFiles model_ = load_model(GetParam().model);
  std::vector<Row> rows_ = GetParam().model == kShipped ? shipped_rows() : std::vector<Row>();
};

// The base does not change, every split into micro-batches gives the same adapter, and rollout and
// training give the same log-probabilities, bit for bit.
TEST_P(QuantizedBaseTest, TrainsTheAdapterExactly) {
  const RuntimeOptions opened = options(GetParam().compute);
  const auto whole = open_runtime(model_, opened).value();
  const auto split = open_runtime(model_, opened).value();
  const Snapshot before = whole->initial();
  for (int step = 0; step < 3; ++step) {
    const auto batch = sequences(static_cast<std::uint64_t>(step));
    const double a = train(*whole->policy_job(), batch, 4096);
    const double b = train(*split->policy_job(), batch, 30);
    EXPECT_NEAR(a, b, 1e-9);  // doubles, summed in another order
  }
  const Snapshot after = publish(*whole->policy_job(), {0, 0, 1}).value();
  EXPECT_EQ(after.base_digest, before.base_digest);
  EXPECT_NE(after.adapter_digest, before.adapter_digest);
  EXPECT_TRUE(
      same_tensors(after.adapter, publish(*split->policy_job(), {0, 0, 1}).value().adapter));

  ASSERT_TRUE(whole->rollout().load(after, WeightArrival::kFinish).ok());
  const RolloutRequest request = sampling_request(1, model_.config, 9, 20);
  ResultKeeper results;
  run_requests(whole->rollout(), {request}, results, 7);
  const RolloutResult& result = results.at(1);
  const auto scored =
      whole->policy_job()->score(after, std::vector{to_sequence(request, result)}, 1.0F).value();
  ASSERT_FALSE(result.response_ids.empty());
  for (std::size_t t = 0; t < result.response_ids.size(); ++t) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(result.behavior_logprobs[t]),
              std::bit_cast<std::uint32_t>(scored[0][request.prompt_ids.size() + t]))
        << t;
  }
}

// A new adapter of either kind adds zeros and multiplies by ones. DoRA's ones are quotients of
// magnitudes and norms, which must both be those of the quantized rows.
TEST_P(QuantizedBaseTest, ANewDoraAdapterChangesNothing) {
  const auto lora = open_runtime(model_, options(GetParam().compute)).value();
  const auto dora = open_runtime(model_, options(GetParam().compute, UseDora::kYes)).value();
  const auto batch = sequences(1);
  const auto expected = lora->policy_job()->score(lora->initial(), batch, 1.0F).value();
  const auto scores = dora->policy_job()->score(dora->initial(), batch, 1.0F).value();
  // The reference adds the output to the residual in double precision if nothing scales it.
  const float allowed = GetParam().backend == Backend::kCpu ? 0.0F : 2e-5F;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t t = 0; t < expected[i].size(); ++t) {
      ASSERT_NEAR(scores[i][t], expected[i][t], allowed) << i << " " << t;
    }
  }

  const Snapshot before = dora->initial();
  for (const auto& [name, tensor] : before.adapter) {
    if (!name.ends_with(".lora_magnitude_vector")) {
      continue;
    }
    const std::string prefix(kAdapterPrefix);
    const std::string weight =
        name.substr(prefix.size(), name.rfind('.') - prefix.size()) + ".weight";
    const Tensor quantized = GetParam().compute == DType::kNf4
                                 ? quantize_nf4(model_.tensors.at(weight), weight).value()
                                 : quantize_blocks(model_.tensors.at(weight), weight).value();
    const std::vector<float> rows = float_values(
        GetParam().compute == DType::kNf4 ? to_float_type(quantized, DType::kBF16) : quantized);
    const std::vector<float> magnitudes = float_values(tensor);
    const std::size_t width = rows.size() / magnitudes.size();
    for (std::size_t o = 0; o < magnitudes.size(); ++o) {
      double square = 0.0;
      for (std::size_t i = o * width; i < (o + 1) * width; ++i) {
        square += double{rows[i]} * double{rows[i]};
      }
      ASSERT_EQ(magnitudes[o], static_cast<float>(std::sqrt(square))) << name << " " << o;
    }
  }
  train(*dora->policy_job(), batch, 4096);
  const Snapshot after = publish(*dora->policy_job(), {0, 0, 1}).value();
  EXPECT_NE(dora->policy_job()->score(after, batch, 1.0F).value(), expected);
}

// Trains the shipped model, which can add, on the rows it was made from. Its loss starts near the
// entropy of the errors in these rows and stays there, so runs can be compared step by step.
TEST_P(QuantizedBaseTest, KeepsTheLossOfTheShippedTaskWithinAPercent) {
  if (GetParam().model != kShipped) {
    EXPECT_LT(losses(GetParam().compute, 12).back(), 0.9 * losses(GetParam().compute, 1)[0]);
    return;  // a random model knows nothing that rounding could take away
  }
  const std::vector<double> bf16 = losses(DType::kBF16, kSteps);
  const std::vector<double> rounded = losses(GetParam().compute, kSteps);
  double sum = 0.0;
  double expected_sum = 0.0;
  double farthest = 0.0;
  for (std::size_t i = 0; i < bf16.size(); ++i) {
    sum += rounded[i];
    expected_sum += bf16[i];
    farthest = std::max(farthest, std::abs(rounded[i] / bf16[i] - 1.0));
  }
  EXPECT_LT(std::abs(sum / expected_sum - 1.0), 0.01) << "farthest step " << farthest;
  RecordProperty("mean", std::to_string(sum / expected_sum - 1.0));
  RecordProperty("farthest", std::to_string(farthest));
  RecordProperty("first", std::to_string(rounded.front() / bf16.front() - 1.0));
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedBaseTest,
                         ::testing::Values(QuantizedCase{kShipped, DType::kBlockI8},
                                           QuantizedCase{kShipped, DType::kNf4},
                                           QuantizedCase{"llama-bf16-sharded", DType::kBlockI8},
                                           QuantizedCase{"llama-bf16-sharded", DType::kNf4},
                                           QuantizedCase{"qwen3-tiny", DType::kBlockI8},
                                           QuantizedCase{"qwen3-tiny", DType::kNf4},
                                           QuantizedCase{"llama-bf16-sharded", DType::kNf4,
                                                         Backend::kReference}),
                         case_name);

}  // namespace
}  // namespace tidemill::engines
