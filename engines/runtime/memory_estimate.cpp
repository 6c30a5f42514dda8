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
#include "engines/runtime/generated_rows.hpp"
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

  [[nodiscard]] const std::vector<WeightSize>& weights() const noexcept { return weights_; }
  [[nodiscard]] std::int64_t vector_bytes() const noexcept { return vectors_ * kFloat; }

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

// How many layouts of trained weights exist at a time: what is generated with, what is trained and,
// while versions are published, what is generated with next.
int num_layouts(const MemoryLoad& load) {
  return load.publishes ? 3 : 2;
}

// Where a trainer lays out what an update has changed.
enum class Updates : std::uint8_t { kInPlace, kAnew };

// What `once` takes beside the layouts of `again`, in which trained weights are laid out. Nobody
// generates with anything but the first of them where nothing is published.
std::int64_t layout_bytes(const LaidOut& once, const LaidOut& again, Updates updates,
                          const MemoryLoad& load) {
  const int layouts = num_layouts(load);
  const std::int64_t vectors = once.vector_bytes() + layouts * again.vector_bytes();
  const int staying = (load.publishes ? 0 : 1) + (updates == Updates::kInPlace ? 1 : 0);
  std::vector<WeightSize> stays = once.weights();
  for (int i = 0; i < staying; ++i) {
    stays.insert(stays.end(), again.weights().begin(), again.weights().end());
  }
  return cpu_weight_bytes({std::move(stays), again.weights(), layouts - staying}) + vectors;
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
      (std::min(load.kv_tokens, options.kv_bytes / position) + kPageTokens - 1) / kPageTokens *
      kPageTokens;
  return std::min(options.kv_bytes, tokens * position);
}

// All parameters are trained.
void add_trained_base(const ModelFiles& model, const RuntimeOptions& options,
                      const MemoryLoad& load, MemoryEstimate& estimate) {
  const ModelConfig& config = model.config;
  const std::int64_t base = num_parameters(config) * kFloat;
  const std::int64_t published = bytes_in(options.compute, num_parameters(config));
  const std::int64_t converted = config.dtype == options.compute ? 0 : published;
  // Trained, where they are rounded on their way to being laid out too; and each layout beside its
  // table.
  const std::int64_t rounded = options.compute == DType::kF32 ? 0 : published;
  LaidOut layout;
  layout.add_base(config, options.compute);
  const std::int64_t table = bytes_in(options.compute, table_elements(config));
  estimate.weights_bytes += converted + base + rounded +
                            layout_bytes({}, layout, Updates::kInPlace, load) +
                            num_layouts(load) * table + load.snapshots * published;
  estimate.gradient_bytes =
      base + (config.tie_word_embeddings ? table_elements(config) * kFloat : 0);
  estimate.optimizer_bytes = 2 * base;
  if (load.snapshots > 0) {
    // The moments, and beside bf16 the weights that were not rounded.
    estimate.capture_bytes = load.commits ? (options.compute == DType::kBF16 ? 3 : 2) * base : 0;
    estimate.published_bytes = published;
  }
}

// The base stays as it is.
void add_frozen_base(const ModelFiles& model, const RuntimeOptions& options, const MemoryLoad& load,
                     MemoryEstimate& estimate) {
  LaidOut base;
  base.add_base(model.config, options.compute);
  LaidOut trained;
  estimate.weights_bytes += frozen_table_bytes(model, options.compute);
  if (options.adapter.has_value()) {
    const TensorMap& tensors = options.adapter->tensors;
    const AdapterSpec spec = spec_of(model.config, options);
    const std::int64_t adapter = float_bytes(tensors);
    estimate.weights_bytes += heap_bytes(tensors);
    if (options.optimizer.has_value()) {
      trained.add_adapter(spec, tensors);
      estimate.weights_bytes += (1 + load.snapshots) * adapter;
      estimate.gradient_bytes = adapter;
      estimate.optimizer_bytes = 2 * adapter;
      estimate.capture_bytes = load.snapshots > 0 && load.commits ? estimate.optimizer_bytes : 0;
      estimate.published_bytes = adapter;
    } else {
      base.add_adapter(spec, tensors);
    }
  }
  estimate.weights_bytes += layout_bytes(base, trained, Updates::kAnew, load);
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
  // Rows of a weight's input are packed for its gradient.
  const std::int64_t packed = options.adapter.has_value()
                                  ? 0
                                  : std::min(rows, kCpuOuterRows) *
                                        std::max(config.hidden_size, config.intermediate_size) *
                                        kFloat;
  return std::max(of_rows, of_head) + packed;
}

