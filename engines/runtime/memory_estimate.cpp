// SPDX-License-Identifier: Apache-2.0
// Estimates how much memory a runtime will take.
#include "engines/runtime/memory_estimate.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/tensor/block_nf4.hpp"
#include "engines/peft/adapter_spec.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/runtime_context.hpp"
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

// Returns the bytes of `tensors` on the heap. The pages of a mapped file do not count, because the
// system can drop them.
std::int64_t heap_bytes(const TensorMap& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.data.backing() == Backing::kNone
                 ? static_cast<std::int64_t>(tensor.data.size_bytes())
                 : 0;
  }
  return bytes;
}

// Returns the memory of `count` weights in rows of whole blocks.
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
    if (resolved.ok()) {  // otherwise opening the runtime fails
      return std::move(resolved).value();
    }
  }
  return {};
}

// The sizes of laid-out weights, matrix by matrix in the order of the layout. Small matrices share
// large pages.
class LayoutSizes {
public:
  // Adds a model without its embedding table. Its prepared matrices serve forward and backward.
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
  void add(const TensorMap& tensors, const std::string& name, bool as_vector) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {  // the module has no such tensor, or opening fails later
      return;
    }
    const std::vector<std::int64_t>& shape = found->second.shape;
    if (as_vector || shape.size() != 2) {
      vectors_ += found->second.num_elements();
    } else {
      weights_.push_back({shape[0], shape[1], DType::kF32});
    }
  }

  std::vector<WeightSize> weights_;
  std::int64_t vectors_ = 0;  // floats
};

// Returns how many layouts of trained weights exist at one time: that of the served version, that
// of the trainer and, if versions are published, that of the version to be served next.
int num_layouts(const MemoryLoad& load) {
  return load.publishes ? 3 : 2;
}

// The memory in which a trainer lays out updated weights.
enum class Updates : std::uint8_t { kInPlace, kNewMemory };

// Returns the memory of the layout of `frozen` weights and of all layouts of `trained` weights. The
// first layout of trained weights is permanent if no version is published, because generation keeps
// using it. The trainer's layout is permanent if it is updated in place.
std::int64_t layout_bytes(const LayoutSizes& frozen, const LayoutSizes& trained, Updates updates,
                          const MemoryLoad& load, const BackendFactory& backend) {
  const int layouts = num_layouts(load);
  const std::int64_t vectors = frozen.vector_bytes() + layouts * trained.vector_bytes();
  const int num_permanent = (load.publishes ? 0 : 1) + (updates == Updates::kInPlace ? 1 : 0);
  std::vector<WeightSize> permanent = frozen.weights();
  for (int i = 0; i < num_permanent; ++i) {
    permanent.insert(permanent.end(), trained.weights().begin(), trained.weights().end());
  }
  return backend.weight_bytes({std::move(permanent), trained.weights(), layouts - num_permanent}) +
         vectors;
}

// Returns the memory of the embedding table of a frozen base: in int8 blocks with NF4, unless it is
// the head too, and otherwise as in the file.
std::int64_t frozen_table_bytes(const ModelFiles& model, DType compute) {
  if (ties_table(model.config, compute)) {
    return 0;
  }
  if (compute == DType::kNf4) {
    return bytes_in(DType::kBlockI8, table_elements(model.config));
  }
  const bool mapped = heap_bytes(model.tensors) == 0;  // otherwise counted with the file
  return mapped ? bytes_in(model.config.dtype, table_elements(model.config)) : 0;
}

// Returns the memory per row that adapters which scale whole layers need in addition to the
// workspace: copies of the input and the output of a layer, and in training of the output's
// gradient.
std::int64_t scaled_row_bytes(const AdapterFiles& adapter) {
  const bool scales = adapter.config.kind == AdapterKind::kIa3 || adapter.config.use_dora;
  std::int64_t widest = 0;
  for (const AdapterModule& target : adapter.modules) {
    const bool head = target.module.path == kHeadPath;  // logits are computed in chunks
    widest = scales && !head
                 ? std::max(widest, 2 * (target.module.in_features + target.module.out_features))
                 : widest;
  }
  return widest * kFloat;
}

