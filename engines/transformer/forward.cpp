// SPDX-License-Identifier: Apache-2.0
// The forward pass: embeddings, decoder layers, final norm.
#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

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
    ForwardPass pass(state, weights, plan, lists, cache, nullptr, {.count = rows.size});
    pass.finish_layer(state.config.num_layers - 1);
    buffers.hidden.resize_rows(rows.size);
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

// A batch divided into windows, and the forward pass of each.
class Windows {
public:
  // Divides the batch into windows of at most `max_rows` rows and shapes the buffers of the pass.
  // `activations` receive those of the last `num_kept` rows.
  Windows(Transformer::State& state, const ModelWeights& weights, const Batch& batch,
          BatchPlan plan, KvCache& cache, std::int64_t max_rows, Activations* activations,
          std::int64_t num_kept, const KeyObserver& key_observer)
      : state_(state) {
    const std::int64_t num_rows = batch.num_rows();
    if (max_rows >= num_rows) {
      windows_.push_back({0, std::move(plan)});
    } else {
      windows_ = cut_plan(batch, plan, max_rows);
    }
    upload(batch, num_kept);
    state.begin_forward(num_rows, std::min(num_rows, max_rows), num_kept > 0);
    if (num_kept > 0) {
      activations->begin_pass(num_kept);
    }
    state.forward.reserve_inner(std::min(num_rows, max_rows), state.config.intermediate_size);
    state.forward.normed.reshape(std::min(num_rows, max_rows), state.config.hidden_size);
    state.forward.residual.reshape(num_rows, state.config.hidden_size);
    state.forward.hidden.reshape(num_rows, state.config.hidden_size);
    passes_.reserve(windows_.size());
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      const PassRows rows = rows_of(windows_[i], num_rows, num_kept);
      passes_.emplace_back(state, weights, windows_[i].plan, lists_[i], cache,
                           rows.num_kept > 0 ? activations : nullptr, rows, key_observer);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return windows_.size(); }
  [[nodiscard]] const PlannedRows& rows(std::size_t index) const { return windows_[index]; }
  [[nodiscard]] std::int64_t num_rows(std::size_t index) const {
    return std::ssize(windows_[index].plan.positions);
  }
  [[nodiscard]] const PlanLists& lists(std::size_t index) const { return lists_[index]; }
  [[nodiscard]] ForwardPass& pass(std::size_t index) { return passes_[index]; }
  [[nodiscard]] Matrix residual(std::size_t index) const {
    return state_.forward.residual.view().slice_rows(windows_[index].first_row, num_rows(index));
  }

private:
  void upload(const Batch& batch, std::int64_t num_kept) {
    PassContents contents;
    std::vector<PlanRanges> ranges;
    for (const PlannedRows& window : windows_) {
      const auto ids = std::span(batch.ids).subspan(static_cast<std::size_t>(window.first_row),
                                                    window.plan.positions.size());
      const PassRows rows = rows_of(window, batch.num_rows(), num_kept);
      ranges.push_back(add_plan(window.plan, ids, rows.num_kept, contents));
    }
    const PreparedPass& prepared = state_.prepare(std::move(contents), state_.forward_pass);
    for (const PlanRanges& range : ranges) {
      lists_.push_back(lists_at(range, prepared));
    }
  }

  // The last `num_kept` of `num_rows` rows are kept.
  static PassRows rows_of(const PlannedRows& window, std::int64_t num_rows, std::int64_t num_kept) {
    const auto count = std::ssize(window.plan.positions);
    const std::int64_t first_kept = std::max(window.first_row, num_rows - num_kept);
    const std::int64_t kept = std::max<std::int64_t>(window.first_row + count - first_kept, 0);
    return {window.first_row, count, kept, first_kept - (num_rows - num_kept), num_kept};
  }

  Transformer::State& state_;
  std::vector<PlannedRows> windows_;
  std::vector<PlanLists> lists_;
  std::vector<ForwardPass> passes_;
};

