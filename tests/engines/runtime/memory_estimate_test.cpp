// SPDX-License-Identifier: Apache-2.0
// Compares the estimated memory of weights with what laying them out takes. It counts the bytes of
// blocks instead of pages of the process, so that the results are the same on all machines.
#include "engines/runtime/memory_estimate.hpp"

#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/tensor/float_tensor.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/ops/cpu/cpu_ops.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/cpu/weight_memory.hpp"
#include "engines/ops/host/host_backend.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/adapter.hpp"
#include "engines/transformer/model_weights.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

// A model with matrices in every kind of block, some of which leave a part of a large page unused.
ModelFiles wide_model() {
  ModelFiles model;
  model.config = small_config({.biases = true});
  model.config.num_layers = 2;
  model.config.sliding_windows.resize(2);
  model.config.hidden_size = 1024;
  model.config.intermediate_size = 2816;
  model.config.num_heads = 16;
  model.config.num_kv_heads = 4;
  model.config.head_dim = 64;
  model.config.vocab_size = 1536;
  // Zeros, because 25 million random numbers would take most of the time of these tests.
  for (const auto& [name, shape] : expected_tensors(model.config)) {
    const std::int64_t count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    model.tensors[name] =
        make_float_tensor(std::vector<float>(static_cast<std::size_t>(count)), shape, DType::kF32);
  }
  return model;
}

AdapterFiles adapter_for(const ModelFiles& model) {
  AdapterConfig config;
  config.rank = 16;
  config.targets.names = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"};
  return make_adapter(config, model, DType::kF32, 3).value();
}

class MemoryEstimateTest : public ::testing::TestWithParam<DType> {
protected:
  static std::int64_t bytes_of(const TensorMap& tensors) {
    std::int64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) {
      bytes += static_cast<std::int64_t>(tensor.data.size_bytes());
    }
    return bytes;
  }

  Workers workers_{1};
};

TEST_P(MemoryEstimateTest, WeightsTakeTheEstimatedMemory) {
  const DType compute = GetParam();
  const ModelFiles model = wide_model();
  const AdapterFiles files = adapter_for(model);
  RuntimeOptions options;
  options.compute = compute;
  options.adapter = files;
  // The tensors of model and adapter are in memory here. NF4 has a table of its own in addition.
  const std::int64_t in_memory = bytes_of(model.tensors) + bytes_of(files.tensors);
  const std::int64_t table = model.config.vocab_size * model.config.hidden_size;
  const std::int64_t estimated = estimate_memory(model, options, {}).weights_bytes - in_memory -
                                 (compute == DType::kNf4 ? table / 32 * 34 : 0);

  auto host_ops = make_cpu_host_ops(workers_).value();
  const cpu::WeightMemory& memory = dynamic_cast<cpu::CpuOps&>(*host_ops).weight_memory();
  const auto ops = host::make_backend(std::move(host_ops));
  const auto base =
      ModelWeights::create(model.config, model.tensors, {compute, WeightUse::kForward, false}, *ops)
          .value();
  const AdapterSpec spec = adapter_spec(files.config, files.modules, model.config).value();
  const auto adapter =
      Adapter::create(model.config, spec, files.tensors, *base, WeightUse::kForward, *ops).value();

  // Gains and biases are not in blocks.
  std::int64_t vectors = 0;
  for (const auto& [name, tensor] : model.tensors) {
    vectors += tensor.shape.size() == 1 ? 4 * tensor.num_elements() : 0;
  }
  EXPECT_EQ(estimated, memory.bytes() + vectors);
  // The last blocks of 4, 16 and 32 MiB have free space after the weights. Other blocks have less
  // than the size of a weight.
  EXPECT_GE(memory.block_bytes(), memory.bytes());
  EXPECT_LE(memory.block_bytes() - memory.bytes(), std::int64_t{52} << 20U);
  // Rounding up costs at most an eighth, and a large page in each shared last block. Blocks hold
  // only matrices.
  const std::int64_t own_table = compute == DType::kNf4 ? table / 32 * 34 : 4 * table;
  const std::int64_t matrices = base->size_bytes() - vectors - own_table + adapter->size_bytes();
  EXPECT_LE(std::abs(static_cast<double>(memory.bytes() - matrices)),
            0.125 * static_cast<double>(matrices) + static_cast<double>(std::int64_t{4} << 20U));
}

constexpr std::int64_t kMebi = std::int64_t{1} << 20U;

