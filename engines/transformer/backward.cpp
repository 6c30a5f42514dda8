// SPDX-License-Identifier: Apache-2.0
// The backward pass over the training rows of a batch, from the final norm to the embeddings.
//
// Layers are processed from the last to the first, the groups of rows of a layer in order
// (backward_groups.hpp), and within a group the MLP before attention. Each is divided into parts of
// a product or two, which are the units of work. Activations that the forward pass did not keep are
// recomputed only if something that is trained needs them: the input of a linear layer is needed
// only for that layer's own gradients, and layers below the lowest trained one are skipped.
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "engines/transformer/backward_groups.hpp"
#include "engines/transformer/forward_pass.hpp"
#include "engines/transformer/prefix_gradients.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

class BackwardPass {
public:
  BackwardPass(Transformer::State& state, const ModelWeights& weights, const BatchPlan& plan,
               std::span<const std::int32_t> ids, const KvCache& cache, Activations& activations,
               Gradients& gradients, const BackwardOptions& options)
      : state_(state),
        config_(state.config),
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
        groups_(plan_groups(plan, {options.window_tokens, ops_.traits().row_sum_step})),
        lists_(prepare(state, ids)),
        prefixes_(plan, b_.prefix_dkey, b_.prefix_dvalue, options.carried, ops_) {
    state.begin_backward(rows_of(plan, groups_));
    b_.dresidual.reshape(num_rows_, config_.hidden_size);
  }

  /// The groups, in the order in which they go through a layer.
  [[nodiscard]] const std::vector<BackwardGroup>& groups() const noexcept { return groups_; }
  /// Selects the group that the next calls process.
  void select_group(std::size_t index) {
    group_ = &groups_[index];
    group_plan_ = &group_plans_[index];
    group_lists_ = &all_group_lists_[index];
  }

  /// Computes the gradient of the group's residual stream after the last layer, given that of its
  /// normalized hidden states.
  void final_norm(ConstMatrix dhidden) {
    const bool own = adapter_ != nullptr && !adapter_->final_gain().empty();
    ops_.rms_norm_backward(dhidden.slice_rows(group_->first_row, group_->num_rows),
                           rows_of(activations_.final_input()),
                           own ? adapter_->final_gain() : weights_.final_gain(),
                           elements_of(activations_.final_rstd()), Store::kOverwrite,
                           rows_of(b_.dresidual), gradients_.final_gain());
  }

  void begin_layer(std::int64_t index) {
    prefixes_.begin_layer(index, config_.num_layers, config_.num_kv_heads * config_.head_dim);
  }
  void end_layer(std::int64_t index) { prefixes_.end_layer(index); }
  /// Computes the activations of a part of the layer again, for the group.
  void recompute(std::int64_t index, LayerPart part) {
    if (part == ForwardPass::first_recomputed(activations_.recompute())) {
      recomputing_.emplace(state_, weights_, *group_plan_, group_lists_->recomputed, cache_,
                           &activations_,
                           PassRows{.count = group_->num_rows,
                                    .num_kept = group_->num_rows,
                                    .first_kept = group_->first_row,
                                    .total_kept = num_rows_});
    }
    recomputing_->recompute(index, part);
  }

  /// The parts of a layer for the group, in the order of the calls. Between two of them, no other
  /// group may go through the layer.
  void down_and_activation(std::int64_t index) {
    MlpActivations& kept = activations_.mlp(index);
    mlp_ = {rows_of(kept.gate, f_.gate), rows_of(kept.up, f_.up),
            rows_of(kept.residual, f_.residual)};
    const Matrix activated = buffer(f_.activated, config_.intermediate_size);
    const Matrix dactivated = buffer(b_.dactivated, config_.intermediate_size);
    if (needs_input(index, LinearKind::kDown)) {
      ops_.swiglu(mlp_.gate, mlp_.up, activated);
    }
    linear(index, LinearKind::kDown, rows_of(b_.dresidual), activated, Store::kOverwrite,
           &dactivated);
    ops_.swiglu_backward(dactivated, mlp_.gate, mlp_.up, mlp_.gate, mlp_.up);
  }