// Runs the decoder: in each layer one window after the other. Windows go through a layer part by
// part.
class ForwardUnits final : public UnitSequence {
public:
  ForwardUnits(Transformer::State& state, const ModelWeights& weights, const Batch& batch,
               BatchPlan plan, std::int64_t num_kept, KvCache& cache, const ForwardOptions& options)
      : s_(state),
        weights_(weights),
        observer_(options.observer),
        in_parts_(options.window_tokens > 0),
        windows_(state, weights, batch, std::move(plan), cache, window_rows(batch, options),
                 options.activations, num_kept, options.key_observer) {}

  [[nodiscard]] bool done() const override { return layer_ > s_.config.num_layers; }

  [[nodiscard]] UnitKind next() const override {
    UnitKind kind;
    kind.stage = UnitStage::kForward;
    kind.rows = windows_.num_rows(window_);
    if (layer_ < 0 || layer_ >= s_.config.num_layers) {
      kind.part = layer_ < 0 ? kEmbeddingPart : kFinalNormPart;
    } else {
      kind.part = in_parts_ ? static_cast<std::uint8_t>(1 + part_) : kWholeLayerPart;
      const bool attends = !in_parts_ || kLayerParts[part_] == LayerPart::kAttention;
      kind.span = attends ? windows_.rows(window_).plan.num_positions : 0;
    }
    return kind;
  }

  // Layer -1 is the embeddings, and the layer after the last is the final norm.
  void run() override {
    if (layer_ < 0) {
      embed(windows_.lists(window_).ids, weights_, windows_.rows(window_).plan, s_.ops,
            windows_.residual(window_));
    } else if (layer_ < s_.config.num_layers) {
      if (!run_layer()) {
        return;
      }
    } else {
      windows_.pass(window_).final_norm();
    }
    if (++window_ == windows_.size()) {
      window_ = 0;
      if (observer_ && layer_ < s_.config.num_layers) {
        observer_(layer_ + 1, s_.forward.residual.view());
      }
      ++layer_;
    }
  }

private:
  // The parts of `UnitKind` next to those of a layer, which count from 1.
  static constexpr std::uint8_t kWholeLayerPart = 0;
  static constexpr std::uint8_t kEmbeddingPart = kLayerParts.size() + 1;
  static constexpr std::uint8_t kFinalNormPart = kEmbeddingPart + 1;

  // Runs the layer or a part of it. Returns whether that was the last.
  bool run_layer() {
    if (!in_parts_) {
      windows_.pass(window_).layer(layer_);
      return true;
    }
    windows_.pass(window_).layer_part(layer_, kLayerParts[part_]);
    part_ = (part_ + 1) % kLayerParts.size();
    return part_ == 0;
  }

  static std::int64_t window_rows(const Batch& batch, const ForwardOptions& options) {
    const std::int64_t rows = options.window_tokens > 0 ? options.window_tokens : batch.num_rows();
    TIDEMILL_CHECK(rows >= batch.num_rows() || (!options.keeps_inference && !options.key_observer))
        << "a pass that keeps generated rows is not divided";
    return rows;
  }

  Transformer::State& s_;
  const ModelWeights& weights_;
  HiddenObserver observer_;
  bool in_parts_;
  Windows windows_;
  std::int64_t layer_ = -1;
  std::size_t window_ = 0;
  std::size_t part_ = 0;  // of the layer, if it runs in parts
};

// Restores what a forward pass leaves behind: in each layer one window after the other.
class RecallUnits final : public UnitSequence {
public:
  RecallUnits(Transformer::State& state, const ModelWeights& weights, const Batch& batch,
              KvCache& cache, Activations& activations, KeySource keys, std::int64_t window_tokens)
      : s_(state),
        cache_(cache),
        keys_(std::move(keys)),
        windows_(state, weights, batch, plan_batch(batch, cache), cache,
                 window_tokens > 0 ? window_tokens : batch.num_rows(), &activations,
                 batch.num_training_rows(), {}),
        layer_(activations.first_layer()) {
    const Matrix residual = s_.forward.residual.view();
    const ConstMatrix kept = activations.final_input().view();
    s_.ops.fill(0.0F, residual);
    s_.ops.copy(kept, residual.slice_rows(residual.rows - kept.rows, kept.rows));
  }

  [[nodiscard]] bool done() const override { return layer_ > s_.config.num_layers; }