// Gradients that shared prompts get through their keys and values: of a layer, and of all layers
// for a prompt that more sequences share than one micro-batch takes.
std::int64_t shared_prompt_bytes(const ModelConfig& config, const MemoryLoad& load) {
  const std::int64_t row = 2 * config.num_kv_heads * config.head_dim * kFloat;
  return (load.shared_tokens + config.num_layers * load.prompt_tokens) * row;
}

// What training takes for its rows, and of those the most at a time.
std::int64_t training_bytes(const ModelConfig& config, const RuntimeOptions& options,
                            const MemoryLoad& load, std::int64_t& rows) {
  const WorkspaceRowBytes workspace =
      Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward);
  const std::int64_t per_row = kept_row_bytes(config, options);
  const std::int64_t most = options.activation_bytes / per_row;
  const std::int64_t trained = std::min(load.train_tokens, most);
  // Generation keeps its rows in the same place before they are taken from there.
  const std::int64_t generated = keeps_generated_rows(options) ? load.rollout_tokens : 0;
  rows = std::max({trained, std::min({load.score_tokens, StepBudget{}.tokens, most}),
                   std::min(generated, most)});
  // One sequence may fill the micro-batch.
  const std::int64_t longest =
      load.sequence_tokens > 0 ? std::min(trained, load.sequence_tokens) : trained;
  const std::int64_t group = group_rows(trained, longest, {options.window_tokens});
  return rows * per_row + group * workspace.group +
         (options.window_tokens > 0 ? std::max(group, longest) : trained) * workspace.sequence +
         Transformer::head_bytes(config, trained, Device::logit_rows(config)) +
         shared_prompt_bytes(config, load);
}

}  // namespace

std::int64_t generated_bytes(const ModelConfig& model, const RuntimeOptions& options,
                             std::int64_t tokens) {
  return GeneratedRows::bytes_for(
      tokens, model, 0,
      Activations::bytes_per_row(model, 0, KeepOptions::beside(options.compute, options.recompute),
                                 spec_of(model, options)));
}

MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                               const MemoryLoad& load) {
  const ModelConfig& config = model.config;
  const bool trains = options.optimizer.has_value();
  MemoryEstimate estimate;
  estimate.weights_bytes = heap_bytes(model.tensors);
  estimate.given_bytes = estimate.weights_bytes +
                         (options.adapter.has_value() ? heap_bytes(options.adapter->tensors) : 0);
  estimate.kv_bytes = kv_bytes(config, options, load);
  if (trains && !options.adapter.has_value()) {
    add_trained_base(model, options, load, estimate);
  } else {
    add_frozen_base(model, options, load, estimate);
  }
  estimate.weights_bytes += options.adapter_bytes;
  std::int64_t rows = 0;
  if (trains) {
    estimate.activation_bytes = training_bytes(config, options, load, rows);
  }
  if (keeps_generated_rows(options)) {
    estimate.generated_bytes =
        std::min(options.generated_bytes, generated_bytes(config, options, load.kept_tokens));
  }
  rows = std::max(rows, load.rollout_tokens);
  const WorkspaceRowBytes workspace = Transformer::workspace_bytes_per_row(
      config, trains ? WeightUse::kForwardAndBackward : WeightUse::kForward);
  estimate.activation_bytes +=
      product_bytes(config, options, rows) +
      rows * (workspace.batch +
              (options.adapter.has_value() ? scaled_row_bytes(*options.adapter) : 0));
  // Generation draws from logits of its own.
  estimate.activation_bytes +=
      std::min({load.draws, load.rollout_tokens, Device::logit_rows(config)}) *
      (config.vocab_size + config.hidden_size) * kFloat;
  return estimate;
}

}  // namespace tidemill::engines
