// SPDX-License-Identifier: Apache-2.0
// The language-model head: logits, log-probabilities of given tokens, and their gradients. It
// processes one chunk of rows at a time.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

// Cuts the rows that have a target into chunks. Rows without a target cost nothing.
class TargetChunks {
public:
  TargetChunks(std::span<const std::int32_t> targets, std::int64_t chunk_rows)
      : chunk_rows_(static_cast<std::size_t>(chunk_rows)) {
    TIDEMILL_CHECK(chunk_rows > 0) << chunk_rows;
    for (std::size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] >= 0) {
        rows_.push_back(row);
        targets_.push_back(targets[row]);
      }
    }
  }

  struct Chunk {
    std::span<const std::size_t> rows;
    std::span<const std::int32_t> targets;
    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  };

  [[nodiscard]] std::size_t num_chunks() const {
    return (rows_.size() + chunk_rows_ - 1) / chunk_rows_;
  }
  [[nodiscard]] Chunk chunk(std::size_t index) const {
    const std::size_t first = index * chunk_rows_;
    const std::size_t count = std::min(chunk_rows_, rows_.size() - first);
    return {std::span(rows_).subspan(first, count), std::span(targets_).subspan(first, count)};
  }

private:
  std::size_t chunk_rows_;
  std::vector<std::size_t> rows_;
  std::vector<std::int32_t> targets_;
};

std::vector<float> gather(std::span<const float> values, std::span<const std::size_t> rows) {
  std::vector<float> gathered;
  if (!values.empty()) {
    gathered.reserve(rows.size());
    for (const std::size_t row : rows) {
      gathered.push_back(values[row]);
    }
  }
  return gathered;
}

const LinearBypass* head_bypass(const Adapter* adapter) {
  return adapter != nullptr ? adapter->head() : nullptr;
}

void compute_logits(const ModelWeights& weights, std::span<const AdapterRun> runs,
                    ConstMatrix hidden, Ops& ops, Matrix logits) {
  adapted_linear(
      {&weights.head(), {}}, runs, [](const Adapter& of_run) { return of_run.head(); }, hidden,
      Store::kOverwrite, logits, {}, ops);
}

// Gathers the chunk's rows of `hidden` and computes their logits.
Matrix chunk_logits(const ModelWeights& weights, const Adapter* adapter, ConstMatrix hidden,
                    const TargetChunks::Chunk& chunk, Ops& ops, HeadBuffers& buffers) {
  const Matrix rows = buffers.hidden.reshape(chunk.size(), hidden.cols);
  for (std::int64_t i = 0; i < chunk.size(); ++i) {
    const auto row = static_cast<std::int64_t>(chunk.rows[static_cast<std::size_t>(i)]);
    std::copy_n(hidden.row(row), hidden.cols, rows.row(i));
  }
  const Matrix logits = buffers.logits.reshape(chunk.size(), weights.head().out_features());
  const AdapterRun whole{adapter, 0, rows.rows};
  compute_logits(weights, {&whole, adapter != nullptr ? 1U : 0U}, rows, ops, logits);
  return logits;
}

}  // namespace

void Transformer::logits(const ModelWeights& weights, std::span<const AdapterRun> runs,
                         ConstMatrix hidden, Matrix logits) {
  compute_logits(weights, runs, hidden, state_->ops, logits);
}

