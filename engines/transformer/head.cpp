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

// The rows that have a target, cut into chunks. Rows without a target cost nothing.
class TargetChunks {
public:
  TargetChunks(std::span<const std::int32_t> targets, std::int64_t chunk_rows)
      : chunk_rows_(chunk_rows) {
    TIDEMILL_CHECK(chunk_rows > 0) << chunk_rows;
    for (std::size_t row = 0; row < targets.size(); ++row) {
      if (targets[row] >= 0) {
        rows_.push_back(static_cast<std::int32_t>(row));
        targets_.push_back(targets[row]);
      }
    }
  }

  struct Chunk {
    std::int64_t first = 0;  // among the rows that have a target
    std::int64_t size = 0;
  };

  /// Uploads the lists of all chunks.
  void prepare(Transformer::State& state) {
    PassContents contents;
    const PassRange rows = contents.add_indices(rows_);
    const PassRange targets = contents.add_indices(targets_);
    const PreparedPass& pass = state.prepare(std::move(contents), state.head_pass);
    row_list_ = pass.indices(rows);
    target_list_ = pass.indices(targets);
  }

  [[nodiscard]] std::int64_t num_targets() const { return std::ssize(rows_); }
  [[nodiscard]] std::int64_t num_chunks() const {
    return (num_targets() + chunk_rows_ - 1) / chunk_rows_;
  }
  [[nodiscard]] Chunk chunk(std::int64_t index) const {
    const std::int64_t first = index * chunk_rows_;
    return {first, std::min(chunk_rows_, num_targets() - first)};
  }
  /// Return the rows, and the targets, of a chunk. Require `prepare`.
  [[nodiscard]] IndexList rows(const Chunk& chunk) const {
    return row_list_.slice(chunk.first, chunk.size);
  }
  [[nodiscard]] IndexList targets(const Chunk& chunk) const {
    return target_list_.slice(chunk.first, chunk.size);
  }

  /// Returns the values of the rows that have a target.
  [[nodiscard]] std::vector<float> gather(std::span<const float> values) const {
    std::vector<float> gathered;
    gathered.reserve(rows_.size());
    for (const std::int32_t row : rows_) {
      gathered.push_back(values[static_cast<std::size_t>(row)]);
    }
    return gathered;
  }
  /// Writes `values`, one for each row that has a target, to those rows.
  void scatter(std::span<const float> values, std::span<float> to) const {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      to[static_cast<std::size_t>(rows_[i])] = values[i];
    }
  }

private:
  std::int64_t chunk_rows_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> targets_;
  IndexList row_list_;
  IndexList target_list_;
};

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
                    IndexList chunk_rows, Ops& ops, HeadBuffers& buffers) {
  const Matrix rows = buffers.hidden.reshape(chunk_rows.size, hidden.cols);
  ops.copy_rows(hidden, chunk_rows, rows, {});
  const Matrix logits = buffers.logits.reshape(chunk_rows.size, weights.head().out_features());
  const AdapterRun whole{adapter, 0, rows.rows};
  compute_logits(weights, {&whole, adapter != nullptr ? 1U : 0U}, rows, ops, logits);
  return logits;
}

// Computes the gradients of the head and of its input, given those of the logits.
void head_backward(const ModelWeights& weights, const LinearBypass* bypass, ConstMatrix dlogits,
                   ConstMatrix rows, Ops& ops, const LinearGradient& gradient, Matrix drows) {
  if (bypass != nullptr) {
    bypass->backward({&weights.head(), {}}, dlogits, rows, {}, Store::kOverwrite, &drows, gradient,
                     ops);
    return;
  }
  if (!gradient.weight.is_null()) {
    ops.linear_backward_weight(dlogits, rows, gradient.weight);
  }
  for (std::int64_t first = 0; first < drows.rows; first += kHeadGradientRows) {
    const std::int64_t count = std::min(kHeadGradientRows, drows.rows - first);
    ops.linear_backward_input(dlogits.slice_rows(first, count), weights.head(), Store::kOverwrite,
                              drows.slice_rows(first, count));
  }
}

