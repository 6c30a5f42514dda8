// SPDX-License-Identifier: Apache-2.0
// The backward pass over the training rows of a batch, from the final norm to the embeddings.
//
// Layer by layer, downwards; within a layer MLP, then attention. What the forward did not keep is
// computed again, and only where something trained needs it: the input of a linear layer matters to
// its own gradients alone, and nothing below the lowest trained layer is visited.
#include <algorithm>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "engines/transformer/forward_pass.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

class BackwardPass {
public:
  BackwardPass(Transformer::State& state, const ModelWeights& weights, const BatchPlan& plan,
               const KvCache& cache, Activations& activations, Gradients& gradients)
      : config_(state.config),
        epsilon_(static_cast<float>(state.config.rms_norm_eps)),
        ops_(state.ops),
        f_(state.forward),
        b_(state.backward),
        weights_(weights),
        plan_(plan),
        rope_(state.rope.tables(plan.num_positions)),
        cache_(cache),
        activations_(activations),
        gradients_(gradients),
        adapter_(plan.adapter_runs.empty() ? nullptr : plan.adapter_runs.front().adapter),
        num_rows_(static_cast<std::int64_t>(plan.positions.size())),
        forward_(state, weights, plan, cache, &activations, num_rows_) {}

  void final_norm(ConstMatrix dhidden) {
    const Matrix dresidual = b_.dresidual.reshape(num_rows_, config_.hidden_size);
    const bool own = adapter_ != nullptr && !adapter_->final_gain().empty();
    ops_.rms_norm_backward(dhidden, activations_.final_input().view(),
                           own ? adapter_->final_gain() : weights_.final_gain(),
                           activations_.final_rstd().elements(), Store::kOverwrite, dresidual,
                           gradients_.final_gain());
  }

  void layer(std::int64_t index) {
    forward_.recompute(index);
    mlp_block(index);
    attention_block(index);
  }

  void embedding(std::span<const std::int32_t> ids) {
    if (gradients_.trains_model()) {
      ops_.embed_backward(ids, b_.dresidual.view(), gradients_.embedding().table);
    } else if (gradients_.trains_embedding()) {
      adapter_->embedding()->backward(ids, b_.dresidual.view(), gradients_.embedding(), ops_);
    }
  }

private:
  void mlp_block(std::int64_t index) {
    MlpActivations& kept = activations_.mlp(index);
    const std::span<const float> norm_gain = gain(index, NormKind::kAttention);
    const Matrix gate = kept.gate.floats(f_.gate, ops_);
    const Matrix up = kept.up.floats(f_.up, ops_);
    const ConstMatrix residual = kept.residual.floats(f_.residual, ops_);
    const Matrix dresidual = b_.dresidual.view();

    const Matrix activated = f_.activated.reshape(num_rows_, config_.intermediate_size);
    const Matrix dactivated = b_.dactivated.reshape(num_rows_, config_.intermediate_size);
    if (needs_input(index, LinearKind::kDown)) {
      ops_.swiglu(gate, up, activated);
    }
    linear(index, LinearKind::kDown, dresidual, activated, Store::kOverwrite, &dactivated);
    ops_.swiglu_backward(dactivated, gate, up, gate, up);

    const Matrix normed = f_.normed.reshape(num_rows_, config_.hidden_size);
    const Matrix dnormed = b_.dnormed.reshape(num_rows_, config_.hidden_size);
    if (needs_input(index, LinearKind::kGate) || needs_input(index, LinearKind::kUp)) {
      ops_.rms_norm(residual, norm_gain, epsilon_, normed, {});
    }
    linear(index, LinearKind::kGate, gate, normed, Store::kOverwrite, &dnormed);
    linear(index, LinearKind::kUp, up, normed, Store::kAdd, &dnormed);
    ops_.rms_norm_backward(dnormed, residual, norm_gain, kept.residual_rstd.elements(), Store::kAdd,
                           dresidual, gradients_.layer(index).attention_gain);
  }