  void run() override {
    if (layer_ < s_.config.num_layers) {
      append_keys();
    } else {
      windows_.pass(window_).final_norm();
    }
    if (++window_ == windows_.size()) {
      window_ = 0;
      ++layer_;
    }
  }

private:
  void append_keys() {
    const std::int64_t cols = s_.config.num_kv_heads * s_.config.head_dim;
    const PlannedRows& rows = windows_.rows(window_);
    const Matrix key = s_.forward.key.reshape(windows_.num_rows(window_), cols);
    const Matrix value = s_.forward.value.reshape(windows_.num_rows(window_), cols);
    keys_(layer_, rows.first_row, key, value);
    s_.ops.kv_append(attention_shape(s_.config, layer_, cache_.options()),
                     windows_.lists(window_).appends, key, value,
                     s_.rope.tables(rows.plan.num_positions), cache_.layer(layer_));
  }

  Transformer::State& s_;
  KvCache& cache_;
  KeySource keys_;
  Windows windows_;
  std::int64_t layer_;
  std::size_t window_ = 0;
};

// Runs the decoder where only the hidden states of some rows are requested.
void run_trimmed(Transformer::State& state, const ModelWeights& weights, const Batch& batch,
                 const BatchPlan& plan, const HiddenPlan& requested, KvCache& cache) {
  PassContents contents;
  const PlanRanges ranges = add_plan(plan, batch.ids, 0, contents);
  const PlanRanges requested_ranges = add_plan(requested.plan, {}, 0, contents);
  const PassRange requested_rows = contents.add_indices(requested.rows);
  const PreparedPass& prepared = state.prepare(std::move(contents), state.forward_pass);
  const PlanLists lists = lists_at(ranges, prepared);

  const std::int64_t num_rows = batch.num_rows();
  state.begin_forward(num_rows, num_rows, false);
  state.forward.reserve_inner(num_rows, state.config.intermediate_size);
  embed(lists.ids, weights, plan, state.ops,
        state.forward.residual.reshape(num_rows, state.config.hidden_size));
  ForwardPass pass(state, weights, plan, lists, cache, nullptr, {.count = num_rows});
  const std::int64_t last = state.config.num_layers - 1;
  for (std::int64_t index = 0; index < last; ++index) {
    pass.layer(index);
  }
  pass.append_keys(last);
  finish_rows(state, weights, requested.plan, lists_at(requested_ranges, prepared),
              prepared.indices(requested_rows), cache);
}

}  // namespace

ConstMatrix Transformer::forward(const ModelWeights& weights, const Batch& batch, KvCache& cache,
                                 const ForwardOptions& options) {
  state_->head.holds_all_logits = false;
  BatchPlan plan = plan_batch(batch, cache);
  const std::int64_t num_kept = num_kept_rows(batch, plan, options);
  if (num_kept == 0 && !options.observer) {
    const HiddenPlan requested = plan_hidden_rows(batch, plan);
    if (std::ssize(requested.rows) < batch.num_rows()) {
      run_trimmed(*state_, weights, batch, plan, requested, cache);
      return hidden();
    }
  }
  ForwardUnits units(*state_, weights, batch, std::move(plan), num_kept, cache, options);
  run_all(units);
  return hidden();
}

std::unique_ptr<UnitSequence> Transformer::start_forward(const ModelWeights& weights,
                                                         const Batch& batch, KvCache& cache,
                                                         const ForwardOptions& options) {
  state_->head.holds_all_logits = false;
  BatchPlan plan = plan_batch(batch, cache);
  const std::int64_t num_kept = num_kept_rows(batch, plan, options);
  return std::make_unique<ForwardUnits>(*state_, weights, batch, std::move(plan), num_kept, cache,
                                        options);
}

ConstMatrix Transformer::hidden() const noexcept {
  return state_->forward.hidden.view();
}

std::unique_ptr<UnitSequence> Transformer::start_recall(const ModelWeights& weights,
                                                        const Batch& batch, KvCache& cache,
                                                        Activations& activations, KeySource keys,
                                                        std::int64_t window_tokens) {
  state_->head.holds_all_logits = false;
  return std::make_unique<RecallUnits>(*state_, weights, batch, cache, activations, std::move(keys),
                                       window_tokens);
}

}  // namespace tidemill::engines
