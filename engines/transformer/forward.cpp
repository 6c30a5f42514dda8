// SPDX-License-Identifier: Apache-2.0
// The forward pass: embeddings, decoder layers, final norm.
#include <iterator>
#include <span>

#include "base/check.hpp"
#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/forward_pass.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

// Looks up the embeddings of all rows, with the adapter of each run.
void embed(IndexList ids, const ModelWeights& weights, const BatchPlan& plan, Ops& ops,
           Matrix out) {
  const auto find_whole = [](const Adapter& adapter) {
    const EmbeddingBypass* bypass = adapter.embedding();
    return bypass != nullptr && !bypass->only_adds() ? bypass : nullptr;
  };
  split_rows(
      plan.adapter_runs, out.rows, find_whole,
      [&](std::int64_t first, std::int64_t count) {
        ops.embed(ids.slice(first, count), weights.embedding(), out.slice_rows(first, count));
      },
      [&](const EmbeddingBypass& bypass, std::int64_t first, std::int64_t count) {
        bypass.forward(ids.slice(first, count), out.slice_rows(first, count), ops);
      });
  for (const AdapterRun& run : plan.adapter_runs) {
    const EmbeddingBypass* bypass = run.adapter->embedding();
    if (bypass != nullptr && bypass->only_adds()) {
      bypass->add(ids.slice(run.first_row, run.num_rows),
                  out.slice_rows(run.first_row, run.num_rows), ops);
    }
  }
}

// Removes all rows of `matrix` except `rows`. Overwrites the rows of `scratch`, which has the same
// width and enough memory.
void keep_rows(DeviceMatrix& matrix, IndexList rows, DeviceMatrix& scratch, Ops& ops) {
  const Matrix kept = scratch.reshape(rows.size, matrix.cols());
  ops.copy_rows(matrix.view(), rows, kept, {});
  ops.copy(kept, matrix.resize_rows(rows.size));
}

// Computes the last layer after its keys and values, and the final norm, only for the requested
// `rows`, whose plan is `plan`. The hidden states of the other rows are undefined.
void finish_rows(Transformer::State& state, const ModelWeights& weights, const BatchPlan& plan,
                 const PlanLists& lists, IndexList rows, const KvCache& cache) {
  ForwardBuffers& buffers = state.forward;
  const std::int64_t num_rows = buffers.residual.rows();
  buffers.hidden.reshape(num_rows, state.config.hidden_size);  // memory for all rows
  if (!rows.empty()) {
    keep_rows(buffers.residual, rows, buffers.hidden, state.ops);
    keep_rows(buffers.normed, rows, buffers.hidden, state.ops);
    ForwardPass pass(state, weights, plan, lists, cache, nullptr, 0);
    pass.finish_layer(state.config.num_layers - 1);
    pass.final_norm();
    state.ops.copy(buffers.hidden.view(), buffers.residual.view());
  }
  const Matrix hidden = buffers.hidden.resize_rows(num_rows);
  if (!rows.empty()) {
    state.ops.copy_rows(buffers.residual.view(), {}, hidden, rows);
  }
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
  const bool trims = num_kept == 0 && !options.observer;
  const HiddenPlan requested = trims ? plan_hidden_rows(batch, plan) : HiddenPlan();
  const bool trimmed = trims && std::ssize(requested.rows) < batch.num_rows();

  PassContents contents;
  const PlanRanges ranges = add_plan(plan, batch.ids, contents);
  const PlanRanges requested_ranges =
      trimmed ? add_plan(requested.plan, {}, contents) : PlanRanges();
  const PassRange requested_rows = trimmed ? contents.add_indices(requested.rows) : PassRange();
  const PreparedPass& prepared = s.prepare(std::move(contents), s.forward_pass);
  const PlanLists lists = lists_at(ranges, prepared);

  s.forward.reserve_inner(batch.num_rows(), s.config.intermediate_size);
  const Matrix residual = s.forward.residual.reshape(batch.num_rows(), s.config.hidden_size);
  embed(lists.ids, weights, plan, s.ops, residual);
  if (options.observer) {
    options.observer(0, residual);
  }
  ForwardPass pass(s, weights, plan, lists, cache, num_kept > 0 ? options.activations : nullptr,
                   num_kept, options.key_observer);
  const std::int64_t last = s.config.num_layers - 1;
  for (std::int64_t index = 0; index < (trimmed ? last : last + 1); ++index) {
    pass.layer(index);
    if (options.observer) {
      options.observer(index + 1, residual);
    }
  }
  if (trimmed) {
    pass.append_keys(last);
    finish_rows(s, weights, requested.plan, lists_at(requested_ranges, prepared),
                prepared.indices(requested_rows), cache);
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
  PassContents contents;
  const PlanRanges ranges = add_plan(plan, batch.ids, contents);
  const PlanLists lists = lists_at(ranges, s.prepare(std::move(contents), s.forward_pass));
  const RopeTables rope = s.rope.tables(plan.num_positions);
  s.forward.reserve_inner(num_rows, s.config.intermediate_size);
  for (std::int64_t index = activations.first_layer(); index < s.config.num_layers; ++index) {
    const Matrix key = s.forward.key.reshape(num_rows, key_cols);
    const Matrix value = s.forward.value.reshape(num_rows, key_cols);
    keys(index, key, value);
    s.ops.kv_append(attention_shape(s.config, index, cache.options()), lists.appends, key, value,
                    rope, cache.layer(index));
  }
  const Matrix residual = s.forward.residual.reshape(num_rows, s.config.hidden_size);
  s.ops.fill(0.0F, residual);
  s.ops.copy(activations.final_input().view(),
             residual.slice_rows(num_rows - num_training_rows, num_training_rows));
  ForwardPass(s, weights, plan, lists, cache, &activations, num_training_rows).final_norm();
  return s.forward.hidden.view();
}

}  // namespace tidemill::engines
