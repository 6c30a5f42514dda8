// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/forward_pass.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace tidemill::engines {

ForwardPass::ForwardPass(Transformer::State& state, const ModelWeights& weights,
                         const BatchPlan& plan, const PlanLists& lists, const KvCache& cache,
                         Activations* activations, const PassRows& rows, KeyObserver key_observer)
    : config_(state.config),
      epsilon_(static_cast<float>(state.config.rms_norm_eps)),
      ops_(state.ops),
      b_(state.forward),
      weights_(weights),
      plan_(plan),
      lists_(lists),
      rope_(state.rope.tables(plan.num_positions)),
      cache_(cache),
      activations_(activations),
      rows_(rows),
      residual_(state.forward.residual.view().slice_rows(rows.first, rows.count)),
      key_observer_(std::move(key_observer)) {}

bool ForwardPass::keeps(std::int64_t index) const {
  return activations_ != nullptr && index >= activations_->first_layer();
}

void ForwardPass::layer(std::int64_t index) {
  layer_part(index, LayerPart::kProjections);
  layer_part(index, LayerPart::kAttention);
  gate_and_up(index, kept_mlp(index));
  down(index);
}

void ForwardPass::layer_part(std::int64_t index, LayerPart part) {
  const Recompute recompute = keeps(index) ? activations_->recompute() : Recompute::kNone;
  switch (part) {
    case LayerPart::kProjections:
      if (recompute == Recompute::kLayer) {
        keep(residual_, activations_->start(index));
      }
      keys_and_values(index, kept_attention(index), Append::kYes, Query::kWithKeys);
      break;
    case LayerPart::kAttention:
      attend(index, kept_attention(index), Query::kWithKeys);
      if (recompute == Recompute::kCheap) {
        keep(residual_, activations_->start(index));
      }
      break;
    case LayerPart::kGate: gate(index, kept_mlp(index)); break;
    case LayerPart::kUp: up(index, kept_mlp(index)); break;
    case LayerPart::kDown: down(index); break;
  }
}

void ForwardPass::recompute(std::int64_t index, LayerPart part) {
  if (part == first_recomputed(activations_->recompute())) {
    const ConstMatrix start =
        activations_->start(index).view().slice_rows(rows_.first_kept, rows_.num_kept);
    residual_ = b_.residual.reshape(start.rows, start.cols);
    ops_.copy(start, residual_);
    b_.normed.reshape(start.rows, start.cols);
  }
  switch (part) {
    case LayerPart::kProjections:
      keys_and_values(index, &activations_->attention(index), Append::kNo, Query::kApart);
      break;
    case LayerPart::kAttention:
      attend(index, &activations_->attention(index), Query::kApart);
      break;
    case LayerPart::kGate: gate(index, &activations_->mlp(index)); break;
    case LayerPart::kUp: up(index, &activations_->mlp(index)); break;
    case LayerPart::kDown: break;
  }
}

// Return where a forward pass keeps activations of a layer that need not be recomputed, or null.
AttentionActivations* ForwardPass::kept_attention(std::int64_t index) const {
  return keeps(index) && activations_->recompute() != Recompute::kLayer
             ? &activations_->attention(index)
             : nullptr;
}
MlpActivations* ForwardPass::kept_mlp(std::int64_t index) const {
  return keeps(index) && activations_->recompute() == Recompute::kNone ? &activations_->mlp(index)
                                                                       : nullptr;
}

void ForwardPass::final_norm() {
  if (activations_ != nullptr) {
    keep(residual_, activations_->final_input());
  }
  const Matrix hidden = b_.hidden.view().slice_rows(rows_.first, rows_.count);
  const auto own = [](const Adapter& adapter) {
    return adapter.final_gain().empty() ? nullptr : &adapter.final_gain();
  };
  norm(residual_, weights_.final_gain(), own, hidden,
       activations_ != nullptr ? &activations_->final_rstd() : nullptr);
}

void ForwardPass::append_keys(std::int64_t index) {
  keys_and_values(index, nullptr, Append::kYes, Query::kApart);
}

void ForwardPass::finish_layer(std::int64_t index) {
  attend(index, nullptr, Query::kApart);
  gate_and_up(index, nullptr);
  down(index);
}

