// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/runtime/runtime_bench.hpp"

#include <bit>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "base/check.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/reference/factory.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "tests/engines/transformer/random_model.hpp"

namespace tidemill::engines {
namespace {

void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected,
                      const char* what, SampleId id) {
  ASSERT_EQ(actual.size(), expected.size()) << what << " of sample " << id.value;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << what << " " << i << " of sample " << id.value << ": " << actual[i] << " is not "
        << expected[i];
  }
}

// Returns the bytes of a page, whose layout depends on the backend.
std::int64_t page_bytes(Backend backend, const AttentionShape& shape) {
  const BackendFactory& factory =
      backend == Backend::kReference ? reference_backend() : cpu_backend();
  return factory.kv_page_bytes(shape);
}

}  // namespace

void ResultKeeper::on_rollout(RolloutResult result) {
  const std::uint64_t id = result.id.value;
  EXPECT_EQ(streamed_.end(result), "");
  TIDEMILL_CHECK(results_.emplace(id, std::move(result)).second) << "second result of " << id;
}

const RolloutResult& ResultKeeper::at(std::uint64_t id) const {
  const auto found = results_.find(id);
  TIDEMILL_CHECK(found != results_.end()) << "no result of " << id;
  return found->second;
}

Status WeightedLoss::evaluate(std::span<const LossSequence> rows, LossSums& sums) {
  for (const LossSequence& row : rows) {
    for (std::size_t t = 1; t < row.logprobs.size(); ++t) {
      if (row.sequence->response_mask[t] != 0) {
        const auto weight = static_cast<float>(row.sequence->id.value % 3) - 0.8F;
        sums["loss"] += double{weight} * double{row.logprobs[t]};
        row.dlogprobs[t] = weight;
        row.dentropies[t] = 0.02F;
      }
    }
  }
  return {};
}

std::string backend_name(Backend backend) {
  switch (backend) {
    case Backend::kCpu: return "cpu";
    case Backend::kGuarded: return "guarded";
    case Backend::kReference: break;
  }
  return "reference";
}

ModelFiles small_model(std::uint64_t seed) {
  ModelFiles model;
  model.config = small_config(
      {.tied = false, .biases = true, .qk_norm = true, .sliding = true, .scaled_rope = false});
  model.tensors = random_weights(model.config, seed);
  return model;
}

AdapterFiles small_adapter(const ModelConfig& model, std::uint64_t seed) {
  AdapterFiles adapter;
  adapter.config.rank = 3;
  adapter.config.alpha = 6.0;
  adapter.config.targets.kind = ModuleSelector::Kind::kAllLinear;
  adapter.config.targets.names.clear();
  adapter.modules = resolve_adapter(adapter.config, model, "adapter").value();
  adapter.tensors = random_lora(adapter_spec(adapter.config, adapter.modules, model).value(), seed);
  return adapter;
}

AdapterFiles sample_adapter(const ModelFiles& model, const std::string& name, std::uint64_t seed) {
  AdapterFiles adapter;
  for (const AdapterSample& sample : adapter_samples()) {
    if (sample.name == name) {
      adapter.config = sample.config;
    }
  }
  adapter.modules = resolve_adapter(adapter.config, model.config, "adapter").value();
  adapter.tensors =
      random_adapter(spec_of(adapter.config, model.config), model.config, model.tensors, seed);
  return adapter;
}

RuntimeOptions small_options(const ModelConfig& model, Backend backend, std::int64_t cache_tokens,
                             Training training, DType dtype) {
  RuntimeOptions options;
  options.backend = backend;
  options.compute = dtype;
  options.kv_dtype = dtype;
  options.threads = backend == Backend::kCpu ? 2 : 1;
  KvCacheOptions cache;
  cache.dtype = dtype;
  const std::int64_t page =
      page_bytes(backend, attention_shape(model, 0, cache)) * model.num_layers;
  options.kv_bytes = page * (cache_tokens / cache.page_tokens);
  if (training == Training::kYes) {
    OptimizerOptions optimizer;
    optimizer.schedule.learning_rate = 1e-2;
    optimizer.total_steps = 10;
    optimizer.weight_decay = 0.1;
    options.optimizer = optimizer;
  }
  options.token_text = [](std::int32_t token) {
    return std::string(1, static_cast<char>('a' + token % 26));
  };
  return options;
}

int run_to_end(RolloutEngine& engine, std::int64_t budget_tokens) {
  int steps = 0;
  while (engine.has_work()) {
    TIDEMILL_CHECK(++steps < 100000) << "the engine does not finish";
    const auto report = engine.step({budget_tokens});
    TIDEMILL_CHECK(report.ok()) << report.status().to_string();
    EXPECT_GT(
        report.value().prefill_tokens + report.value().decode_tokens + report.value().cached_tokens,
        0);
    EXPECT_LE(report.value().prefill_tokens + report.value().decode_tokens, budget_tokens);
    EXPECT_EQ(report.value().more, engine.has_work());
  }
  return steps;
}

void run_requests(RolloutEngine& engine, const std::vector<RolloutRequest>& requests,
                  ResultKeeper& results, std::int64_t budget_tokens) {
  for (const RolloutRequest& request : requests) {
    const Status status = engine.submit(request, results);
    TIDEMILL_CHECK(status.ok()) << status.to_string();
  }
  run_to_end(engine, budget_tokens);
}

void expect_same_result(const RolloutResult& actual, const RolloutResult& expected) {
  EXPECT_EQ(actual.response_ids, expected.response_ids) << actual.id.value;
  EXPECT_EQ(actual.versions, expected.versions) << actual.id.value;
  EXPECT_EQ(actual.finish_reason, expected.finish_reason) << actual.id.value;
  EXPECT_EQ(actual.error, expected.error);
  expect_same_bits(actual.behavior_logprobs, expected.behavior_logprobs, "logprob", actual.id);
  expect_same_bits(actual.prompt_logprobs, expected.prompt_logprobs, "prompt logprob", actual.id);
  expect_same_bits(actual.prompt_logits, expected.prompt_logits, "prompt logit", actual.id);
}

bool same_tensors(const TensorMap& a, const TensorMap& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.dtype != tensor.dtype ||
        found->second.shape != tensor.shape ||
        found->second.data.size_bytes() != tensor.data.size_bytes() ||
        std::memcmp(found->second.data.bytes().data(), tensor.data.bytes().data(),
                    tensor.data.size_bytes()) != 0) {
      return false;
    }
  }
  return true;
}

RolloutRequest sampling_request(std::uint64_t id, const ModelConfig& model,
                                std::int64_t prompt_tokens, std::int32_t max_new_tokens) {
  RandomStream random(77, id);
  RolloutRequest request;
  request.id = {id};
  request.prompt_ids = random_ids(model, prompt_tokens, random);
  request.seed = 5;
  request.max_new_tokens = max_new_tokens;
  return request;
}

TrainSequence to_sequence(const RolloutRequest& request, const RolloutResult& result) {
  TrainSequence sequence;
  sequence.id = request.id;
  sequence.ids = request.prompt_ids;
  sequence.ids.insert(sequence.ids.end(), result.response_ids.begin(), result.response_ids.end());
  sequence.response_mask.assign(request.prompt_ids.size(), 0);
  sequence.response_mask.resize(sequence.ids.size(), 1);
  return sequence;
}

}  // namespace tidemill::engines