  void gate(std::int64_t index) {
    const Matrix normed = buffer(f_.normed, config_.hidden_size);
    const Matrix dnormed = buffer(b_.dnormed, config_.hidden_size);
    if (needs_input(index, LinearKind::kGate) || needs_input(index, LinearKind::kUp)) {
      ops_.rms_norm(mlp_.residual, gain(index, NormKind::kAttention), epsilon_, normed, {});
    }
    linear(index, LinearKind::kGate, mlp_.gate, normed, Store::kOverwrite, &dnormed);
  }

  void up_and_norm(std::int64_t index) {
    const Matrix dnormed = b_.dnormed.view();
    linear(index, LinearKind::kUp, mlp_.up, f_.normed.view(), Store::kAdd, &dnormed);
    ops_.rms_norm_backward(dnormed, mlp_.residual, gain(index, NormKind::kAttention),
                           elements_of(activations_.mlp(index).residual_rstd), Store::kAdd,
                           rows_of(b_.dresidual), gradients_.layer(index).attention_gain);
  }

  void output_and_attention(std::int64_t index) {
    AttentionActivations& kept = activations_.attention(index);
    const std::int64_t query_cols = config_.num_heads * config_.head_dim;
    const ConstMatrix attention = rows_of(kept.attention, f_.attention);
    const Matrix dattention = buffer(b_.dattention, query_cols);
    linear(index, LinearKind::kOutput, rows_of(b_.dresidual), attention, Store::kOverwrite,
           &dattention);
    const Matrix dquery = buffer(b_.dquery, query_cols);
    own_ = key_value_gradients(
        index, {rotated_query(index, kept), attention, rows_of(kept.lse), dattention, dquery});
    ops_.rope(dquery, config_.head_dim, positions(), rope_, RopeDirection::kBackward);
    ops_.rope(own_.dk, config_.head_dim, positions(), rope_, RopeDirection::kBackward);
    if (config_.qk_norm) {
      LayerGradients& gradients = gradients_.layer(index);
      head_norm(dquery, kept.query, kept.query_rstd, gain(index, NormKind::kQuery),
                gradients.query_gain);
      head_norm(own_.dk, kept.key, kept.key_rstd, gain(index, NormKind::kKey), gradients.key_gain);
    }
  }

  /// The query, key and value layers and the norm before them.
  void projections_and_norm(std::int64_t index) {
    AttentionActivations& kept = activations_.attention(index);
    const ConstMatrix input = rows_of(kept.input, f_.residual);
    const ConstVector norm_gain = gain(index, NormKind::kInput);
    const Matrix normed = buffer(f_.normed, config_.hidden_size);
    const Matrix dnormed = buffer(b_.dnormed, config_.hidden_size);
    if (needs_input(index, LinearKind::kQuery) || needs_input(index, LinearKind::kKey) ||
        needs_input(index, LinearKind::kValue)) {
      ops_.rms_norm(input, norm_gain, epsilon_, normed, {});
    }
    const bool stop = index == gradients_.first_layer() && !gradients_.trains_embedding() &&
                      gradients_.layer(index).input_gain.empty();
    const Matrix* dx = stop ? nullptr : &dnormed;
    linear(index, LinearKind::kQuery, b_.dquery.view(), normed, Store::kOverwrite, dx);
    linear(index, LinearKind::kKey, own_.dk, normed, Store::kAdd, dx);
    linear(index, LinearKind::kValue, own_.dv, normed, Store::kAdd, dx);
    if (!stop) {
      ops_.rms_norm_backward(dnormed, input, norm_gain, elements_of(kept.input_rstd), Store::kAdd,
                             rows_of(b_.dresidual), gradients_.layer(index).input_gain);
    }
  }

  void finish() { prefixes_.finish(); }

  /// Adds the gradients of the group's embeddings.
  void embedding() {
    const IndexList ids = lists_.ids.slice(group_->first_row, group_->num_rows);
    if (gradients_.trains_model()) {
      ops_.embed_backward(ids, rows_of(b_.dresidual), gradients_.embedding().table);
    } else if (gradients_.trains_embedding()) {
      adapter_->embedding()->backward(ids, rows_of(b_.dresidual), gradients_.embedding(), ops_);
    }
  }

private:
  // The activations of an MLP, then the gradients of its gate and up layers' results.
  struct Mlp {
    Matrix gate;
    Matrix up;
    ConstMatrix residual;
  };
  // Returns the rows that the buffers must have room for.
  static BackwardBuffers::Rows rows_of(const BatchPlan& plan,
                                       const std::vector<BackwardGroup>& groups) {
    BackwardBuffers::Rows rows;
    rows.batch = std::ssize(plan.positions);
    for (const BackwardGroup& group : groups) {
      rows.group = std::max(rows.group, group.num_rows);
      rows.sequence = std::max(rows.sequence, group.num_kv_rows);
    }
    if (!plan.prefixes.empty()) {
      rows.prefix = plan.prefixes.back().first_row + plan.prefixes.back().num_tokens;
    }
    return rows;
  }

