// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/reservation.hpp"

#include <algorithm>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/backends.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/gradients.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {
namespace {

constexpr std::int64_t kFloat = 4;
// Address space between blocks: large ones start on large pages.
constexpr std::int64_t kBetweenBlocks = std::int64_t{16} << 20U;

std::int64_t elements_of(const TensorShapes& shapes) {
  std::int64_t elements = 0;
  for (const auto& [name, shape] : shapes) {
    std::int64_t size = 1;
    for (const std::int64_t extent : shape) {
      size *= extent;
    }
    elements += size;
  }
  return elements;
}

// Returns the elements of gains, biases and other vectors.
std::int64_t vector_elements(const TensorShapes& shapes) {
  std::int64_t elements = 0;
  for (const auto& [name, shape] : shapes) {
    const bool vector = shape.size() == 1 || shape[0] == 1 || shape[1] == 1;
    elements += vector ? elements_of({{name, shape}}) : 0;
  }
  return elements;
}

std::int64_t generation_bytes(const ModelConfig& config, const RuntimeOptions& options,
                              const AdapterSpec& spec, std::int64_t cache_tokens) {
  const BypassRows rows = generation_rows(config, options);
  return Transformer::reserved_bytes(config, generation_limits(config, options, cache_tokens)) +
         rows.head * (config.vocab_size + config.hidden_size + 1) * kFloat +
         scratch_bytes(spec, rows);
}

std::int64_t training_bytes(const ModelConfig& config, const RuntimeOptions& options,
                            const AdapterSpec& spec, std::int64_t cache_tokens) {
  const std::int64_t first_layer = first_trained_layer(config, spec);
  const KeepOptions keep = KeepOptions::for_compute(options.compute, options.recompute);
  const std::int64_t row_bytes = Activations::bytes_per_row(config, first_layer, keep, spec);
  const PassLimits pass = training_limits(config, options, row_bytes, cache_tokens);
  const std::int64_t parameters =
      elements_of(spec.empty() ? expected_tensors(config) : adapter_shapes(spec));
  const std::int64_t tied =
      spec.empty() && config.tie_word_embeddings ? config.vocab_size * config.hidden_size : 0;
  // Weights, two moments and gradients.
  std::int64_t bytes = (4 * parameters + tied) * kFloat;
  bytes += Activations::reserved_bytes(config, first_layer, keep, pass.rows, spec) +
           Transformer::reserved_bytes(config, pass) + pass.rows * config.hidden_size * kFloat +
           scratch_bytes(spec, {pass.layer_rows, pass.chunk_rows});
  bytes += 2 * config.num_layers * options.limits.prompt_rows * config.num_kv_heads *
           config.head_dim * kFloat;
  if (keeps_generated_rows(options)) {
    bytes += options.generated_bytes +
             Activations::reserved_bytes(config, first_layer, {keep.recompute, keep.dtype, true},
                                         options.limits.rollout_rows, spec);
  }
  return bytes;
}

}  // namespace

PassLimits generation_limits(const ModelConfig& config, const RuntimeOptions& options,
                             std::int64_t cache_tokens) {
  const std::int64_t rows = options.limits.rollout_rows;
  return {.use = WeightUse::kForward,
          .keeps_rows = keeps_generated_rows(options),
          .rows = rows,
          .layer_rows = rows,
          .positions = std::min(config.max_positions, cache_tokens)};
}

BypassRows generation_rows(const ModelConfig& config, const RuntimeOptions& options) noexcept {
  const std::int64_t most =
      std::min(RuntimeContext::logit_rows(config), options.limits.rollout_rows);
  const std::int64_t sampled = options.limits.sampled_rows;
  return {options.limits.rollout_rows, sampled > 0 ? std::min(sampled, most) : most};
}

std::int64_t max_train_rows(const RuntimeOptions& options, std::int64_t row_bytes) noexcept {
  const std::int64_t rows = options.activation_bytes / row_bytes;
  return options.limits.train_rows > 0 ? std::min(rows, options.limits.train_rows) : rows;
}

std::int64_t max_sequence_rows(const ModelConfig& config, const RuntimeOptions& options) noexcept {
  return options.limits.sequence_rows > 0
             ? std::min(config.max_positions, options.limits.sequence_rows)
             : config.max_positions;
}

// Each row of a pass has a position in the cache.
PassLimits training_limits(const ModelConfig& config, const RuntimeOptions& options,
                           std::int64_t row_bytes, std::int64_t cache_tokens) {
  PassLimits pass{.use = WeightUse::kForwardAndBackward};
  pass.rows = std::min(max_train_rows(options, row_bytes), cache_tokens);
  const std::int64_t longest = std::min(pass.rows, max_sequence_rows(config, options));
  const bool windows = options.window_tokens > 0;
  pass.layer_rows = layer_rows(pass.rows, longest, {options.window_tokens});
  pass.min_layer_rows = layer_rows(pass.rows, 0, {options.window_tokens});
  pass.positions = longest;
  // Without windows, a group may have the keys and values of all rows of the pass.
  pass.sequence_rows = windows ? std::max(pass.layer_rows, longest) : pass.rows;
  pass.prefix_rows = pass.rows;
  pass.chunk_rows = std::min(
      pass.rows,
      RuntimeContext::chunk_rows(config, options.window_tokens, backend_factory(options).traits()));
  return pass;
}

std::int64_t reserved_bytes(const ModelConfig& config, const RuntimeOptions& options,
                            const AdapterSpec& spec) {
  KvCacheOptions cache;
  cache.dtype = options.kv_dtype;
  const std::int64_t page_bytes =
      config.num_layers * backend_factory(options).kv_page_bytes(attention_shape(config, 0, cache));
  const std::int64_t num_pages = options.kv_bytes / page_bytes;
  const std::int64_t cache_tokens = num_pages * cache.page_tokens;
  // The vectors of three versions: served, trained, and to be served next.
  const std::int64_t vectors =
      3 * (vector_elements(expected_tensors(config)) + vector_elements(adapter_shapes(spec)));
  return num_pages * page_bytes + vectors * kFloat +
         generation_bytes(config, options, spec, cache_tokens) +
         (options.optimizer.has_value() ? training_bytes(config, options, spec, cache_tokens) : 0) +
         kBetweenBlocks;
}

}  // namespace tidemill::engines