// Eight weights that fill a block of 4 MiB.
std::vector<cpu::WeightBytes> fill_block(cpu::WeightMemory& memory) {
  std::vector<cpu::WeightBytes> weights;
  for (int i = 0; i < 8; ++i) {
    weights.push_back(memory.allocate(kMebi / 2));
  }
  return weights;
}

TEST(WeightMemoryTest, AFreeBlockIsUsedAgain) {
  cpu::WeightMemory memory;
  auto first = fill_block(memory);
  const std::byte* block = first.front().data();
  auto second = fill_block(memory);
  EXPECT_EQ(memory.num_free(), 0U);
  first.clear();
  EXPECT_EQ(memory.num_free(), 1U);
  const auto third = fill_block(memory);
  EXPECT_EQ(memory.num_free(), 0U);
  EXPECT_EQ(third.front().data(), block);
}

TEST(WeightMemoryTest, NoMoreBlocksAreKeptThanAreInUse) {
  cpu::WeightMemory memory;
  std::vector<std::vector<cpu::WeightBytes>> sets;
  for (int i = 0; i < 4; ++i) {
    sets.push_back(fill_block(memory));
  }
  sets.erase(sets.begin(), sets.begin() + 2);
  EXPECT_EQ(memory.num_free(), 2U);
  sets.erase(sets.begin());
  EXPECT_EQ(memory.num_free(), 1U);
  sets.clear();  // the memory keeps its last block
  EXPECT_EQ(memory.num_free(), 1U);
}

// A set of weights that share a block of 4 MiB.
void add_set(cpu::WeightSets& sets) {
  for (int i = 0; i < 3; ++i) {
    sets.add(kMebi / 2);
  }
}

TEST(WeightSetsTest, ABlockIsFreedWithTheLastWeightInIt) {
  cpu::WeightSets sets;
  sets.begin_set(1);
  add_set(sets);
  EXPECT_EQ(sets.bytes(), 2 * kMebi);
  sets.begin_set(1);
  add_set(sets);
  EXPECT_EQ(sets.bytes(), 4 * kMebi);  // the first set is gone, but not its part of the block
  sets.begin_set(1);
  add_set(sets);  // two in the first block, one in the next
  EXPECT_EQ(sets.bytes(), 6 * kMebi);
  sets.begin_set(1);
  add_set(sets);
  EXPECT_EQ(sets.bytes(), 2 * kMebi);
}

TEST(WeightSetsTest, WeightsPreparedFirstStay) {
  cpu::WeightSets sets;
  add_set(sets);
  sets.add(32 * kMebi);  // has a block of its own
  for (int i = 0; i < 10; ++i) {
    sets.begin_set(2);
    add_set(sets);
    EXPECT_GE(sets.bytes(), (32 + 4) * kMebi) << i;
    EXPECT_LE(sets.bytes(), (32 + 4 + 2 * 4) * kMebi) << i;
  }
}

TEST(WeightSetsTest, SetsWithBlocksOfTheirOwnAddUp) {
  const WeightSize large{1024, 16384, DType::kF32};  // 64 MiB
  const std::int64_t one = cpu_backend().weight_bytes({{large}, {}, 0});
  EXPECT_EQ(cpu_backend().weight_bytes({{}, {large}, 3}), 3 * one);
  EXPECT_EQ(cpu_backend().weight_bytes({{large}, {large}, 1}), 2 * one);
}

TEST(MemoryLoadTest, SharedPromptsNeedGradientsOfTheirKeysAndValues) {
  const ModelFiles model = wide_model();
  RuntimeOptions options;
  options.optimizer.emplace();
  MemoryLoad load;
  load.train_tokens = 256;
  const std::int64_t none = estimate_memory(model, options, load).activation_bytes;
  load.shared_tokens = 100;
  const std::int64_t row = 2 * std::int64_t{4} * model.config.num_kv_heads * model.config.head_dim;
  EXPECT_EQ(estimate_memory(model, options, load).activation_bytes, none + 100 * row);
  load.prompt_tokens = 30;  // carried to the next micro-batch, in every layer
  EXPECT_EQ(estimate_memory(model, options, load).activation_bytes,
            none + (100 + model.config.num_layers * 30) * row);
}