// Returns what the training job keeps of a row if gradients reach down to the first layer, plus
// the gradient of its hidden state.
std::int64_t kept_row_bytes(const ModelConfig& config, const RuntimeOptions& options) {
  return Activations::bytes_per_row(config, 0,
                                    KeepOptions::for_compute(options.compute, options.recompute),
                                    spec_of(config, options)) +
         config.hidden_size * kFloat;
}

// Returns what the operations hold for a row: a rounded copy with the width of the widest layer.
std::int64_t rounded_row_bytes(const ModelConfig& config, DType compute,
                               const BackendFactory& backend) {
  return backend.rounded_row_bytes(compute, std::max({config.intermediate_size, config.hidden_size,
                                                      config.num_heads * config.head_dim}));
}

// Size of one page of keys and values in all layers.
std::int64_t kv_page_bytes(const ModelConfig& config, const RuntimeOptions& options) {
  KvCacheOptions cache;
  cache.dtype = options.kv_dtype;
  return config.num_layers *
         backend_factory(options).kv_page_bytes(attention_shape(config, 0, cache));
}

// Returns the memory of the pages in use. Reserved pages that are never used take no memory.
std::int64_t kv_bytes(const ModelConfig& config, const RuntimeOptions& options,
                      const MemoryLoad& load) {
  return load.kv_tokens < std::numeric_limits<std::int64_t>::max()
             ? std::min(options.kv_bytes, kv_bytes_for(config, options, load.kv_tokens))
             : options.kv_bytes;
}

// The rows of one training pass, at most.
std::int64_t pass_rows(const MemoryLoad& load) {
  return std::max(load.train_tokens, std::min(load.score_tokens, StepBudget{}.tokens));
}

// Adds the weights, gradients and optimizer state of a model whose parameters are all trained.
void add_trained_base(const ModelFiles& model, const RuntimeOptions& options,
                      const MemoryLoad& load, MemoryEstimate& estimate) {
  const ModelConfig& config = model.config;
  const std::int64_t base = num_parameters(config) * kFloat;
  const std::int64_t published = bytes_in(options.compute, num_parameters(config));
  const std::int64_t converted = config.dtype == options.compute ? 0 : published;
  // The trained weights, plus a rounded copy from which they are laid out. Every layout has its own
  // table.
  const std::int64_t rounded = options.compute == DType::kF32 ? 0 : published;
  LayoutSizes layout;
  layout.add_base(config, options.compute);
  const std::int64_t table = bytes_in(options.compute, table_elements(config));
  estimate.weights_bytes +=
      converted + base + rounded +
      layout_bytes({}, layout, Updates::kInPlace, load, backend_factory(options)) +
      num_layouts(load) * table + load.snapshots * published;
  estimate.gradient_bytes =
      base + (config.tie_word_embeddings ? table_elements(config) * kFloat : 0);
  estimate.optimizer_bytes = 2 * base;
  if (load.snapshots > 0) {
    // The moments, and with bf16 also the unrounded weights.
    estimate.capture_bytes = load.commits ? (options.compute == DType::kBF16 ? 3 : 2) * base : 0;
    estimate.published_bytes = published;
  }
}

// Adds the weights of a frozen base, unless it is shared, and all memory of an adapter over it.
void add_frozen_base(const ModelFiles& model, const RuntimeOptions& options, const MemoryLoad& load,
                     MemoryEstimate& estimate) {
  LayoutSizes base;
  LayoutSizes trained;
  if (!load.shares_base) {
    base.add_base(model.config, options.compute);
    estimate.weights_bytes += frozen_table_bytes(model, options.compute);
  }
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
  estimate.weights_bytes +=
      layout_bytes(base, trained, Updates::kNewMemory, load, backend_factory(options));
}