  void attention_block(std::int64_t index) {
    AttentionActivations& kept = activations_.attention(index);
    const AttentionShape shape = attention_shape(config_, index, cache_.options());
    const std::int64_t query_cols = config_.num_heads * config_.head_dim;
    const std::int64_t key_cols = config_.num_kv_heads * config_.head_dim;
    const Matrix dresidual = b_.dresidual.view();

    const ConstMatrix attention = kept.attention.floats(f_.attention, ops_);
    const Matrix dattention = b_.dattention.reshape(num_rows_, query_cols);
    linear(index, LinearKind::kOutput, dresidual, attention, Store::kOverwrite, &dattention);
    const Matrix dquery = b_.dquery.reshape(num_rows_, query_cols);
    const Matrix dkey = b_.dkey.reshape(num_rows_, key_cols);
    const Matrix dvalue = b_.dvalue.reshape(num_rows_, key_cols);
    ops_.attention_backward(shape, plan_.segments, rotated_query(index, kept), cache_.layer(index),
                            attention, kept.lse.view(), dattention, dquery, dkey, dvalue);
    ops_.rope(dquery, config_.head_dim, plan_.positions, rope_, RopeDirection::kBackward);
    ops_.rope(dkey, config_.head_dim, plan_.positions, rope_, RopeDirection::kBackward);
    if (config_.qk_norm) {
      LayerGradients& gradients = gradients_.layer(index);
      head_norm(b_.dquery, kept.query, kept.query_rstd, gain(index, NormKind::kQuery),
                gradients.query_gain);
      head_norm(b_.dkey, kept.key, kept.key_rstd, gain(index, NormKind::kKey), gradients.key_gain);
    }
    projections(index);
  }

  // The query, key and value layers and the norm before them.
  void projections(std::int64_t index) {
    AttentionActivations& kept = activations_.attention(index);
    const ConstMatrix input = kept.input.floats(f_.residual, ops_);
    const std::span<const float> norm_gain = gain(index, NormKind::kInput);
    const Matrix normed = f_.normed.view();
    const Matrix dnormed = b_.dnormed.view();
    if (needs_input(index, LinearKind::kQuery) || needs_input(index, LinearKind::kKey) ||
        needs_input(index, LinearKind::kValue)) {
      ops_.rms_norm(input, norm_gain, epsilon_, normed, {});
    }
    const bool stop = index == gradients_.first_layer() && !gradients_.trains_embedding() &&
                      gradients_.layer(index).input_gain.empty();
    const Matrix* dx = stop ? nullptr : &dnormed;
    linear(index, LinearKind::kQuery, b_.dquery.view(), normed, Store::kOverwrite, dx);
    linear(index, LinearKind::kKey, b_.dkey.view(), normed, Store::kAdd, dx);
    linear(index, LinearKind::kValue, b_.dvalue.view(), normed, Store::kAdd, dx);
    if (!stop) {
      ops_.rms_norm_backward(dnormed, input, norm_gain, kept.input_rstd.elements(), Store::kAdd,
                             b_.dresidual.view(), gradients_.layer(index).input_gain);
    }
  }

  // Gradients of a linear layer and of what changes it; `dx` null: the input's is not wanted.
  void linear(std::int64_t index, LinearKind kind, ConstMatrix dy, ConstMatrix x, Store store,
              const Matrix* dx) {
    const LinearWeights& layer = weights_.layer(index).linears[kind];
    const LinearGradient& gradient = gradients_.layer(index).linears[kind];
    if (const LinearBypass* changed = bypass(index, kind)) {
      const ConstMatrix scaled_u =
          changed->only_adds() ? activations_.low_rank(index, kind).view() : ConstMatrix();
      changed->backward({layer.weight.get(), layer.bias}, dy, x, scaled_u, store, dx, gradient,
                        ops_);
      return;
    }
    if (dx != nullptr) {
      ops_.linear_backward_input(dy, *layer.weight, store, *dx);
    }
    if (gradient.weight.data != nullptr) {
      ops_.linear_backward_weight(dy, x, gradient.weight);
    }
    if (!gradient.bias.empty()) {
      ops_.bias_backward(dy, gradient.bias);
    }
  }

