// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/tinker_memory.hpp"

#include <algorithm>

#include "engines/runtime/memory_estimate.hpp"
#include "engines/runtime/new_adapter.hpp"

namespace tidemill::workflows {
namespace {

// The rows that a pass has if memory allows. More would not make it faster.
constexpr std::int64_t kPassRows = 4096;

engines::MemoryLoad load_of(std::int64_t pass_rows, std::int64_t longest) {
  engines::MemoryLoad load;
  load.train_tokens = pass_rows;
  load.sequence_tokens = longest;
  return load;
}

}  // namespace

void set_job_memory(const engines::ModelConfig& model, DType compute, const TinkerMemory& memory,
                    engines::JobOptions& job) {
  const std::int64_t longest = std::max<std::int64_t>(memory.longest_tokens, 1);
  engines::RuntimeOptions runtime;
  runtime.compute = compute;
  runtime.adapter = job.adapter;
  runtime.optimizer = job.optimizer;
  runtime.window_tokens = job.window_tokens;
  for (const engines::Recompute policy :
       {engines::Recompute::kNone, engines::Recompute::kCheap, engines::Recompute::kLayer}) {
    runtime.recompute = policy;
    engines::set_budgets(model, load_of(1, 1), runtime);
    const std::int64_t rows = memory.job_bytes / runtime.activation_bytes;
    engines::set_budgets(model, load_of(std::max(longest, std::min(rows, kPassRows)), longest),
                         runtime);
    if (rows >= longest) {
      break;
    }
  }
  job.recompute = runtime.recompute;
  job.activation_bytes = runtime.activation_bytes;
  job.limits = runtime.limits;
}

std::size_t tinker_model_bytes(const engines::AdapterConfig& config,
                               const engines::ModelConfig& model, std::int64_t activation_bytes) {
  constexpr std::size_t kCopies = 6;
  return static_cast<std::size_t>(activation_bytes) +
         kCopies * tinker_snapshot_bytes(config, model);
}

std::size_t tinker_snapshot_bytes(const engines::AdapterConfig& config,
                                  const engines::ModelConfig& model) {
  const auto counted = engines::num_low_rank_parameters(config, model, "lora_config");
  return sizeof(float) * static_cast<std::size_t>(counted.ok() ? counted.value() : 0);
}

}  // namespace tidemill::workflows
