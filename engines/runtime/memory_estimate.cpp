// SPDX-License-Identifier: Apache-2.0
// How much memory a runtime will take.
#include <algorithm>
#include <utility>

#include "base/block_nf4.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/device.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kFloat = 4;

std::int64_t float_bytes(const TensorMap& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.num_elements() * kFloat;
  }
  return bytes;
}

// What of `tensors` is memory of the process; a mapped file's pages come and go.
std::int64_t heap_bytes(const TensorMap& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.data.backing() == Backing::kNone
                 ? static_cast<std::int64_t>(tensor.data.size_bytes())
                 : 0;
  }
  return bytes;
}

// The memory of `count` weights in rows of whole blocks.
std::int64_t bytes_in(DType dtype, std::int64_t count) {
  if (dtype == DType::kNf4) {
    const std::int64_t blocks = count / static_cast<std::int64_t>(kNf4BlockElements);
    return blocks * static_cast<std::int64_t>(dtype_block_bytes(dtype)) +
           static_cast<std::int64_t>(nf4_shared_bytes(static_cast<std::uint64_t>(blocks)));
  }
  return count * static_cast<std::int64_t>(dtype_block_bytes(dtype)) /
         static_cast<std::int64_t>(dtype_block_elements(dtype));
}

std::int64_t table_elements(const ModelConfig& config) {
  return config.vocab_size * config.hidden_size;
}

// One laid-out model: prepared matrices, which serve both directions, beside the table.
std::int64_t laid_out_bytes(const ModelConfig& config, DType compute) {
  const std::int64_t table = table_elements(config);
  const std::int64_t layers = num_parameters(config) - (config.tie_word_embeddings ? 1 : 2) * table;
  return bytes_in(compute, layers) + bytes_in(head_type(compute), table);
}

