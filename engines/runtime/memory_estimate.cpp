// SPDX-License-Identifier: Apache-2.0
// How much memory a runtime will take.
#include <algorithm>
#include <utility>

#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/device.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kFloat = 4;

std::int64_t bytes_of(const TensorMap& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.num_elements() * kFloat;
  }
  return bytes;
}

// What kinds that scale whole layers hold for one row beside the workspace: copies of the input and
// the output of a layer, and in training of the output's gradient.
std::int64_t scaled_row_bytes(const AdapterFiles& adapter) {
  const bool scales = adapter.config.kind == AdapterKind::kIa3 || adapter.config.use_dora;
  std::int64_t widest = 0;
  for (const AdapterModule& target : adapter.modules) {
    const bool head = target.module.path == kHeadPath;  // logits go by chunks
    widest = scales && !head
                 ? std::max(widest, 2 * (target.module.in_features + target.module.out_features))
                 : widest;
  }
  return widest * kFloat;
}

// The memory of `count` weights in rows of whole blocks.
std::int64_t bytes_in(DType dtype, std::int64_t count) {
  return count * static_cast<std::int64_t>(dtype_block_bytes(dtype)) /
         static_cast<std::int64_t>(dtype_block_elements(dtype));
}

// One laid-out model: prepared matrices, which serve both directions, and the embedding table it
// keeps.
std::int64_t laid_out_bytes(const ModelConfig& config, DType compute) {
  const std::int64_t table = config.vocab_size * config.hidden_size;
  const std::int64_t prepared = num_parameters(config) - (config.tie_word_embeddings ? 0 : table);
  return bytes_in(compute, prepared) + table * kFloat;
}

// What the training view keeps of a row, gradients going down to the first layer.
std::int64_t activation_bytes_per_row(const ModelConfig& config, const RuntimeOptions& options) {
  AdapterSpec spec;
  if (options.adapter.has_value()) {
    auto resolved = adapter_spec(options.adapter->config, options.adapter->modules, config);
    if (resolved.ok()) {  // one that is not is refused when the runtime opens
      spec = std::move(resolved).value();
    }
  }
  return Activations::bytes_per_row(
      config, 0, KeepOptions::beside(options.compute, options.recompute), spec);
}

}  // namespace

MemoryEstimate estimate_memory(const ModelConfig& config, const RuntimeOptions& options,
                               std::int64_t train_tokens) {
  const bool trains = options.optimizer.has_value();
  const bool trains_base = trains && !options.adapter.has_value();
  const WeightUse use = trains ? WeightUse::kForwardAndBackward : WeightUse::kForward;
  const std::int64_t base = num_parameters(config) * kFloat;
  const std::int64_t adapter = options.adapter.has_value() ? bytes_of(options.adapter->tensors) : 0;
  const std::int64_t laid_out = laid_out_bytes(config, options.compute);
  const std::int64_t layouts = trains ? 2 : 1;

  MemoryEstimate estimate;
  estimate.kv_bytes = options.kv_bytes;
  if (trains_base) {
    // Opened with, published; trained; laid out for the trainer, served, and about to be served.
    const std::int64_t published = bytes_in(options.compute, num_parameters(config));
    estimate.weights_bytes = 2 * published + base + 3 * laid_out;
    estimate.gradient_bytes =
        base + (config.tie_word_embeddings ? config.vocab_size * config.hidden_size * kFloat : 0);
    estimate.optimizer_bytes = 2 * base;
    // The moments, and beside bf16 the weights that were not rounded.
    estimate.capture_bytes = (options.compute == DType::kBF16 ? 3 : 2) * base;
    estimate.published_bytes = published;
  } else {
    const std::int64_t file = bytes_in(config.dtype, num_parameters(config));
    // The base once; of the adapter what there is of the base above.
    estimate.weights_bytes = file + laid_out + (trains ? 3 + 3 * layouts : 2) * adapter;
    estimate.gradient_bytes = trains ? adapter : 0;
    estimate.optimizer_bytes = trains ? 2 * adapter : 0;
    estimate.capture_bytes = estimate.optimizer_bytes;
    estimate.published_bytes = adapter;
  }
  std::int64_t rows = StepBudget{}.tokens;
  if (trains) {
    const std::int64_t per_row = activation_bytes_per_row(config, options);
    const std::int64_t longest = std::min(train_tokens, options.activation_bytes / per_row);
    estimate.activation_bytes = longest * (per_row + config.hidden_size * kFloat);
    rows = std::max(rows, longest);
  }
  if (options.adapter.has_value()) {
    estimate.activation_bytes += rows * scaled_row_bytes(*options.adapter);
  }
  estimate.activation_bytes +=
      rows * Transformer::workspace_bytes_per_row(config, use) +
      2 * Device::logit_rows(config) * (config.vocab_size + 2 * config.hidden_size) * kFloat;
  return estimate;
}

}  // namespace tidemill::engines
