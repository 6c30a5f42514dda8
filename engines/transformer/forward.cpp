// SPDX-License-Identifier: Apache-2.0
// The forward pass: embeddings, decoder layers, final norm.
#include <algorithm>
#include <span>

#include "base/check.hpp"
#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

// One pass over one batch.
class ForwardPass {
public:
  ForwardPass(const ModelConfig& config, Ops& ops, ForwardBuffers& buffers,
              const ModelWeights& weights, const BatchPlan& plan, const RopeTables& rope,
              const KvCache& cache, Activations* activations, std::int64_t num_training_rows)
      : config_(config),
        epsilon_(static_cast<float>(config.rms_norm_eps)),
        ops_(ops),
        b_(buffers),
        weights_(weights),
        plan_(plan),
        rope_(rope),
        cache_(cache),
        activations_(activations),
        num_rows_(static_cast<std::int64_t>(plan.positions.size())),
        num_training_rows_(num_training_rows) {}

  void layer(std::int64_t index) {
    kept_ = activations_ != nullptr && index >= activations_->first_layer()
                ? &activations_->layer(index)
                : nullptr;
    attention_block(index);
    mlp_block(index);
  }

  void final_norm() {
    kept_ = nullptr;
    if (activations_ != nullptr) {
      keep(b_.residual, activations_->final_input());
    }
    const Matrix hidden = b_.hidden.reshape(num_rows_, config_.hidden_size);
    const auto own = [](const Adapter& adapter) {
      return adapter.final_gain().empty() ? nullptr : &adapter.final_gain();
    };
    norm(b_.residual.view(), weights_.final_gain(), own, hidden,
         activations_ != nullptr ? &activations_->final_rstd() : nullptr);
  }

private:
  void attention_block(std::int64_t index) {
    const AttentionShape shape = attention_shape(config_, index, cache_.options());
    const std::int64_t query_cols = config_.num_heads * config_.head_dim;
    const std::int64_t key_cols = config_.num_kv_heads * config_.head_dim;
    const Matrix normed = b_.normed.reshape(num_rows_, config_.hidden_size);
    const Matrix query = b_.query.reshape(num_rows_, query_cols);
    const Matrix key = b_.key.reshape(num_rows_, key_cols);
    const Matrix value = b_.value.reshape(num_rows_, key_cols);
    const Matrix attention = b_.attention.reshape(num_rows_, query_cols);

    keep_if(kept_ != nullptr, b_.residual, &LayerActivations::input);
    layer_norm(index, NormKind::kInput, b_.residual.view(), normed,
               kept_ != nullptr ? &kept_->input_rstd : nullptr);
    linear(index, LinearKind::kQuery, normed, Store::kOverwrite, query);
    linear(index, LinearKind::kKey, normed, Store::kOverwrite, key);
    linear(index, LinearKind::kValue, normed, Store::kOverwrite, value);
    if (config_.qk_norm) {
      keep_if(kept_ != nullptr, b_.query, &LayerActivations::query);
      keep_if(kept_ != nullptr, b_.key, &LayerActivations::key);
      head_norm(index, NormKind::kQuery, b_.query, kept_ != nullptr ? &kept_->query_rstd : nullptr);
      head_norm(index, NormKind::kKey, b_.key, kept_ != nullptr ? &kept_->key_rstd : nullptr);
    }
    ops_.rope(query, config_.head_dim, plan_.positions, rope_, RopeDirection::kForward);
    ops_.rope(key, config_.head_dim, plan_.positions, rope_, RopeDirection::kForward);
    keep_if(kept_ != nullptr && !config_.qk_norm, b_.query, &LayerActivations::query);

    ops_.kv_append(shape, plan_.segments, key, value, cache_.layer(index));
    Matrix lse;
    if (kept_ != nullptr) {
      lse = b_.lse.reshape(num_rows_, config_.num_heads);
    }
    ops_.attention(shape, plan_.segments, query, cache_.layer(index), attention, lse);
    keep_if(kept_ != nullptr, b_.attention, &LayerActivations::attention);
    keep_if(kept_ != nullptr, b_.lse, &LayerActivations::lse);
    linear(index, LinearKind::kOutput, attention, Store::kAdd, b_.residual.view());
  }

  void mlp_block(std::int64_t index) {
    const Matrix normed = b_.normed.view();
    const Matrix gate = b_.gate.reshape(num_rows_, config_.intermediate_size);
    const Matrix up = b_.up.reshape(num_rows_, config_.intermediate_size);
    const Matrix activated = b_.activated.reshape(num_rows_, config_.intermediate_size);

    keep_if(kept_ != nullptr, b_.residual, &LayerActivations::residual);
    layer_norm(index, NormKind::kAttention, b_.residual.view(), normed,
               kept_ != nullptr ? &kept_->residual_rstd : nullptr);
    linear(index, LinearKind::kGate, normed, Store::kOverwrite, gate);
    linear(index, LinearKind::kUp, normed, Store::kOverwrite, up);
    keep_if(kept_ != nullptr, b_.gate, &LayerActivations::gate);
    keep_if(kept_ != nullptr, b_.up, &LayerActivations::up);
    ops_.swiglu(gate, up, activated);
    linear(index, LinearKind::kDown, activated, Store::kAdd, b_.residual.view());
  }