// Returns the entries of a chunk.
Vector of_chunk(const DeviceMatrix& values, const TargetChunks::Chunk& chunk) {
  return values.elements().slice(chunk.first, chunk.size);
}

// Makes room for a value of each target, and for `rows` values at most.
void reserve(DeviceMatrix& values, std::int64_t rows, std::int64_t num_targets) {
  values.reshape(rows, 1);
  values.resize_rows(num_targets);
}

// Reads the values of all targets to their rows in `to`.
void read_values(const DeviceMatrix& values, const TargetChunks& chunks, Ops& ops,
                 std::span<float> to) {
  std::vector<float> read(static_cast<std::size_t>(chunks.num_targets()));
  const Status status = ops.read(values.view(), read);
  TIDEMILL_CHECK(status.ok()) << status.to_string();
  chunks.scatter(read, to);
}

// Writes the values of all targets, given those of all rows.
void write_values(std::span<const float> from, std::int64_t rows, const TargetChunks& chunks,
                  Ops& ops, DeviceMatrix& values) {
  reserve(values, rows, chunks.num_targets());
  ops.write(chunks.gather(from), values.view());
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
  State& s = *state_;
  TargetChunks chunks(targets, options.chunk_rows);
  s.head.borrow(s.forward);
  s.head.holds_all_logits = chunks.num_chunks() == 1;
  if (chunks.num_chunks() == 0) {
    return;
  }
  chunks.prepare(s);
  reserve(s.head.logprobs, hidden.rows, chunks.num_targets());
  reserve(s.head.entropies, hidden.rows, chunks.num_targets());
  for (std::int64_t index = 0; index < chunks.num_chunks(); ++index) {
    const TargetChunks::Chunk chunk = chunks.chunk(index);
    const Matrix logits = chunk_logits(weights, adapter, hidden, chunks.rows(chunk), s.ops, s.head);
    s.ops.log_softmax_gather(logits, chunks.targets(chunk), 1.0F / options.temperature,
                             of_chunk(s.head.logprobs, chunk),
                             entropies.empty() ? Vector() : of_chunk(s.head.entropies, chunk));
  }
  read_values(s.head.logprobs, chunks, s.ops, logprobs);
  if (!entropies.empty()) {
    read_values(s.head.entropies, chunks, s.ops, entropies);
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
  State& s = *state_;
  const bool held = upstream.follows_token_logprobs && s.head.holds_all_logits;
  s.head.holds_all_logits = false;  // the gradient overwrites them
  s.head.borrow(s.forward);
  s.ops.fill(0.0F, dhidden);
  TargetChunks chunks(targets, options.chunk_rows);
  if (chunks.num_chunks() == 0) {
    return;
  }
  chunks.prepare(s);
  write_values(upstream.dlogprobs, hidden.rows, chunks, s.ops, s.head.dlogprobs);
  if (!upstream.dentropies.empty()) {
    write_values(upstream.dentropies, hidden.rows, chunks, s.ops, s.head.dentropies);
  }
  for (std::int64_t index = 0; index < chunks.num_chunks(); ++index) {
    const TargetChunks::Chunk chunk = chunks.chunk(index);
    const Matrix dlogits =
        held ? s.head.logits.view()
             : chunk_logits(weights, adapter, hidden, chunks.rows(chunk), s.ops, s.head);
    s.ops.log_softmax_backward(
        dlogits, chunks.targets(chunk), 1.0F / options.temperature,
        of_chunk(s.head.dlogprobs, chunk),
        upstream.dentropies.empty() ? ConstVector() : of_chunk(s.head.dentropies, chunk));
    const Matrix drows = s.head.dhidden.reshape(chunk.size, hidden.cols);
    head_backward(weights, head_bypass(adapter), dlogits, s.head.hidden.view(), s.ops,
                  gradients.head(), drows);
    s.ops.copy_rows(drows, {}, dhidden, chunks.rows(chunk));
  }
}

}  // namespace tidemill::engines