  [[nodiscard]] bool needs_input(std::int64_t index, LinearKind kind) {
    const LinearBypass* changed = bypass(index, kind);
    return changed != nullptr ? changed->needs_input() : gradients_.trains_model();
  }

  [[nodiscard]] const LinearBypass* bypass(std::int64_t index, LinearKind kind) const {
    return adapter_ != nullptr ? adapter_->bypass(index, kind) : nullptr;
  }

  [[nodiscard]] std::span<const float> gain(std::int64_t index, NormKind kind) const {
    if (adapter_ != nullptr) {
      const std::vector<float>& own = gain_of(adapter_->layer(index), kind);
      if (!own.empty()) {
        return own;
      }
    }
    return gain_of(weights_.layer(index), kind);
  }

  ConstMatrix rotated_query(std::int64_t index, AttentionActivations& kept) {
    const Matrix before = kept.query.floats(f_.query, ops_);
    if (!config_.qk_norm) {
      return before;
    }
    const Matrix query = b_.query.reshape(num_rows_, before.cols);
    ops_.rms_norm(heads_of(before), gain(index, NormKind::kQuery), epsilon_, heads_of(query), {});
    ops_.rope(query, config_.head_dim, plan_.positions, rope_, RopeDirection::kForward);
    return query;
  }

  // The heads (N*n, C) of x (N, n*C), which has no gaps between rows.
  [[nodiscard]] Matrix heads_of(Matrix x) const {
    return {x.data, x.rows * x.cols / config_.head_dim, config_.head_dim, config_.head_dim};
  }

  // Replaces dx (N, n*C), the gradient of a per-head norm's output, by that of its input.
  void head_norm(OwnedMatrix& dx, KeptRows& kept, OwnedMatrix& rstd, std::span<const float> gain,
                 std::span<float> dgain) {
    const Matrix x = heads_of(kept.floats(f_.query, ops_));
    const Matrix heads = dx.as_rows_of(config_.head_dim);
    const Matrix result = b_.query.reshape(heads.rows, heads.cols);
    ops_.rms_norm_backward(heads, x, gain, rstd.elements(), Store::kOverwrite, result, dgain);
    std::ranges::copy(b_.query.elements(), dx.elements().begin());
  }

  const ModelConfig& config_;
  float epsilon_;
  Ops& ops_;
  ForwardBuffers& f_;
  BackwardBuffers& b_;
  const ModelWeights& weights_;
  const BatchPlan& plan_;
  RopeTables rope_;
  const KvCache& cache_;
  Activations& activations_;
  Gradients& gradients_;
  const Adapter* adapter_;  // of all rows, or null
  std::int64_t num_rows_;
  ForwardPass forward_;
};

// Whether `gradients` are those of everything that the training rows train.
bool fits(const Gradients& gradients, const BatchPlan& plan) {
  if (gradients.trains_model()) {
    return plan.adapter_runs.empty();
  }
  return plan.adapter_runs.size() == 1 &&
         plan.adapter_runs.front().adapter->first_layer() == gradients.first_layer();
}

}  // namespace

void Transformer::backward(const ModelWeights& weights, const Batch& batch, const KvCache& cache,
                           Activations& activations, ConstMatrix dhidden, Gradients& gradients) {
  State& s = *state_;
  const BatchPlan plan = plan_training_rows(batch, cache);
  const std::int64_t num_rows = batch.num_training_rows();
  TIDEMILL_CHECK(num_rows > 0 && dhidden.rows == num_rows) << dhidden.rows << " of " << num_rows;
  TIDEMILL_CHECK(fits(gradients, plan)) << "gradients of other weights than the rows train";
  TIDEMILL_CHECK(activations.first_layer() <= gradients.first_layer());
  BackwardPass pass(s, weights, plan, cache, activations, gradients);
  pass.final_norm(dhidden);
  for (std::int64_t index = s.config.num_layers; index-- > gradients.first_layer();) {
    pass.layer(index);
  }
  pass.embedding(std::span(batch.ids).last(static_cast<std::size_t>(num_rows)));
}

}  // namespace tidemill::engines