// The embedding table beside a frozen base: the file's, or, beside NF4, in blocks.
std::int64_t frozen_table_bytes(const ModelFiles& model, DType compute) {
  if (compute == DType::kNf4) {
    return bytes_in(DType::kBlockI8, table_elements(model.config));
  }
  const bool mapped = heap_bytes(model.tensors) == 0;  // else counted with the file
  return mapped ? bytes_in(model.config.dtype, table_elements(model.config)) : 0;
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

// What the training view keeps of a row, gradients going down to the first layer, and the gradient
// of its hidden state.
std::int64_t kept_row_bytes(const ModelConfig& config, const RuntimeOptions& options) {
  AdapterSpec spec;
  if (options.adapter.has_value()) {
    auto resolved = adapter_spec(options.adapter->config, options.adapter->modules, config);
    if (resolved.ok()) {  // one that is not is refused when the runtime opens
      spec = std::move(resolved).value();
    }
  }
  return Activations::bytes_per_row(config, 0,
                                    KeepOptions::beside(options.compute, options.recompute), spec) +
         config.hidden_size * kFloat;
}

// What the operations hold for a row: its rounded copy, as wide as the widest layer is.
std::int64_t rounded_row_bytes(const ModelConfig& config, DType compute) {
  return compute == DType::kF32 ? 0 : 2 * std::max(config.intermediate_size, config.hidden_size);
}

// Pages hold whole positions; what is reserved and never used is no memory.
std::int64_t kv_bytes(const ModelConfig& config, const RuntimeOptions& options,
                      const MemoryLoad& load) {
  const std::int64_t position = 2 * config.num_layers * config.num_kv_heads * config.head_dim *
                                static_cast<std::int64_t>(dtype_bytes(options.kv_dtype));
  const std::int64_t tokens =
      (std::min(load.kv_tokens, options.kv_bytes / position) + 15) / 16 * 16;
  return std::min(options.kv_bytes, tokens * position);
}

// All parameters are trained.
void add_trained_base(const ModelFiles& model, const RuntimeOptions& options,
                      const MemoryLoad& load, MemoryEstimate& estimate) {
  const ModelConfig& config = model.config;
  const std::int64_t base = num_parameters(config) * kFloat;
  const std::int64_t published = bytes_in(options.compute, num_parameters(config));
  const std::int64_t converted = config.dtype == options.compute ? 0 : published;
  // Trained, on their way to being laid out; laid out for the trainer and for generation, each with
  // a block of memory that others hold too.
  constexpr std::int64_t kBlock = std::int64_t{16} << 20U;
  const std::int64_t laid_out = laid_out_bytes(config, options.compute) +
                                bytes_in(options.compute, table_elements(config)) +
                                std::min(kBlock, laid_out_bytes(config, options.compute));
  estimate.weights_bytes += converted + base + published + 2 * laid_out;
  estimate.gradient_bytes =
      base + (config.tie_word_embeddings ? table_elements(config) * kFloat : 0);
  estimate.optimizer_bytes = 2 * base;
  if (load.publishes) {
    estimate.weights_bytes += 2 * published + laid_out;
    // The moments, and beside bf16 the weights that were not rounded.
    estimate.capture_bytes = (options.compute == DType::kBF16 ? 3 : 2) * base;
    estimate.published_bytes = published;
  }
}

// The base stays as it is.
void add_frozen_base(const ModelFiles& model, const RuntimeOptions& options, const MemoryLoad& load,
                     MemoryEstimate& estimate) {
  estimate.weights_bytes +=
      laid_out_bytes(model.config, options.compute) + frozen_table_bytes(model, options.compute);
  if (!options.adapter.has_value()) {
    return;
  }
  const std::int64_t adapter = float_bytes(options.adapter->tensors);
  estimate.weights_bytes += heap_bytes(options.adapter->tensors) + adapter;  // and laid out
  if (options.optimizer.has_value()) {
    // Trained, on their way to being laid out, and laid out for generation too.
    estimate.weights_bytes += 3 * adapter + (load.publishes ? 3 * adapter : 0);
    estimate.gradient_bytes = adapter;
    estimate.optimizer_bytes = 2 * adapter;
    estimate.capture_bytes = load.publishes ? estimate.optimizer_bytes : 0;
    estimate.published_bytes = adapter;
  }
}

}  // namespace

MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                               const MemoryLoad& load) {
  const ModelConfig& config = model.config;
  const bool trains = options.optimizer.has_value();
  MemoryEstimate estimate;
  estimate.weights_bytes = heap_bytes(model.tensors);
  estimate.kv_bytes = kv_bytes(config, options, load);
  if (trains && !options.adapter.has_value()) {
    add_trained_base(model, options, load, estimate);
  } else {
    add_frozen_base(model, options, load, estimate);
  }
  estimate.weights_bytes += options.adapter_bytes;
  const WorkspaceRowBytes workspace = Transformer::workspace_bytes_per_row(
      config, trains ? WeightUse::kForwardAndBackward : WeightUse::kForward);
  std::int64_t rows = load.rollout_tokens;
  if (trains) {
    const std::int64_t per_row = kept_row_bytes(config, options);
    const std::int64_t longest = std::min(load.train_tokens, options.activation_bytes / per_row);
    const std::int64_t window = options.window_tokens > 0 ? options.window_tokens : longest;
    // One sequence may fill the micro-batch.
    estimate.activation_bytes =
        longest * (per_row + workspace.sequence) + std::min(longest, window) * workspace.group;
    rows = std::max(rows, longest);
  }
  estimate.activation_bytes +=
      rows * (workspace.batch + rounded_row_bytes(config, options.compute) +
              (options.adapter.has_value() ? scaled_row_bytes(*options.adapter) : 0));
  const std::int64_t heads = (trains ? 1 : 0) + (load.rollout_tokens > 0 ? 1 : 0);
  estimate.activation_bytes += heads * std::min(rows, Device::logit_rows(config)) *
                               (config.vocab_size + 2 * config.hidden_size) * kFloat;
  return estimate;
}

}  // namespace tidemill::engines