  // The lists of a group. Segments that are prefixes go through attention last.
  struct GroupLists {
    SegmentList continuing;
    SegmentList prefixes;
    IndexList own_rows;  // of its own keys and values, if they are not all that it has gradients of
    PlanLists recomputed;  // of the forward pass that computes activations again
  };
  struct GroupRanges {
    PassRange continuing;
    PassRange prefixes;
    PassRange own_rows;
    PassRange all;
    AdapterRanges adapters = {};
  };

  GroupRanges add_group(const BackwardGroup& group, PassContents& contents) const {
    std::vector<AttentionSegment> all;
    std::vector<AttentionSegment> continuing;
    std::vector<AttentionSegment> prefixes;
    std::vector<std::int32_t> own_rows;
    const bool recomputes_attention = activations_.recompute() == Recompute::kLayer;
    const bool gathers = group.segments.size() > 1 && group.num_kv_rows > group.num_rows;
    for (const GroupSegment& segment : group.segments) {
      if (recomputes_attention) {
        all.push_back(segment.attention);
      }
      (segment.role.own_prefix < 0 ? continuing : prefixes).push_back(segment.attention);
      for (std::int64_t i = 0; gathers && i < segment.attention.num_tokens; ++i) {
        own_rows.push_back(static_cast<std::int32_t>(segment.attention.first_kv_row +
                                                     segment.attention.first_position + i));
      }
    }
    return {contents.add_segments(continuing), contents.add_segments(prefixes),
            contents.add_indices(own_rows), contents.add_segments(all)};
  }

  // Returns the plan of the rows of `group`, for a forward pass whose lists are uploaded.
  [[nodiscard]] BatchPlan plan_of(const BackwardGroup& group) const {
    BatchPlan plan;
    plan.num_positions = plan_.num_positions;
    append_adapter_rows(adapter_, 0, group.num_rows, plan.adapter_runs);
    return plan;
  }