// Returns the temporary memory of products with rounded rows and of gradients of weights.
std::int64_t product_bytes(const ModelConfig& config, const RuntimeOptions& options,
                           std::int64_t rows) {
  const BackendFactory& backend = backend_factory(options);
  const std::int64_t row_bytes = rows * rounded_row_bytes(config, options.compute, backend);
  if (!options.optimizer.has_value()) {
    return row_bytes;
  }
  const std::int64_t head_rows =
      std::min({rows, RuntimeContext::logit_rows(config), kHeadGradientRows});
  const std::int64_t head_bytes =
      head_rows *
      backend.rounded_row_bytes(options.compute == DType::kBF16 ? DType::kBF16 : DType::kF32,
                                config.vocab_size);
  // The gradient of a weight needs packed rows of its input.
  const std::int64_t packed =
      options.adapter.has_value()
          ? 0
          : backend.weight_gradient_bytes(rows,
                                          std::max(config.hidden_size, config.intermediate_size));
  return std::max(row_bytes, head_bytes) + packed;
}

// Returns the memory of the gradients of the keys and values of shared prompts: of one layer, and
// of all layers for a prompt that sequences of several micro-batches share.
std::int64_t shared_prompt_bytes(const ModelConfig& config, const MemoryLoad& load) {
  const std::int64_t row = 2 * config.num_kv_heads * config.head_dim * kFloat;
  return (load.shared_tokens + config.num_layers * load.prompt_tokens) * row;
}

// The rows of training: of one pass, of its longest sequence, of those that go through a layer
// together, and of those that go through the head together.
struct TrainingRows {
  std::int64_t pass = 0;
  std::int64_t longest = 0;
  std::int64_t group = 0;
  std::int64_t chunk = 0;
};

TrainingRows training_rows(const ModelConfig& config, const RuntimeOptions& options,
                           const MemoryLoad& load) {
  TrainingRows rows;
  rows.pass = std::min(pass_rows(load), options.activation_bytes / kept_row_bytes(config, options));
  // One sequence may fill the micro-batch.
  rows.longest = load.sequence_tokens > 0 ? std::min(rows.pass, load.sequence_tokens) : rows.pass;
  rows.group = layer_rows(rows.pass, rows.longest, {options.window_tokens});
  rows.chunk = std::min(rows.pass, RuntimeContext::chunk_rows(config, options.window_tokens,
                                                              backend_factory(options).traits()));
  return rows;
}

// Returns the memory that training takes for its rows.
std::int64_t training_bytes(const ModelConfig& config, const RuntimeOptions& options,
                            const MemoryLoad& load, const TrainingRows& rows) {
  const WorkspaceRowBytes workspace =
      Transformer::workspace_bytes_per_row(config, WeightUse::kForwardAndBackward);
  const PassLimits limits{.rows = rows.pass,
                          .layer_rows = rows.group,
                          .chunk_rows = rows.chunk,
                          .min_layer_rows = layer_rows(rows.pass, 0, {options.window_tokens})};
  std::int64_t bytes = 0;
  for (const auto& [pass, group] : Transformer::largest_passes(config, limits)) {
    // Without windows, a group may have the keys and values of all rows of the pass.
    const std::int64_t sequence =
        options.window_tokens > 0 ? std::max(group, std::min(rows.longest, pass)) : pass;
    bytes = std::max(bytes, pass * (kept_row_bytes(config, options) + workspace.batch) +
                                group * workspace.group + sequence * workspace.sequence +
                                Transformer::head_bytes(config, pass, group, rows.chunk));
  }
  return bytes + shared_prompt_bytes(config, load);
}