// Computes the input norm. Computes keys and values only if they are needed.
void ForwardPass::keys_and_values(std::int64_t index, AttentionActivations* kept, Append append,
                                  Query query) {
  const std::int64_t key_cols = config_.num_kv_heads * config_.head_dim;
  const Matrix normed = b_.normed.reshape(rows_.count, config_.hidden_size);
  const Matrix key = b_.key.reshape(rows_.count, key_cols);
  const Matrix value = b_.value.reshape(rows_.count, key_cols);
  if (kept != nullptr) {
    keep(residual_, kept->input);
  }
  layer_norm(index, NormKind::kInput, residual_, normed,
             kept != nullptr ? &kept->input_rstd : nullptr);
  if (query == Query::kWithKeys) {
    linears(
        index, normed,
        {{LinearKind::kQuery, b_.query.reshape(rows_.count, config_.num_heads * config_.head_dim)},
         {LinearKind::kKey, key},
         {LinearKind::kValue, value}});
  } else if (append == Append::kYes) {
    linears(index, normed, {{LinearKind::kKey, key}, {LinearKind::kValue, value}});
  } else if (config_.qk_norm) {
    linear(index, LinearKind::kKey, normed, Store::kOverwrite, key);
  }
  if (config_.qk_norm) {
    if (kept != nullptr) {
      keep(key, kept->key);
    }
    head_norm(index, NormKind::kKey, b_.key, kept != nullptr ? &kept->key_rstd : nullptr);
  }
  if (append == Append::kYes) {
    ops_.kv_append(attention_shape(config_, index, cache_.options()), lists_.appends, key, value,
                   rope_, cache_.layer(index));
    if (key_observer_) {
      key_observer_(index, key, value);
    }
  }
}

// Computes queries of the normalized input and attention, and adds its output to the residual
// stream.
void ForwardPass::attend(std::int64_t index, AttentionActivations* kept, Query query_products) {
  const AttentionShape shape = attention_shape(config_, index, cache_.options());
  const std::int64_t query_cols = config_.num_heads * config_.head_dim;
  const Matrix query = b_.query.reshape(rows_.count, query_cols);
  const Matrix attention = b_.attention.reshape(rows_.count, query_cols);
  if (query_products == Query::kApart) {
    linear(index, LinearKind::kQuery, b_.normed.view(), Store::kOverwrite, query);
  }
  if (config_.qk_norm) {
    if (kept != nullptr) {
      keep(query, kept->query);
    }
    head_norm(index, NormKind::kQuery, b_.query, kept != nullptr ? &kept->query_rstd : nullptr);
  }
  ops_.rope(query, config_.head_dim, lists_.positions, rope_, RopeDirection::kForward);
  if (kept != nullptr && !config_.qk_norm) {
    keep(query, kept->query);
  }
  const Matrix lse = kept != nullptr ? b_.lse.reshape(rows_.count, config_.num_heads) : Matrix();
  ops_.attention(shape, lists_.segments, query, cache_.layer(index), attention, lse);
  if (kept != nullptr) {
    keep(attention, kept->attention);
    keep(lse, kept->lse);
  }
  linear(index, LinearKind::kOutput, attention, Store::kAdd, residual_);
}

// Normalizes the residual stream for the MLP, and chooses where gate and up go.
void ForwardPass::mlp_norm(std::int64_t index, MlpActivations* kept) {
  gate_ = result_target(b_.gate, kept != nullptr ? &kept->gate : nullptr);
  up_ = result_target(b_.up, kept != nullptr ? &kept->up : nullptr);
  if (kept != nullptr) {
    keep(residual_, kept->residual);
  }
  layer_norm(index, NormKind::kAttention, residual_, b_.normed.view(),
             kept != nullptr ? &kept->residual_rstd : nullptr);
}

void ForwardPass::gate_and_up(std::int64_t index, MlpActivations* kept) {
  mlp_norm(index, kept);
  linears(index, b_.normed.view(), {{LinearKind::kGate, gate_}, {LinearKind::kUp, up_}});
  if (kept != nullptr) {
    keep(gate_, kept->gate);
    keep(up_, kept->up);
  }
}

void ForwardPass::gate(std::int64_t index, MlpActivations* kept) {
  mlp_norm(index, kept);
  linear(index, LinearKind::kGate, b_.normed.view(), Store::kOverwrite, gate_);
  if (kept != nullptr) {
    keep(gate_, kept->gate);
  }
}

void ForwardPass::up(std::int64_t index, MlpActivations* kept) {
  linear(index, LinearKind::kUp, b_.normed.view(), Store::kOverwrite, up_);
  if (kept != nullptr) {
    keep(up_, kept->up);
  }
}

void ForwardPass::down(std::int64_t index) {
  const Matrix activated = b_.activated.reshape(rows_.count, config_.intermediate_size);
  ops_.swiglu(gate_, up_, activated);
  linear(index, LinearKind::kDown, activated, Store::kAdd, residual_);
}