  void linear(std::int64_t index, LinearKind kind, ConstMatrix x, Store store, Matrix y) {
    const LinearWeights& linear = weights_.layer(index).linears[kind];
    adapted_linear(
        {linear.weight.get(), linear.bias}, plan_.adapter_runs,
        [index, kind](const Adapter& adapter) { return adapter.bypass(index, kind); }, x, store, y,
        ops_);
  }

  void layer_norm(std::int64_t index, NormKind kind, ConstMatrix x, Matrix out,
                  OwnedMatrix* kept_rstd) {
    const auto own = [index, kind](const Adapter& adapter) {
      const std::vector<float>& gain = gain_of(adapter.layer(index), kind);
      return gain.empty() ? nullptr : &gain;
    };
    norm(x, gain_of(weights_.layer(index), kind), own, out, kept_rstd);
  }

  // Normalises each head of x (T, n*C) in place.
  void head_norm(std::int64_t index, NormKind kind, OwnedMatrix& x, OwnedMatrix* kept_rstd) {
    const Matrix heads = x.as_rows_of(config_.head_dim);
    layer_norm(index, kind, heads, heads, kept_rstd);
  }

  // A norm of rows, or of parts of rows; `find` returns an adapter's own gain or null.
  template <class Find>
  void norm(ConstMatrix x, std::span<const float> gain, const Find& find, Matrix out,
            OwnedMatrix* kept_rstd) {
    const std::int64_t parts = x.rows / num_rows_;
    const std::span<float> rstd = rstd_buffer(kept_rstd, parts);
    const auto norm_rows = [&](std::span<const float> of_rows, std::int64_t first_row,
                               std::int64_t num_rows) {
      const std::int64_t first = first_row * parts;
      const std::int64_t count = num_rows * parts;
      ops_.rms_norm(x.slice_rows(first, count), of_rows, epsilon_, out.slice_rows(first, count),
                    rstd.empty() ? rstd
                                 : rstd.subspan(static_cast<std::size_t>(first),
                                                static_cast<std::size_t>(count)));
    };
    split_rows(
        plan_.adapter_runs, num_rows_, find,
        [&](std::int64_t first, std::int64_t count) { norm_rows(gain, first, count); }, norm_rows);
    if (kept_rstd != nullptr) {
      keep(b_.rstd, *kept_rstd);
    }
  }

  std::span<float> rstd_buffer(const OwnedMatrix* wanted, std::int64_t per_row) {
    if (wanted == nullptr) {
      return {};
    }
    b_.rstd.reshape(num_rows_, per_row);
    return b_.rstd.elements();
  }

  void keep_if(bool wanted, const OwnedMatrix& source, OwnedMatrix LayerActivations::*part) {
    if (wanted) {
      keep(source, kept_->*part);
    }
  }

  // Copies the training rows.
  void keep(const OwnedMatrix& source, OwnedMatrix& target) const {
    const ConstMatrix from = source.view();
    const Matrix to = target.reshape(num_training_rows_, from.cols);
    std::copy_n(from.row(num_rows_ - num_training_rows_), num_training_rows_ * from.cols, to.data);
  }

  const ModelConfig& config_;
  float epsilon_;
  Ops& ops_;
  ForwardBuffers& b_;
  const ModelWeights& weights_;
  const BatchPlan& plan_;
  const RopeTables& rope_;
  const KvCache& cache_;
  Activations* activations_;          // null: nothing is kept
  LayerActivations* kept_ = nullptr;  // of the layer in work; null: nothing is kept
  std::int64_t num_rows_;
  std::int64_t num_training_rows_;
};

// Look-ups of all rows, each run by its adapter.
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

}  // namespace

ConstMatrix Transformer::forward(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                 const ForwardOptions& options) {
  State& s = *state_;
  s.head.holds_pass = false;
  const BatchPlan plan = plan_batch(batch, cache);
  const std::int64_t num_training_rows = batch.num_training_rows();
  TIDEMILL_CHECK(num_training_rows == 0 || options.activations != nullptr)
      << "training rows need activations";
  const Matrix residual = s.forward.residual.reshape(batch.num_rows(), s.config.hidden_size);
  embed(batch.ids, weights, plan, s.ops, residual);
  if (options.observer) {
    options.observer(0, residual);
  }
  const RopeTables rope = s.rope.tables(plan.num_positions);
  ForwardPass pass(s.config, s.ops, s.forward, weights, plan, rope, cache,
                   num_training_rows > 0 ? options.activations : nullptr, num_training_rows);
  for (std::int64_t index = 0; index < s.config.num_layers; ++index) {
    pass.layer(index);
    if (options.observer) {
      options.observer(index + 1, residual);
    }
  }
  pass.final_norm();
  return s.forward.hidden.view();
}

}  // namespace tidemill::engines