TEST(MemoryLoadTest, ScoredRowsAreCounted) {
  const ModelFiles model = wide_model();
  RuntimeOptions options;
  options.optimizer.emplace();
  MemoryLoad load;
  load.train_tokens = 256;
  load.rollout_tokens = 256;
  const std::int64_t none = estimate_memory(model, options, load).activation_bytes;
  load.score_tokens = 256;
  EXPECT_EQ(estimate_memory(model, options, load).activation_bytes, none);
  load.score_tokens = 512;
  const std::int64_t kept = Activations::bytes_per_row(model.config, 0);
  EXPECT_GE(estimate_memory(model, options, load).activation_bytes, none + 256 * kept);
}

TEST(MemoryLoadTest, KeptGeneratedRowsAreCounted) {
  const ModelFiles model = wide_model();
  RuntimeOptions options;
  options.optimizer.emplace();
  MemoryLoad load;
  load.train_tokens = 64;
  load.rollout_tokens = 256;
  load.kept_tokens = 1000;
  const MemoryEstimate none = estimate_memory(model, options, load);
  EXPECT_EQ(none.generated_bytes, 0);
  options.generated_bytes = std::int64_t{1} << 40U;
  const MemoryEstimate all = estimate_memory(model, options, load);
  // A row includes the keys and values of all layers, and ends with a cache line.
  const ModelConfig& config = model.config;
  const std::int64_t row =
      Activations::bytes_per_row(config, 0) +
      config.num_layers * 2 * config.num_kv_heads * config.head_dim * std::int64_t{4};
  EXPECT_GE(all.generated_bytes, 1000 * row);
  EXPECT_LT(all.generated_bytes, 1000 * (row + 64));
  EXPECT_EQ(all.generated_bytes, generated_bytes(config, options, 1000));
  // Those of an iteration are first kept for one layer at a time.
  EXPECT_EQ(
      all.activation_bytes,
      none.activation_bytes +
          256 * (Activations::bytes_per_row(config, config.num_layers - 1) + 8 * config.num_heads));
  options.generated_bytes = 1000;
  EXPECT_EQ(estimate_memory(model, options, load).generated_bytes, 1000);
  options.recompute = Recompute::kCheap;
  const MemoryEstimate cheap = estimate_memory(model, options, load);
  EXPECT_EQ(cheap.generated_bytes, 0);
  options.generated_bytes = 0;
  EXPECT_EQ(cheap.activation_bytes, estimate_memory(model, options, load).activation_bytes);
}

TEST(MemoryLoadTest, APageThatIsNotFullIsCounted) {
  const ModelFiles model = small_model(1);
  const ModelConfig& config = model.config;
  const RuntimeOptions options;
  const std::int64_t page = kv_bytes_for(config, options, kPageTokens);
  EXPECT_GE(page, kPageTokens * config.num_layers * 2 * config.num_kv_heads * config.head_dim * 4);
  for (const auto& [tokens, pages] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0},
                                                          {1, 1},
                                                          {kPageTokens - 1, 1},
                                                          {kPageTokens, 1},
                                                          {kPageTokens + 1, 2},
                                                          {2 * kPageTokens, 2},
                                                          {2 * kPageTokens + 1, 3}}) {
    MemoryLoad load;
    load.kv_tokens = tokens;
    EXPECT_EQ(estimate_memory(model, options, load).kv_bytes, pages * page) << tokens;
    RuntimeOptions budgets = options;
    set_budgets(config, load, budgets);
    EXPECT_EQ(budgets.kv_bytes, pages * page) << tokens;
  }
}

TEST(MemoryLoadTest, EveryHeldPublishedVersionIsCounted) {
  const ModelFiles model = wide_model();
  RuntimeOptions options;
  options.optimizer.emplace();
  MemoryLoad load;
  load.snapshots = 2;
  const MemoryEstimate two = estimate_memory(model, options, load);
  load.snapshots = 5;
  EXPECT_EQ(estimate_memory(model, options, load).weights_bytes,
            two.weights_bytes + 3 * two.published_bytes);
  EXPECT_EQ(two.preloaded_bytes, 4 * num_parameters(model.config));
}

// Compares with what a trainer holds: f32 and bf16, all parameters and an adapter.
TEST(MemoryLoadTest, CapturedStateAndPublishedWeightsTakeTheEstimatedMemory) {
  const auto bytes_of = [](const TensorMap& tensors) {
    std::int64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) {
      bytes += name == "step" ? 0 : static_cast<std::int64_t>(tensor.data.size_bytes());
    }
    return bytes;
  };
  const ModelFiles model = small_model(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool adapts : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (adapts ? " adapter" : " full"));
      RuntimeOptions options =
          small_options(model.config, Backend::kCpu, 64, Training::kYes, dtype);
      if (adapts) {
        options.adapter = small_adapter(model.config, 2);
      }
      const MemoryEstimate estimate = estimate_memory(model, options, {});
      const auto runtime = open_runtime(model, options).value();
      EXPECT_EQ(estimate.capture_bytes, bytes_of(optimizer_state(*runtime->policy_job()).value()));
      const Snapshot published = publish(*runtime->policy_job(), {0, 0, 1}).value();
      EXPECT_EQ(estimate.published_bytes, bytes_of(adapts ? published.adapter : published.base));
    }
  }
}

