// SPDX-License-Identifier: Apache-2.0
// Opening a model, sharing its weights, and refusing bad options and files.
#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/digest.hpp"
#include "base/files/tensor_file.hpp"
#include "base/tensor/float_tensor.hpp"
#include "engines/executor/cores.hpp"
#include "engines/ops/reference/factory.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/transformer/transformer.hpp"
#include "tests/engines/runtime/job_steps.hpp"
#include "tests/engines/runtime/runtime_bench.hpp"
#include "tests/engines/transformer/random_model.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::engines {
namespace {

class ModelRuntimeTest : public ::testing::Test {
protected:
  void expect_refused(const RuntimeOptions& options, Errc code, const std::string& message) {
    const auto runtime = open_runtime(model_, options);
    ASSERT_FALSE(runtime.ok());
    EXPECT_EQ(runtime.status().code(), code) << runtime.status().to_string();
    EXPECT_NE(runtime.status().message().find(message), std::string::npos)
        << runtime.status().message();
  }

  [[nodiscard]] RuntimeOptions options(Training training) const {
    return small_options(model_.config, Backend::kCpu, 64, training);
  }

  ModelFiles model_ = small_model(1);
};

TEST_F(ModelRuntimeTest, DescribesItself) {
  const auto runtime = open_runtime(model_, options(Training::kNo)).value();
  EXPECT_EQ(runtime->policy_job(), nullptr);
  EXPECT_EQ(runtime->initial().version, PolicyVersion{});
  EXPECT_EQ(runtime->initial().base_digest, digest_tensors(model_.tensors));
  const std::string description(runtime->description());
  EXPECT_NE(description.find("2 threads, weights F32, cache F32"), std::string::npos)
      << description;
}

TEST_F(ModelRuntimeTest, ZeroThreadsMeansAllCores) {
  RuntimeOptions all = options(Training::kNo);
  all.threads = 0;
  const std::string description(open_runtime(model_, all).value()->description());
  EXPECT_NE(description.find(", " + std::to_string(num_threads(0)) + " thread"), std::string::npos)
      << description;
  EXPECT_EQ(num_threads(0), std::min(usable_cores().cores, kMaxThreads));
  EXPECT_EQ(num_threads(3), 3);
}

TEST_F(ModelRuntimeTest, BadOptionsAreRefused) {
  RuntimeOptions bad = options(Training::kNo);
  bad.threads = -1;
  expect_refused(bad, Errc::kInvalidArgument, "threads: -1");
  bad = options(Training::kNo);
  bad.compute = DType::kF16;
  expect_refused(bad, Errc::kInvalidArgument, "compute: F16");
  for (const auto& [compute, name] : {std::pair{DType::kBlockI8, "int8"}, {DType::kNf4, "nf4"}}) {
    bad = options(Training::kYes);
    bad.compute = compute;
    expect_refused(
        bad, Errc::kInvalidArgument,
        std::string("compute: ") + name + " weights cannot be trained; train an adapter");
  }
  bad = options(Training::kNo);
  bad.kv_dtype = DType::kI8;
  expect_refused(bad, Errc::kInvalidArgument, "kv_dtype: I8");
  bad = options(Training::kNo);
  bad.max_running = 0;
  expect_refused(bad, Errc::kInvalidArgument, "max_running: 0");
  for (auto [field, name] :
       {std::pair{&RuntimeOptions::kv_bytes, "kv_bytes: -1 is negative"},
        {&RuntimeOptions::generated_bytes, "generated_bytes: -1 is negative"}}) {
    bad = options(Training::kNo);
    bad.*field = -1;
    expect_refused(bad, Errc::kInvalidArgument, name);
  }
  for (auto [field, name] : {std::pair{&RowLimits::sampled_rows, "limits.sampled_rows"},
                             {&RowLimits::train_rows, "limits.train_rows"},
                             {&RowLimits::sequence_rows, "limits.sequence_rows"},
                             {&RowLimits::prompt_rows, "limits.prompt_rows"}}) {
    bad = options(Training::kNo);
    bad.limits.*field = -5;
    expect_refused(bad, Errc::kInvalidArgument, std::string(name) + ": -5 is negative");
  }
  const std::int64_t huge = std::int64_t{1} << 62U;
  bad = options(Training::kNo);
  bad.kv_bytes = huge;
  expect_refused(bad, Errc::kInvalidArgument, "kv_bytes: 4611686018427387904 is more than");
  bad = options(Training::kNo);
  bad.limits.rollout_rows = huge;
  expect_refused(bad, Errc::kInvalidArgument, "limits.rollout_rows: 4611686018427387904 is more");
  bad = options(Training::kYes);
  bad.limits.prompt_rows = huge;
  expect_refused(bad, Errc::kInvalidArgument, "limits.prompt_rows: 4611686018427387904 is more");
  bad = options(Training::kYes);
  bad.activation_bytes = 100;
  expect_refused(bad, Errc::kInvalidArgument, "activation_bytes: 100 holds no token");
  bad = options(Training::kNo);
  bad.device_bytes = std::int64_t{1} << 20U;
  bad.kv_bytes = std::int64_t{8} << 20U;
  expect_refused(bad, Errc::kResourceExhausted, "memory of keys and values: ");
  bad = options(Training::kNo);
  bad.kv_bytes = 100;
  expect_refused(bad, Errc::kResourceExhausted, "100");
  bad = options(Training::kYes);
  bad.optimizer->total_steps = 0;
  expect_refused(bad, Errc::kInvalidArgument, "total_steps: 0");
  bad = options(Training::kYes);
  bad.optimizer->weight_decay = -1.0;
  expect_refused(bad, Errc::kInvalidArgument, "weight_decay");
  bad = options(Training::kYes);
  bad.optimizer->max_grad_norm = -1.0;
  expect_refused(bad, Errc::kInvalidArgument, "max_grad_norm");
  bad = options(Training::kYes);
  bad.optimizer->adamw.beta1 = 2.0;
  expect_refused(bad, Errc::kInvalidArgument, "beta1");
  bad = options(Training::kYes);
  bad.activation_bytes = 0;
  expect_refused(bad, Errc::kInvalidArgument, "activation_bytes");
  bad = options(Training::kYes);
  bad.window_tokens = -1;
  expect_refused(bad, Errc::kInvalidArgument, "window_tokens: -1 is negative");
}

// A weight that `open_model` left unchecked is refused with the same message wherever it is.
TEST_F(ModelRuntimeTest, WeightsLeftUncheckedAreCheckedAsTheyAreLaidOut) {
  int num_refused = 0;
  for (const bool tied : {false, true}) {
    ModelFiles whole;
    whole.config = small_config(
        {.tied = tied, .biases = true, .qk_norm = true, .sliding = true, .scaled_rope = false});
    whole.tensors = random_weights(whole.config, 1);
    whole.unchecked = "some/model.safetensors";
    EXPECT_TRUE(open_runtime(whole, options(Training::kYes)).ok());
    for (const auto& [name, tensor] : whole.tensors) {
      ModelFiles corrupted = whole;
      std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
      widen_floats(tensor, values);
      values.back() = num_refused % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                           : -std::numeric_limits<float>::infinity();
      corrupted.tensors[name] = make_float_tensor(values, tensor.shape, DType::kF32);
      const std::string expected =
          check_finite_weights(corrupted.tensors, corrupted.unchecked).message();
      ASSERT_NE(expected, "");
      for (const Backend backend : {Backend::kCpu, Backend::kReference}) {
        for (const DType compute : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
          RuntimeOptions unchecked = options(Training::kNo);
          unchecked.backend = backend;
          unchecked.compute = compute;
          const auto runtime = open_runtime(corrupted, unchecked);
          ASSERT_FALSE(runtime.ok()) << name << ' ' << dtype_name(compute);
          EXPECT_EQ(runtime.status().code(), Errc::kInvalidArgument);
          EXPECT_EQ(runtime.status().message(), expected);
        }
      }
      EXPECT_EQ(open_runtime(corrupted, options(Training::kYes)).status().message(), expected);
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 2 * 3 * 14);
}

// Weights are read from the file while they are laid out. A file truncated since it was opened is
// refused then.
TEST_F(ModelRuntimeTest, AFileTruncatedAfterOpeningIsRefused) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  PosixFileSystem files;
  ASSERT_TRUE(write_tensor_file(files, path, model_.tensors).ok());
  const auto size = std::filesystem::file_size(path);
  for (const std::uintmax_t left : {size - 1, size / 2}) {
    ASSERT_TRUE(write_tensor_file(files, path, model_.tensors).ok());
    ModelFiles mapped = model_;
    mapped.tensors = read_tensor_file(path, TensorPlacement::kMapped).value().tensors;
    mapped.unchecked = path.string();
    EXPECT_TRUE(open_runtime(mapped, options(Training::kNo)).ok());
    std::filesystem::resize_file(path, left);
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kBlockI8, DType::kNf4}) {
      RuntimeOptions truncated = options(Training::kNo);
      truncated.compute = compute;
      const auto runtime = open_runtime(mapped, truncated);
      ASSERT_FALSE(runtime.ok()) << dtype_name(compute);
      EXPECT_EQ(runtime.status().code(), Errc::kCorruptData) << runtime.status().to_string();
      const std::string& line = runtime.status().message();
      EXPECT_TRUE(line.starts_with("tensor ")) << line;
      EXPECT_NE(line.find(": " + path.string() + ": ends at byte " + std::to_string(left)),
                std::string::npos)
          << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
}

// A float beyond the range of bfloat16 rounds to infinity, but is finite in the file.
TEST_F(ModelRuntimeTest, WeightsBeyondBfloat16AreFiniteInTheFile) {
  model_.unchecked = "some/model.safetensors";
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::vector<float> values(static_cast<std::size_t>(model_.tensors.at(name).num_elements()));
  values[3] = std::numeric_limits<float>::max();
  model_.tensors[name] = make_float_tensor(values, model_.tensors.at(name).shape, DType::kF32);
  RuntimeOptions bf16 = options(Training::kNo);
  bf16.compute = DType::kBF16;
  EXPECT_TRUE(open_runtime(model_, bf16).ok());
}

TEST_F(ModelRuntimeTest, AdaptersThatDoNotFitAreRefused) {
  RuntimeOptions bad = options(Training::kNo);
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->config.use_dora = true;
  expect_refused(bad, Errc::kInvalidArgument, "lora_magnitude_vector\": missing");
  bad.adapter->config.lora_bias = true;
  expect_refused(bad, Errc::kInvalidArgument, "lora_bias: cannot be used with use_dora");
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->config.modules_to_save = {"mlp"};
  expect_refused(bad, Errc::kInvalidArgument,
                 "modules_to_save: \"mlp\" is not a layer, norm or embedding table of this model");
  bad.adapter->config.modules_to_save = {"_proj"};
  expect_refused(bad, Errc::kInvalidArgument, "_proj is also a target module");
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->tensors.erase(bad.adapter->tensors.begin());
  expect_refused(bad, Errc::kInvalidArgument, "lora_A");
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->modules[0].module.path = "model.layers.9.self_attn.q_proj";
  expect_refused(bad, Errc::kInvalidArgument, "model.layers.");
  bad = options(Training::kYes);
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->config.dropout = 0.1;
  expect_refused(bad, Errc::kUnimplemented, "lora_dropout");
}

TEST_F(ModelRuntimeTest, AdaptersWithBadNumbersAreRefused) {
  AdapterConfig config;
  config.targets.kind = ModuleSelector::Kind::kAllLinear;
  const auto expect_bad = [&](const std::string& message) {
    const auto made = make_adapter(config, model_, DType::kF32, 1);
    EXPECT_EQ(made.status().code(), Errc::kInvalidArgument);
    EXPECT_NE(made.status().message().find(message), std::string::npos) << made.status().message();
    EXPECT_EQ(made.status().message().find("train.adapter"), std::string::npos);
  };
  for (const std::int64_t rank : {0, -1}) {
    config.rank = rank;
    expect_bad("rank " + std::to_string(rank) + " is less than 1");
  }
  config.rank = 4;
  config.alpha = std::numeric_limits<double>::quiet_NaN();
  expect_bad("is not finite");

  // Files that a program made itself are checked when they are used.
  RuntimeOptions bad = options(Training::kYes);
  bad.adapter = small_adapter(model_.config, 1);
  bad.adapter->modules[0].rank = 0;
  expect_refused(bad, Errc::kInvalidArgument, "rank 0 is less than 1");
}

TEST_F(ModelRuntimeTest, JobsTakeTheLimitsOfTheirOptions) {
  RuntimeOptions base = options(Training::kNo);
  base.trains_adapters = true;
  const auto runtime = open_runtime(model_, base).value();
  JobOptions job;
  job.adapter = small_adapter(model_.config, 1);
  job.optimizer.total_steps = 10;
  EXPECT_EQ(job.activation_bytes, RuntimeOptions().activation_bytes);
  job.limits.train_rows = 20;
  job.limits.sequence_rows = 20;
  const std::int64_t before = runtime->device_use().bytes;
  const auto small = runtime->open_job(job).value();
  const std::int64_t small_bytes = runtime->device_use().bytes - before;
  TrainSequence sequence;
  sequence.ids.assign(30, 1);
  sequence.response_mask.assign(30, 1);
  const Status refused = small->forward({{sequence}});
  EXPECT_EQ(refused.code(), Errc::kResourceExhausted);
  EXPECT_NE(refused.message().find("20 rows"), std::string::npos) << refused.message();
  job.limits = {};
  const auto large = runtime->open_job(job).value();
  EXPECT_GT(runtime->device_use().bytes - before - small_bytes, small_bytes);
  EXPECT_TRUE(large->forward({{sequence}}).ok());
  job.limits.train_rows = -1;
  EXPECT_EQ(runtime->open_job(job).status().code(), Errc::kInvalidArgument);
}

TEST_F(ModelRuntimeTest, AModelOfAnotherShapeIsRefused) {
  model_.tensors.erase("model.norm.weight");
  expect_refused(options(Training::kNo), Errc::kInvalidArgument, "model.norm.weight");
}

TEST_F(ModelRuntimeTest, Bf16Generates) {
  RuntimeOptions half = options(Training::kNo);
  half.compute = DType::kBF16;
  half.kv_dtype = DType::kBF16;
  const auto runtime = open_runtime(model_, half).value();
  RolloutRequest request = sampling_request(1, model_.config, 9, 12);
  request.sampling.temperature = 0.0F;
  ResultKeeper first;
  run_requests(runtime->rollout(), {request}, first, 4);
  // Scoring the response in one chunk gives the bits of sampling it.
  RolloutRequest scored = request;
  const RolloutResult& result = first.at(1);
  scored.prompt_ids.insert(scored.prompt_ids.end(), result.response_ids.begin(),
                           result.response_ids.end());
  scored.max_new_tokens = 0;
  scored.prompt_logprobs = true;
  ResultKeeper second;
  run_requests(runtime->rollout(), {scored}, second);
  ASSERT_EQ(result.response_ids.size(), 12U);
  for (std::size_t t = 0; t < 12; ++t) {
    EXPECT_EQ(second.at(1).prompt_logprobs[8 + t], result.behavior_logprobs[t]) << t;
  }
}

TEST_F(ModelRuntimeTest, AnAdapterRunPublishesOnlyTheAdapter) {
  RuntimeOptions adapted = options(Training::kYes);
  adapted.adapter = small_adapter(model_.config, 1);
  const auto runtime = open_runtime(model_, adapted).value();
  const Snapshot snapshot = publish(*runtime->policy_job(), {0, 0, 1}).value();
  EXPECT_TRUE(snapshot.base.empty());
  EXPECT_EQ(snapshot.base_digest, runtime->initial().base_digest);
  EXPECT_EQ(snapshot.adapter_digest, runtime->initial().adapter_digest);
  EXPECT_TRUE(runtime->rollout().load(snapshot, WeightArrival::kFinish).ok());
  EXPECT_EQ(runtime->rollout().serving_version().step, 1U);
}

TEST_F(ModelRuntimeTest, EstimatesGrowWithTheLoad) {
  constexpr std::int64_t kTokens = 4096;
  const MemoryEstimate generating = estimate_memory(model_, options(Training::kNo), {kTokens});
  const MemoryEstimate training = estimate_memory(model_, options(Training::kYes), {kTokens});
  const std::int64_t parameters = 4 * num_parameters(model_.config);
  EXPECT_EQ(generating.kv_bytes, options(Training::kNo).kv_bytes);
  // The file is in memory and laid out, except the table, which is used from the file.
  const std::int64_t table = 4 * model_.config.vocab_size * model_.config.hidden_size;
  EXPECT_GE(generating.weights_bytes, 2 * parameters - table);
  EXPECT_EQ(generating.gradient_bytes + generating.optimizer_bytes, 0);
  EXPECT_EQ(training.gradient_bytes, parameters);
  EXPECT_EQ(training.optimizer_bytes, 2 * parameters);
  EXPECT_GT(training.weights_bytes, generating.weights_bytes);
  EXPECT_GT(training.activation_bytes, generating.activation_bytes);
  EXPECT_GT(estimate_memory(model_, options(Training::kYes), {2 * kTokens}).activation_bytes,
            training.activation_bytes);
  RuntimeOptions adapted = options(Training::kYes);
  adapted.adapter = small_adapter(model_.config, 1);
  const MemoryEstimate adapter = estimate_memory(model_, adapted, {kTokens});
  EXPECT_LT(adapter.weights_bytes + adapter.gradient_bytes + adapter.optimizer_bytes,
            training.weights_bytes + training.gradient_bytes + training.optimizer_bytes);
  EXPECT_GT(adapter.activation_bytes, training.activation_bytes);  // A x is kept
  adapted.recompute = Recompute::kCheap;
  const MemoryEstimate cheap = estimate_memory(model_, adapted, {kTokens});
  adapted.recompute = Recompute::kLayer;
  const MemoryEstimate layer = estimate_memory(model_, adapted, {kTokens});
  EXPECT_LT(cheap.activation_bytes, adapter.activation_bytes);
  EXPECT_LT(layer.activation_bytes, cheap.activation_bytes);
  adapted.window_tokens = 512;
  const std::int64_t per_row =
      Transformer::workspace_bytes_per_row(model_.config, WeightUse::kForwardAndBackward).group;
  EXPECT_EQ(layer.activation_bytes - estimate_memory(model_, adapted, {kTokens}).activation_bytes,
            (kTokens - 512) * per_row);
}

TEST(WeightCacheTest, LaysWeightsOutOnce) {
  const ModelFiles model = small_model(1);
  const auto ops = make_reference_ops();
  const AdapterFiles files = small_adapter(model.config, 1);
  WeightCache weight_cache(model.config,
                           adapter_spec(files.config, files.modules, model.config).value(),
                           DType::kF32, KeepBase::kIfNeeded, *ops);
  Snapshot snapshot;
  snapshot.base = model.tensors;
  snapshot.base_digest = digest_tensors(snapshot.base);
  snapshot.adapter = files.tensors;
  snapshot.adapter_digest = digest_tensors(snapshot.adapter);
  auto both = weight_cache.lay_out(snapshot, WeightUse::kForwardAndBackward).value();
  const auto forward = weight_cache.lay_out(snapshot, WeightUse::kForward).value();
  EXPECT_EQ(forward.base, both.base);
  EXPECT_EQ(forward.adapter, both.adapter);
  snapshot.base.clear();
  EXPECT_EQ(weight_cache.lay_out(snapshot, WeightUse::kForward).value().base, both.base);
}

// Weights for both directions serve a forward pass, but not the other way round.
TEST(WeightCacheTest, WeightsForForwardAreNotTrained) {
  const ModelFiles model = small_model(1);
  const auto ops = make_reference_ops();
  const AdapterFiles files = small_adapter(model.config, 1);
  WeightCache weight_cache(model.config,
                           adapter_spec(files.config, files.modules, model.config).value(),
                           DType::kF32, KeepBase::kIfNeeded, *ops);
  Snapshot snapshot;
  snapshot.base = model.tensors;
  snapshot.base_digest = digest_tensors(snapshot.base);
  snapshot.adapter = files.tensors;
  snapshot.adapter_digest = digest_tensors(snapshot.adapter);
  const auto forward = weight_cache.lay_out(snapshot, WeightUse::kForward).value();
  const auto both = weight_cache.lay_out(snapshot, WeightUse::kForwardAndBackward).value();
  EXPECT_NE(both.base, forward.base);
  EXPECT_NE(both.adapter, forward.adapter);
  // From now on, there is one layout for everything.
  EXPECT_EQ(weight_cache.lay_out(snapshot, WeightUse::kForward).value().base, both.base);
  EXPECT_EQ(weight_cache.lay_out(snapshot, WeightUse::kForwardAndBackward).value().adapter,
            both.adapter);
}

TEST(WeightCacheTest, DoesNotExtendTheLifeOfWeights) {
  const ModelFiles model = small_model(1);
  const auto ops = make_reference_ops();
  WeightCache weight_cache(model.config, {}, DType::kF32, KeepBase::kIfNeeded, *ops);
  Snapshot snapshot;
  snapshot.base = model.tensors;
  snapshot.base_digest = digest_tensors(snapshot.base);
  const std::weak_ptr<const ModelWeights> gone =
      weight_cache.lay_out(snapshot, WeightUse::kForward).value().base;
  EXPECT_TRUE(gone.expired());
  snapshot.base.clear();
  EXPECT_EQ(weight_cache.lay_out(snapshot, WeightUse::kForward).status().code(),
            Errc::kInvalidArgument);
}

}  // namespace
}  // namespace tidemill::engines
