// SPDX-License-Identifier: Apache-2.0
// How much memory a runtime will take.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/block_nf4.hpp"
#include "engines/ops/cpu/factory.hpp"
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

AdapterSpec spec_of(const ModelConfig& config, const RuntimeOptions& options) {
  if (options.adapter.has_value()) {
    auto resolved = adapter_spec(options.adapter->config, options.adapter->modules, config);
    if (resolved.ok()) {  // one that is not is refused when the runtime opens
      return std::move(resolved).value();
    }
  }
  return {};
}

// What is laid out, matrix by matrix, in the order of the layout: small ones share large pages.
class LaidOut {
public:
  // A model: prepared matrices, which serve both directions, beside the table.
  void add_base(const ModelConfig& config, DType compute) {
    for (std::int64_t index = 0; index < config.num_layers; ++index) {
      for (const LinearKind kind : kLinearKinds) {
        const LinearModule module = linear_module(config, index, kind);
        weights_.push_back({module.out_features, module.in_features, compute});
        vectors_ += module.bias ? module.out_features : 0;
      }
      vectors_ += 2 * config.hidden_size + (config.qk_norm ? 2 * config.head_dim : 0);
    }
    vectors_ += config.hidden_size;
    weights_.push_back({config.vocab_size, config.hidden_size, head_type(compute)});
  }

  void add_adapter(const AdapterSpec& spec, const TensorMap& tensors) {
    for (const AdaptedModule& module : spec) {
      const bool table = module.path == kTablePath;
      add(tensors, module.a, table);
      add(tensors, module.b, false);
      add(tensors, module.weight, table);
      for (const std::string& name :
           {module.c, module.magnitude, module.input_scale, module.output_scale, module.bias}) {
        add(tensors, name, true);
      }
    }
  }

  [[nodiscard]] std::int64_t bytes() const {
    return cpu_weight_bytes(weights_) + vectors_ * kFloat;
  }

private:
  void add(const TensorMap& tensors, const std::string& name, bool as_it_is) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {  // no such piece, or refused later
      return;
    }
    const std::vector<std::int64_t>& shape = found->second.shape;
    if (as_it_is || shape.size() != 2) {
      vectors_ += found->second.num_elements();
    } else {
      weights_.push_back({shape[0], shape[1], DType::kF32});
    }
  }

  std::vector<WeightSize> weights_;
  std::int64_t vectors_ = 0;  // floats
};

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
  return Activations::bytes_per_row(config, 0,
                                    KeepOptions::beside(options.compute, options.recompute),
                                    spec_of(config, options)) +
         config.hidden_size * kFloat;
}

// What the operations hold for a row: its rounded copy, as wide as the widest layer is.
std::int64_t rounded_row_bytes(const ModelConfig& config, DType compute) {
  return cpu_rounded_row_bytes(compute, std::max({config.intermediate_size, config.hidden_size,
                                                  config.num_heads * config.head_dim}));
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
  // Trained, where they are rounded on their way to being laid out too; laid out for the trainer
  // and for generation, each beside its table and, once it has been laid out again, with a block
  // that others lie in too.
  constexpr std::int64_t kBlock = std::int64_t{16} << 20U;
  const std::int64_t rounded = options.compute == DType::kF32 ? 0 : published;
  LaidOut both;
  both.add_base(config, options.compute);
  const std::int64_t once = both.bytes();
  both.add_base(config, options.compute);
  const std::int64_t table = bytes_in(options.compute, table_elements(config));
  const std::int64_t shared = std::min(kBlock, once);
  estimate.weights_bytes += converted + base + rounded + both.bytes() + 2 * (table + shared);
  estimate.gradient_bytes =
      base + (config.tie_word_embeddings ? table_elements(config) * kFloat : 0);
  estimate.optimizer_bytes = 2 * base;
  if (load.publishes) {
    estimate.weights_bytes += 2 * published + once + table + shared;
    // The moments, and beside bf16 the weights that were not rounded.
    estimate.capture_bytes = (options.compute == DType::kBF16 ? 3 : 2) * base;
    estimate.published_bytes = published;
  }
}

// The base stays as it is.
void add_frozen_base(const ModelFiles& model, const RuntimeOptions& options, const MemoryLoad& load,
                     MemoryEstimate& estimate) {
  LaidOut laid_out;
  laid_out.add_base(model.config, options.compute);
  estimate.weights_bytes += frozen_table_bytes(model, options.compute);
  if (options.adapter.has_value()) {
    const TensorMap& tensors = options.adapter->tensors;
    const AdapterSpec spec = spec_of(model.config, options);
    const std::int64_t adapter = float_bytes(tensors);
    const bool trains = options.optimizer.has_value();
    const bool publishes = trains && load.publishes;
    // For generation; for training, as it is and as it is trained; and as it is published.
    const int copies = 1 + (trains ? 1 : 0) + (publishes ? 1 : 0);
    for (int copy = 0; copy < copies; ++copy) {
      laid_out.add_adapter(spec, tensors);
    }
    estimate.weights_bytes += heap_bytes(tensors);
    if (trains) {
      estimate.weights_bytes += (publishes ? 3 : 1) * adapter;
      estimate.gradient_bytes = adapter;
      estimate.optimizer_bytes = 2 * adapter;
      estimate.capture_bytes = publishes ? estimate.optimizer_bytes : 0;
      estimate.published_bytes = adapter;
    }
  }
  estimate.weights_bytes += laid_out.bytes();
}

// What products with rows rounded, and gradients of weights, hold meanwhile.
std::int64_t product_bytes(const ModelConfig& config, const RuntimeOptions& options,
                           std::int64_t rows) {
  const std::int64_t of_rows = rows * rounded_row_bytes(config, options.compute);
  if (!options.optimizer.has_value()) {
    return of_rows;
  }
  const std::int64_t head_rows = std::min({rows, Device::logit_rows(config), kHeadGradientRows});
  const std::int64_t of_head =
      head_rows *
      cpu_rounded_row_bytes(options.compute == DType::kBF16 ? DType::kBF16 : DType::kF32,
                            config.vocab_size);
  // Rows of a weight's input are packed for its gradient, 512 at a time.
  const std::int64_t packed =
      options.adapter.has_value()
          ? 0
          : 512 * std::max(config.hidden_size, config.intermediate_size) * kFloat;
  return std::max(of_rows, of_head) + packed;
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
    const std::int64_t trained = std::min(load.train_tokens, options.activation_bytes / per_row);
    // One sequence may fill the micro-batch.
    const std::int64_t longest =
        load.sequence_tokens > 0 ? std::min(trained, load.sequence_tokens) : trained;
    const std::int64_t group = group_rows(trained, longest, {options.window_tokens});
    estimate.activation_bytes =
        trained * per_row + group * workspace.group +
        (options.window_tokens > 0 ? std::max(group, longest) : trained) * workspace.sequence;
    rows = std::max(rows, trained);
    estimate.activation_bytes +=
        Transformer::head_bytes(config, trained, Device::logit_rows(config));
  }
  estimate.activation_bytes +=
      product_bytes(config, options, rows) +
      rows * (workspace.batch +
              (options.adapter.has_value() ? scaled_row_bytes(*options.adapter) : 0));
  // Generation draws from logits of its own.
  estimate.activation_bytes += std::min(load.rollout_tokens, Device::logit_rows(config)) *
                               (config.vocab_size + config.hidden_size) * kFloat;
  return estimate;
}

}  // namespace tidemill::engines
