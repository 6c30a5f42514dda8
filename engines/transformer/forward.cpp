// SPDX-License-Identifier: Apache-2.0
// The forward pass: embeddings, decoder layers, final norm.
#include <algorithm>
#include <iterator>
#include <span>

#include "base/check.hpp"
#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/forward_pass.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

// Looks up the embeddings of all rows, with the adapter of each run.
void embed(std::span<const std::int32_t> ids, const ModelWeights& weights, const BatchPlan& plan,
           Ops& ops, Matrix out) {
  const auto ids_of = [ids](std::int64_t first, std::int64_t count) {
    return ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  };
  const auto find_whole = [](const Adapter& adapter) {
    const EmbeddingBypass* bypass = adapter.embedding();
    return bypass != nullptr && !bypass->only_adds() ? bypass : nullptr;
  };
  split_rows(
      plan.adapter_runs, out.rows, find_whole,
      [&](std::int64_t first, std::int64_t count) {
        ops.embed(ids_of(first, count), weights.embedding(), out.slice_rows(first, count));
      },
      [&](const EmbeddingBypass& bypass, std::int64_t first, std::int64_t count) {
        bypass.forward(ids_of(first, count), out.slice_rows(first, count), ops);
      });
  for (const AdapterRun& run : plan.adapter_runs) {
    const EmbeddingBypass* bypass = run.adapter->embedding();
    if (bypass != nullptr && bypass->only_adds()) {
      bypass->add(ids_of(run.first_row, run.num_rows), out.slice_rows(run.first_row, run.num_rows),
                  ops);
    }
  }
}

// Computes the last layer after its keys and values, and the final norm, only for the rows in
// `requested`.
void finish_rows(Transformer::State& state, const ModelWeights& weights,
                 const HiddenPlan& requested, const KvCache& cache) {
  if (requested.rows.empty()) {
    return;
  }
  state.forward.residual.keep_rows(requested.rows);
  state.forward.normed.keep_rows(requested.rows);
  ForwardPass pass(state, weights, requested.plan, cache, nullptr, 0);
  pass.finish_layer(state.config.num_layers - 1);
  pass.final_norm();
}

// Returns the number of rows whose activations are kept; they are the last ones.
std::int64_t num_kept_rows(const Batch& batch, const BatchPlan& plan,
                           const ForwardOptions& options) {
  const std::int64_t training = batch.num_training_rows();
  TIDEMILL_CHECK(options.activations != nullptr || (training == 0 && !options.keeps_inference))
      << "the batch needs activations, but none were given";
  if (!options.keeps_inference) {
    return training;
  }
  TIDEMILL_CHECK(plan.adapter_runs.empty() || plan.adapter_runs[0].num_rows == batch.num_rows())
      << "rows that are kept must share one adapter";
  return batch.num_rows();
}

}  // namespace

ConstMatrix Transformer::forward(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                 const ForwardOptions& options) {
  State& s = *state_;
  s.head.holds_all_logits = false;
  const BatchPlan plan = plan_batch(batch, cache);
  const std::int64_t num_kept = num_kept_rows(batch, plan, options);
  s.forward.reserve_inner(batch.num_rows(), s.config.intermediate_size);
  const Matrix residual = s.forward.residual.reshape(batch.num_rows(), s.config.hidden_size);
  embed(batch.ids, weights, plan, s.ops, residual);
  if (options.observer) {
    options.observer(0, residual);
  }
  ForwardPass pass(s, weights, plan, cache, num_kept > 0 ? options.activations : nullptr, num_kept,
                   options.key_observer);
  const std::int64_t last = s.config.num_layers - 1;
  const bool trims = num_kept == 0 && !options.observer;
  const HiddenPlan requested = trims ? plan_hidden_rows(batch, plan) : HiddenPlan();
  const bool trimmed = trims && std::ssize(requested.rows) < batch.num_rows();
  for (std::int64_t index = 0; index < (trimmed ? last : last + 1); ++index) {
    pass.layer(index);
    if (options.observer) {
      options.observer(index + 1, residual);
    }
  }
  if (trimmed) {
    s.forward.hidden.reshape(batch.num_rows(), s.config.hidden_size);  // memory for all rows
    pass.append_keys(last);
    finish_rows(s, weights, requested, cache);
    s.forward.hidden.spread_rows(requested.rows, batch.num_rows());
  } else {
    pass.final_norm();
  }
  return s.forward.hidden.view();
}

ConstMatrix Transformer::recall(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                Activations& activations, const KeySource& keys) {
  State& s = *state_;
  s.head.holds_all_logits = false;
  const BatchPlan plan = plan_batch(batch, cache);
  const std::int64_t num_rows = batch.num_rows();
  const std::int64_t num_training_rows = batch.num_training_rows();
  const std::int64_t key_cols = s.config.num_kv_heads * s.config.head_dim;
  const RopeTables rope = s.rope.tables(plan.num_positions);
  s.forward.reserve_inner(num_rows, s.config.intermediate_size);
  for (std::int64_t index = activations.first_layer(); index < s.config.num_layers; ++index) {
    const Matrix key = s.forward.key.reshape(num_rows, key_cols);
    const Matrix value = s.forward.value.reshape(num_rows, key_cols);
    keys(index, key, value);
    s.ops.kv_append(attention_shape(s.config, index, cache.options()), plan.appends, key, value,
                    rope, cache.layer(index));
  }
  const Matrix residual = s.forward.residual.reshape(num_rows, s.config.hidden_size);
  std::ranges::fill(s.forward.residual.elements(), 0.0F);
  std::ranges::copy(activations.final_input().elements(),
                    residual.row(num_rows - num_training_rows));
  ForwardPass(s, weights, plan, cache, &activations, num_training_rows).final_norm();
  return s.forward.hidden.view();
}

}  // namespace tidemill::engines