  // Uploads the lists of the plan and of all groups.
  PlanLists prepare(Transformer::State& state, std::span<const std::int32_t> ids) {
    PassContents contents;
    const PlanRanges plan = add_plan(plan_, ids, num_rows_, contents);
    std::vector<GroupRanges> groups;
    for (const BackwardGroup& group : groups_) {
      group_plans_.push_back(plan_of(group));
      groups.push_back(add_group(group, contents));
      groups.back().adapters = add_adapters(group_plans_.back().adapter_runs, 0, contents);
    }
    const PreparedPass& pass = state.prepare(std::move(contents), state.backward_pass);
    PlanLists lists = lists_at(plan, pass);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      all_group_lists_.push_back({pass.segments(groups[i].continuing),
                                  pass.segments(groups[i].prefixes),
                                  pass.indices(groups[i].own_rows),
                                  {{},
                                   lists.positions.slice(groups_[i].first_row, groups_[i].num_rows),
                                   pass.segments(groups[i].all),
                                   {},
                                   lists_at(groups[i].adapters, pass)}});
    }
    return lists;
  }

  // The rows of a group that the backward pass of attention takes.
  struct Queries {
    ConstMatrix query;
    ConstMatrix out;
    ConstMatrix lse;
    ConstMatrix dout;
    Matrix dquery;
  };

  // Runs the backward pass of attention. Returns the gradients of the group's own keys and values.
  // They are complete, because prefixes are processed last and start from the sums of all segments
  // that continue them.
  KvGradient key_value_gradients(std::int64_t index, const Queries& queries) {
    const std::int64_t cols = config_.num_kv_heads * config_.head_dim;
    if (group_->starts_at_zero) {
      ops_.fill(0.0F, b_.dkey.reshape(group_->num_kv_rows, cols));
      ops_.fill(0.0F, b_.dvalue.reshape(group_->num_kv_rows, cols));
    }
    attend_backward(index, queries, group_lists_->continuing);
    for (const GroupSegment& segment : group_->segments) {
      if (segment.role.continued_prefix >= 0 && segment.completes) {
        prefixes_.add(segment.role.continued_prefix, visible_gradients(segment));
      }
    }
    for (const GroupSegment& segment : group_->segments) {
      if (segment.role.own_prefix >= 0 && group_->starts_at_zero) {
        prefixes_.copy(segment.role.own_prefix, visible_gradients(segment));
      }
    }
    attend_backward(index, queries, group_lists_->prefixes);
    return own_rows();
  }

  // Runs the backward pass of attention for some segments of the group.
  void attend_backward(std::int64_t index, const Queries& queries, const SegmentList& segments) {
    if (!segments.empty()) {
      ops_.attention_backward_windows(attention_shape(config_, index, cache_.options()), segments,
                                      queries.query, cache_.layer(index), queries.out, queries.lse,
                                      queries.dout, b_.dkey.view(), b_.dvalue.view(),
                                      queries.dquery);
    }
  }

  // Returns the gradients of all keys and values that a segment sees.
  [[nodiscard]] KvGradient visible_gradients(const GroupSegment& segment) const {
    const std::int64_t count = segment.attention.first_position + segment.attention.num_tokens;
    return {b_.dkey.view().slice_rows(segment.attention.first_kv_row, count),
            b_.dvalue.view().slice_rows(segment.attention.first_kv_row, count)};
  }

  // Returns the gradients of the group's own keys and values, one segment after the other.
  [[nodiscard]] KvGradient own_rows() {
    if (group_->segments.size() == 1) {
      const AttentionSegment& only = group_->segments.front().attention;
      return {b_.dkey.view().slice_rows(only.first_position, only.num_tokens),
              b_.dvalue.view().slice_rows(only.first_position, only.num_tokens)};
    }
    if (group_lists_->own_rows.empty()) {
      return {b_.dkey.view(), b_.dvalue.view()};
    }
    const KvGradient own{buffer(f_.key, b_.dkey.cols()), buffer(f_.value, b_.dkey.cols())};
    ops_.copy_rows(b_.dkey.view(), group_lists_->own_rows, own.dk, {});
    ops_.copy_rows(b_.dvalue.view(), group_lists_->own_rows, own.dv, {});
    return own;
  }

  // Computes the gradients of a linear layer and of the adapter's change to it. The gradient of the
  // input is skipped if `dx` is null.
  void linear(std::int64_t index, LinearKind kind, ConstMatrix dy, ConstMatrix x, Store store,
              const Matrix* dx) {
    const LinearWeights& layer = weights_.layer(index).linears[kind];
    const LinearGradient& gradient = gradients_.layer(index).linears[kind];
    if (const LinearBypass* changed = bypass(index, kind)) {
      const ConstMatrix scaled_u =
          changed->only_adds() ? rows_of(activations_.low_rank(index, kind)) : ConstMatrix();
      changed->backward({layer.weight.get(), layer.bias}, dy, x, scaled_u, store, dx, gradient,
                        ops_);
      return;
    }
    if (dx != nullptr) {
      ops_.linear_backward_input(dy, *layer.weight, store, *dx);
    }
    if (!gradient.weight.is_null()) {
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

  [[nodiscard]] ConstVector gain(std::int64_t index, NormKind kind) const {
    if (adapter_ != nullptr) {
      const PreparedVector& own = gain_of(adapter_->layer(index), kind);
      if (!own.empty()) {
        return own;
      }
    }
    return gain_of(weights_.layer(index), kind);
  }

  ConstMatrix rotated_query(std::int64_t index, AttentionActivations& kept) {
    const Matrix before = rows_of(kept.query, f_.query);
    if (!config_.qk_norm) {
      return before;
    }
    const Matrix query = buffer(b_.query, before.cols);
    ops_.rms_norm(before.as_rows_of(config_.head_dim), gain(index, NormKind::kQuery), epsilon_,
                  query.as_rows_of(config_.head_dim), {});
    ops_.rope(query, config_.head_dim, positions(), rope_, RopeDirection::kForward);
    return query;
  }

  // Return the group's rows.
  [[nodiscard]] Matrix rows_of(const DeviceMatrix& all) const {
    return all.view().slice_rows(group_->first_row, group_->num_rows);
  }
  [[nodiscard]] Matrix rows_of(const DeviceMatrix& all, DeviceMatrix& buffer) const {
    return all.floats(group_->first_row, group_->num_rows, buffer, ops_);
  }
  [[nodiscard]] ConstVector elements_of(const DeviceMatrix& all) const {
    return rows_of(all).elements();
  }
  [[nodiscard]] IndexList positions() const {
    return lists_.positions.slice(group_->first_row, group_->num_rows);
  }
  [[nodiscard]] Matrix buffer(DeviceMatrix& rows, std::int64_t cols) const {
    return rows.reshape(group_->num_rows, cols);
  }

  // Replaces dx (N, n*C), the gradient of the output of a per-head norm, with that of its input.
  void head_norm(Matrix dx, const DeviceMatrix& kept, const DeviceMatrix& rstd, ConstVector gain,
                 Vector dgain) {
    const Matrix x = rows_of(kept, f_.query).as_rows_of(config_.head_dim);
    const Matrix heads = dx.as_rows_of(config_.head_dim);
    const Matrix result = b_.query.reshape(heads.rows, heads.cols);
    ops_.rms_norm_backward(heads, x, gain, elements_of(rstd), Store::kOverwrite, result, dgain);
    ops_.copy(result, heads);
  }

  Transformer::State& state_;
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
  const Adapter* adapter_;  // the adapter of all rows, or null
  std::int64_t num_rows_;
  std::vector<BackwardGroup> groups_;
  std::vector<BatchPlan> group_plans_;
  std::vector<GroupLists> all_group_lists_;
  PlanLists lists_;
  // The group that is being processed.
  const BackwardGroup* group_ = nullptr;
  const BatchPlan* group_plan_ = nullptr;
  const GroupLists* group_lists_ = nullptr;
  // What the parts of a layer pass on to later parts.
  std::optional<ForwardPass> recomputing_;
  Mlp mlp_;
  KvGradient own_;
  PrefixGradients prefixes_;
};

// Returns whether `gradients` belong to what the training rows train: the model or their adapter.
bool fits(const Gradients& gradients, const BatchPlan& plan) {
  if (gradients.trains_model()) {
    return plan.adapter_runs.empty();
  }
  return plan.adapter_runs.size() == 1 &&
         plan.adapter_runs.front().adapter->first_layer() == gradients.first_layer();
}

// The passes over all groups: the final norm, then layer by layer, then the embeddings. Within a
// layer, a unit is one part of it for one group.
class BackwardUnits final : public UnitSequence {
public:
  BackwardUnits(Transformer::State& state, const ModelWeights& weights, const Batch& batch,
                const KvCache& cache, Activations& activations, ConstMatrix dhidden,
                Gradients& gradients, const BackwardOptions& options)
      : plan_(plan_training_rows(batch, cache)),
        dhidden_(dhidden),
        pass_(state, weights, plan_,
              std::span(batch.ids).last(static_cast<std::size_t>(batch.num_training_rows())), cache,
              activations, gradients, options),
        recompute_(activations.recompute()),
        layer_(state.config.num_layers),
        first_layer_(gradients.first_layer()) {
    TIDEMILL_CHECK(fits(gradients, plan_)) << "the gradients are not those of the weights to train";
    TIDEMILL_CHECK(activations.first_layer() <= gradients.first_layer());
    for (std::size_t i = 0; i < pass_.groups().size(); ++i) {
      ascending_.push_back(i);
    }
    std::ranges::sort(ascending_, {},
                      [this](std::size_t i) { return pass_.groups()[i].first_row; });
  }

  [[nodiscard]] bool done() const override { return stage_ == Stage::kDone; }

  [[nodiscard]] UnitKind next() const override {
    const bool in_order = stage_ == Stage::kLayers;
    const BackwardGroup& group = pass_.groups()[in_order ? group_ : ascending_[group_]];
    UnitKind kind;
    kind.stage = UnitStage::kBackward;
    kind.rows = group.num_rows;
    if (stage_ == Stage::kLayers) {
      kind.part = static_cast<std::uint8_t>(
          part_ == Part::kRecompute ? kRecomputedPart + static_cast<int>(recomputed_part_)
                                    : static_cast<int>(part_));
      const AttentionSegment& last = group.segments.back().attention;
      kind.span = part_ == Part::kAttention ? last.first_position + last.num_tokens : 0;
    } else {
      kind.part = stage_ == Stage::kFinalNorm ? kFinalNormPart : kEmbeddingPart;
    }
    return kind;
  }

  void run() override {
    switch (stage_) {
      case Stage::kFinalNorm:
        pass_.select_group(ascending_[group_]);
        pass_.final_norm(dhidden_);
        next_group(Stage::kLayers);
        break;
      case Stage::kLayers: run_part(); break;
      case Stage::kEmbedding:
        pass_.select_group(ascending_[group_]);
        pass_.embedding();
        next_group(Stage::kDone);
        break;
      case Stage::kDone: break;
    }
  }

private:
  enum class Stage { kFinalNorm, kLayers, kEmbedding, kDone };
  enum class Part { kRecompute, kDown, kGate, kUp, kAttention, kProjections };
  // The parts of `UnitKind` that are not parts of a layer, and the first of those computed again.
  static constexpr std::uint8_t kFinalNormPart = 8;
  static constexpr std::uint8_t kEmbeddingPart = 9;
  static constexpr std::uint8_t kRecomputedPart = 16;

  void begin_group() {
    part_ = recompute_ == Recompute::kNone ? Part::kDown : Part::kRecompute;
    recomputed_part_ = ForwardPass::first_recomputed(recompute_);
  }

  // Goes on to the next group or, after the last, to `stage`.
  void next_group(Stage stage) {
    if (++group_ < pass_.groups().size()) {
      return;
    }
    group_ = 0;
    stage_ = stage;
    if (stage == Stage::kLayers) {
      begin_layer();
    }
  }

  void begin_layer() {
    if (layer_ == first_layer_) {
      pass_.finish();
      stage_ = Stage::kEmbedding;
      return;
    }
    begin_group();
    pass_.begin_layer(--layer_);
  }

  void run_part() {
    pass_.select_group(group_);
    switch (part_) {
      case Part::kRecompute: recompute_part(); return;
      case Part::kDown: pass_.down_and_activation(layer_); break;
      case Part::kGate: pass_.gate(layer_); break;
      case Part::kUp: pass_.up_and_norm(layer_); break;
      case Part::kAttention: pass_.output_and_attention(layer_); break;
      case Part::kProjections: pass_.projections_and_norm(layer_); break;
    }
    if (part_ != Part::kProjections) {
      part_ = static_cast<Part>(static_cast<int>(part_) + 1);
      return;
    }
    begin_group();
    if (++group_ == pass_.groups().size()) {
      group_ = 0;
      pass_.end_layer(layer_);
      begin_layer();
    }
  }

  void recompute_part() {
    pass_.recompute(layer_, recomputed_part_);
    if (recomputed_part_ == LayerPart::kUp) {
      part_ = Part::kDown;
    } else {
      recomputed_part_ = static_cast<LayerPart>(static_cast<int>(recomputed_part_) + 1);
    }
  }

  BatchPlan plan_;
  ConstMatrix dhidden_;
  BackwardPass pass_;
  std::vector<std::size_t> ascending_;  // the groups in row order (R2 of ops.hpp)
  Recompute recompute_;
  Stage stage_ = Stage::kFinalNorm;
  std::int64_t layer_;        // being processed; the number of layers before the first
  std::int64_t first_layer_;  // the lowest to process
  std::size_t group_ = 0;
  Part part_ = Part::kDown;
  LayerPart recomputed_part_ = LayerPart::kGate;  // to compute again next
};

}  // namespace

std::unique_ptr<UnitSequence> Transformer::start_backward(const ModelWeights& weights,
                                                          const Batch& batch, const KvCache& cache,
                                                          Activations& activations,
                                                          ConstMatrix dhidden, Gradients& gradients,
                                                          const BackwardOptions& options) {
  const std::int64_t num_rows = batch.num_training_rows();
  TIDEMILL_CHECK(num_rows > 0 && dhidden.rows == num_rows) << dhidden.rows << " of " << num_rows;
  return std::make_unique<BackwardUnits>(*state_, weights, batch, cache, activations, dhidden,
                                         gradients, options);
}

}  // namespace tidemill::engines