// Returns the memory that generation takes for the rows of an iteration.
std::int64_t generation_bytes(const ModelConfig& config, const RuntimeOptions& options,
                              const MemoryLoad& load) {
  std::int64_t per_row = Transformer::workspace_bytes_per_row(config, WeightUse::kForward).batch;
  if (keeps_generated_rows(options)) {
    // The activations of one layer, before they are copied to where they are kept, and the sums of
    // norms and attention that only training reads.
    per_row +=
        Activations::bytes_per_row(config, config.num_layers - 1,
                                   KeepOptions::for_compute(options.compute, options.recompute),
                                   spec_of(config, options)) +
        2 * config.num_heads * kFloat;
  }
  // It samples from logits of its own.
  const std::int64_t sampled =
      std::min({load.sampled_tokens, load.rollout_tokens, RuntimeContext::logit_rows(config)});
  return load.rollout_tokens * per_row +
         sampled * (config.vocab_size + config.hidden_size) * kFloat;
}

}  // namespace

void set_budgets(const ModelConfig& model, const MemoryLoad& load, RuntimeOptions& options) {
  if (load.kv_tokens < std::numeric_limits<std::int64_t>::max()) {
    options.kv_bytes = kv_bytes_for(model, options, load.kv_tokens);
  }
  const std::int64_t rows = std::max<std::int64_t>(pass_rows(load), 1);
  options.activation_bytes = rows * kept_row_bytes(model, options);
  options.limits = {.rollout_rows = std::max<std::int64_t>(load.rollout_tokens, 1),
                    .sampled_rows = std::clamp<std::int64_t>(load.sampled_tokens, 1,
                                                             RuntimeContext::logit_rows(model)),
                    .train_rows = rows,
                    .sequence_rows = load.sequence_tokens,
                    .prompt_rows = load.prompt_tokens};
}

std::int64_t kv_bytes_for(const ModelConfig& model, const RuntimeOptions& options,
                          std::int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens * kv_page_bytes(model, options);
}

std::int64_t generated_bytes(const ModelConfig& model, const RuntimeOptions& options,
                             std::int64_t tokens) {
  return GeneratedRows::bytes_for(
      tokens, model, 0,
      Activations::bytes_per_row(model, 0,
                                 KeepOptions::for_compute(options.compute, options.recompute),
                                 spec_of(model, options)));
}

MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                               const MemoryLoad& load) {
  const ModelConfig& config = model.config;
  const std::int64_t rollout_tokens = load.shares_base ? 0 : load.rollout_tokens;
  const bool trains = options.optimizer.has_value();
  MemoryEstimate estimate;
  estimate.weights_bytes = heap_bytes(model.tensors);
  estimate.preloaded_bytes =
      estimate.weights_bytes +
      (options.adapter.has_value() ? heap_bytes(options.adapter->tensors) : 0);
  estimate.kv_bytes = load.shares_base ? 0 : kv_bytes(config, options, load);
  if (trains && !options.adapter.has_value()) {
    add_trained_base(model, options, load, estimate);
  } else {
    add_frozen_base(model, options, load, estimate);
  }
  estimate.weights_bytes += load.shares_base ? 0 : options.adapter_bytes;
  const TrainingRows rows = trains ? training_rows(config, options, load) : TrainingRows();
  if (trains) {
    estimate.activation_bytes = training_bytes(config, options, load, rows);
  }
  if (keeps_generated_rows(options) && !load.shares_base) {
    estimate.generated_bytes =
        std::min(options.generated_bytes, generated_bytes(config, options, load.kept_tokens));
  }
  if (!load.shares_base) {
    estimate.activation_bytes += generation_bytes(config, options, load);
  }
  // The rows of one operation.
  const std::int64_t largest = std::max({rows.group, rows.chunk, rollout_tokens});
  estimate.activation_bytes +=
      product_bytes(config, options, largest) +
      (options.adapter.has_value() ? largest * scaled_row_bytes(*options.adapter) : 0);
  return estimate;
}

}  // namespace tidemill::engines