void Transformer::token_logprobs(const ModelWeights& weights, const Adapter* adapter,
                                 ConstMatrix hidden, std::span<const std::int32_t> targets,
                                 const HeadOptions& options, std::span<float> logprobs,
                                 std::span<float> entropies) {
  TIDEMILL_CHECK(static_cast<std::int64_t>(targets.size()) == hidden.rows);
  TIDEMILL_CHECK(logprobs.size() == targets.size());
  TIDEMILL_CHECK(entropies.empty() || entropies.size() == targets.size());
  std::ranges::fill(logprobs, 0.0F);
  std::ranges::fill(entropies, 0.0F);
  const TargetChunks chunks(targets, options.chunk_rows);
  state_->head.borrow(state_->forward);
  state_->head.holds_all_logits = chunks.num_chunks() == 1;
  for (std::size_t index = 0; index < chunks.num_chunks(); ++index) {
    const TargetChunks::Chunk chunk = chunks.chunk(index);
    const Matrix logits = chunk_logits(weights, adapter, hidden, chunk, state_->ops, state_->head);
    std::vector<float> chunk_logprobs(chunk.rows.size());
    std::vector<float> chunk_entropies(entropies.empty() ? 0 : chunk.rows.size());
    state_->ops.log_softmax_gather(logits, chunk.targets, 1.0F / options.temperature,
                                   chunk_logprobs, chunk_entropies);
    for (std::size_t i = 0; i < chunk.rows.size(); ++i) {
      logprobs[chunk.rows[i]] = chunk_logprobs[i];
      if (!entropies.empty()) {
        entropies[chunk.rows[i]] = chunk_entropies[i];
      }
    }
  }
}

void Transformer::token_logprobs_backward(const ModelWeights& weights, const Adapter* adapter,
                                          ConstMatrix hidden, std::span<const std::int32_t> targets,
                                          const HeadOptions& options,
                                          const TokenGradients& upstream, Matrix dhidden,
                                          Gradients& gradients) {
  TIDEMILL_CHECK(static_cast<std::int64_t>(targets.size()) == hidden.rows);
  TIDEMILL_CHECK(upstream.dlogprobs.size() == targets.size());
  TIDEMILL_CHECK(upstream.dentropies.empty() || upstream.dentropies.size() == targets.size());
  TIDEMILL_CHECK(dhidden.rows == hidden.rows && dhidden.cols == hidden.cols);
  Ops& ops = state_->ops;
  const bool held = upstream.follows_token_logprobs && state_->head.holds_all_logits;
  state_->head.holds_all_logits = false;  // the gradient overwrites them
  state_->head.borrow(state_->forward);
  for (std::int64_t row = 0; row < dhidden.rows; ++row) {
    std::fill_n(dhidden.row(row), dhidden.cols, 0.0F);
  }
  const TargetChunks chunks(targets, options.chunk_rows);
  for (std::size_t index = 0; index < chunks.num_chunks(); ++index) {
    const TargetChunks::Chunk chunk = chunks.chunk(index);
    const Matrix dlogits = held ? state_->head.logits.view()
                                : chunk_logits(weights, adapter, hidden, chunk, ops, state_->head);
    ops.log_softmax_backward(dlogits, chunk.targets, 1.0F / options.temperature,
                             gather(upstream.dlogprobs, chunk.rows),
                             gather(upstream.dentropies, chunk.rows));
    const ConstMatrix rows = state_->head.hidden.view();
    const Matrix drows = state_->head.dhidden.reshape(chunk.size(), hidden.cols);
    if (const LinearBypass* bypass = head_bypass(adapter)) {
      bypass->backward({&weights.head(), {}}, dlogits, rows, {}, Store::kOverwrite, &drows,
                       gradients.head(), ops);
    } else {
      if (gradients.head().weight.data != nullptr) {
        ops.linear_backward_weight(dlogits, rows, gradients.head().weight);
      }
      for (std::int64_t first = 0; first < drows.rows; first += kHeadGradientRows) {
        const std::int64_t count = std::min(kHeadGradientRows, drows.rows - first);
        ops.linear_backward_input(dlogits.slice_rows(first, count), weights.head(),
                                  Store::kOverwrite, drows.slice_rows(first, count));
      }
    }
    for (std::int64_t i = 0; i < chunk.size(); ++i) {
      const auto row = static_cast<std::int64_t>(chunk.rows[static_cast<std::size_t>(i)]);
      std::copy_n(drows.row(i), hidden.cols, dhidden.row(row));
    }
  }
}

}  // namespace tidemill::engines