// Compares with what a job takes that is opened over the base of a runtime, trains and is captured.
TEST(MemoryLoadTest, AJobOverASharedBaseTakesNoMoreThanEstimated) {
  const ModelFiles model = small_model(1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    RuntimeOptions options = small_options(model.config, Backend::kCpu, 64, Training::kNo, dtype);
    options.trains_adapters = true;
    options.adapter_bytes = 1 << 20;
    const auto runtime = open_runtime(model, options).value();
    MemoryLoad load;
    load.shares_base = true;
    load.train_tokens = 32;
    load.publishes = false;
    load.snapshots = 1;
    RuntimeOptions training = options;
    training.adapter = small_adapter(model.config, 2);
    training.optimizer.emplace();
    set_budgets(model.config, load, training);
    const MemoryEstimate estimate = estimate_memory(model, training, load);
    EXPECT_EQ(estimate.kv_bytes, 0);
    // The job's copy of the files counts, and the base that is laid out does not.
    load.shares_base = false;
    EXPECT_GT(estimate_memory(model, training, load).weights_bytes,
              estimate.weights_bytes + options.adapter_bytes);

    const std::int64_t before = runtime->device_use().bytes;
    JobOptions wanted;
    wanted.adapter = *training.adapter;
    wanted.activation_bytes = training.activation_bytes;
    wanted.limits = training.limits;
    const auto job = runtime->open_job(wanted).value();
    const std::int64_t taken = runtime->device_use().bytes - before;
    EXPECT_GT(taken, 0);
    EXPECT_LE(taken, estimate.total() - estimate.preloaded_bytes);
  }
}

TEST(MemoryLoadTest, StateIsCapturedOnlyForCommits) {
  const ModelFiles model = wide_model();
  RuntimeOptions options;
  options.optimizer.emplace();
  MemoryLoad load;
  const MemoryEstimate with = estimate_memory(model, options, load);
  EXPECT_EQ(with.capture_bytes, with.optimizer_bytes);
  load.commits = false;
  EXPECT_EQ(estimate_memory(model, options, load).capture_bytes, 0);
  options.adapter = adapter_for(model);
  EXPECT_EQ(estimate_memory(model, options, load).capture_bytes, 0);
  load.commits = true;
  const MemoryEstimate adapter = estimate_memory(model, options, load);
  EXPECT_EQ(adapter.capture_bytes, adapter.optimizer_bytes);
}

INSTANTIATE_TEST_SUITE_P(Types, MemoryEstimateTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

// What a factory says before a device is opened is what the device then takes.
TEST(BackendFactoryTest, EstimatesHoldForTheDevice) {
  const ModelConfig config = small_config({});
  constexpr std::int64_t kOut = 48;
  constexpr std::int64_t kIn = 64;
  const Tensor tensor =
      make_float_tensor(std::vector<float>(kOut * kIn, 0.5F), {kOut, kIn}, DType::kF32);
  std::set<std::string_view> names;
  for (const Backend backend : {Backend::kCpu, Backend::kReference, Backend::kGuarded}) {
    const BackendFactory& factory = backend_factory(backend);
    names.insert(factory.name());
    Workers workers(1);
    const auto ops = factory.open(workers, {});
    ASSERT_TRUE(ops.ok()) << factory.name() << ": " << ops.status().to_string();
    const AttentionShape shape = attention_shape(config, 0, {});
    EXPECT_EQ(factory.kv_page_bytes(shape), ops.value()->kv_page_bytes(shape)) << factory.name();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto weight =
          ops.value()->prepare_weight(weight_view(tensor), dtype, WeightUse::kForwardAndBackward);
      ASSERT_TRUE(weight.ok());
      EXPECT_GE(factory.weight_bytes({{{kOut, kIn, dtype}}, {}, 0}), weight.value()->size_bytes())
          << factory.name();
    }
  }
  EXPECT_EQ(names.size(), 3U);
}

}  // namespace
}  // namespace tidemill::engines