void ForwardPass::linear(std::int64_t index, LinearKind kind, ConstMatrix x, Store store,
                         Matrix y) {
  const LinearWeights& linear = weights_.layer(index).linears[kind];
  adapted_linear(
      {linear.weight.get(), linear.bias}, plan_.adapter_runs, lists_.adapters,
      [index, kind](const Adapter& adapter) { return adapter.bypass(index, kind); }, x, store, y,
      kept_low_rank(index, kind), ops_);
}

void ForwardPass::linears(std::int64_t index, ConstMatrix x,
                          std::initializer_list<LinearResult> results) {
  const auto find = [index](LinearKind kind) {
    return [index, kind](const Adapter& adapter) { return adapter.bypass(index, kind); };
  };
  const bool together = std::ranges::all_of(results, [&](const LinearResult& one) {
    return all_only_add(plan_.adapter_runs, find(one.kind));
  });
  if (!together) {
    for (const LinearResult& one : results) {
      linear(index, one.kind, x, Store::kOverwrite, one.y);
    }
    return;
  }
  std::vector<LinearTerm> terms;
  for (const LinearResult& one : results) {
    const LinearWeights& weights = weights_.layer(index).linears[one.kind];
    terms.push_back({weights.weight.get(), weights.bias, one.y});
  }
  ops_.linear_group(x, terms, Store::kOverwrite);
  for (const LinearResult& one : results) {
    add_low_rank_runs(plan_.adapter_runs, lists_.adapters, find(one.kind), x, one.y,
                      kept_low_rank(index, one.kind), ops_);
  }
}

KeptLowRank ForwardPass::kept_low_rank(std::int64_t index, LinearKind kind) {
  if (!keeps(index)) {
    return {};
  }
  return {&activations_->low_rank(index, kind), rows_.num_kept, rows_.first_kept, rows_.total_kept};
}

void ForwardPass::layer_norm(std::int64_t index, NormKind kind, ConstMatrix x, Matrix out,
                             DeviceMatrix* kept_rstd) {
  const auto own = [index, kind](const Adapter& adapter) {
    const PreparedVector& gain = gain_of(adapter.layer(index), kind);
    return gain.empty() ? nullptr : &gain;
  };
  norm(x, gain_of(weights_.layer(index), kind), own, out, kept_rstd);
}

// Normalizes each head of x (T, n*C) in place.
void ForwardPass::head_norm(std::int64_t index, NormKind kind, DeviceMatrix& x,
                            DeviceMatrix* kept_rstd) {
  const Matrix heads = x.view().as_rows_of(config_.head_dim);
  layer_norm(index, kind, heads, heads, kept_rstd);
}

// Normalizes rows, or equal parts of rows. `find` returns the gain of an adapter, or null.
template <class Find>
void ForwardPass::norm(ConstMatrix x, ConstVector gain, const Find& find, Matrix out,
                       DeviceMatrix* kept_rstd) {
  const std::int64_t parts = x.rows / rows_.count;
  const Vector rstd = rstd_buffer(kept_rstd, parts);
  const auto norm_rows = [&](ConstVector of_rows, std::int64_t first_row, std::int64_t num_rows) {
    const std::int64_t first = first_row * parts;
    const std::int64_t count = num_rows * parts;
    ops_.rms_norm(x.slice_rows(first, count), of_rows, epsilon_, out.slice_rows(first, count),
                  rstd.empty() ? rstd : rstd.slice(first, count));
  };
  split_rows(
      plan_.adapter_runs, rows_.count, find,
      [&](std::int64_t first, std::int64_t count) { norm_rows(gain, first, count); }, norm_rows);
  if (kept_rstd != nullptr) {
    keep(b_.rstd.view(), *kept_rstd);
  }
}

Vector ForwardPass::rstd_buffer(const DeviceMatrix* kept, std::int64_t per_row) {
  return kept != nullptr ? b_.rstd.reshape(rows_.count, per_row).elements() : Vector();
}

Matrix ForwardPass::result_target(DeviceMatrix& buffer, DeviceMatrix* kept) const {
  const std::int64_t cols = config_.intermediate_size;
  if (kept != nullptr && rows_.num_kept == rows_.count && kept->dtype() == DType::kF32) {
    return kept->reshape(rows_.total_kept, cols).slice_rows(rows_.first_kept, rows_.num_kept);
  }
  return buffer.reshape(rows_.count, cols);
}

void ForwardPass::keep(ConstMatrix source, DeviceMatrix& target) {
  const Matrix kept =
      target.reshape(rows_.total_kept, source.cols).slice_rows(rows_.first_kept, rows_.num_kept);
  if (source.data != kept.data) {
    ops_.copy(source.slice_rows(rows_.count - rows_.num_kept, rows_.num_kept), kept);
  }
}

}  // namespace tidemill::engines
