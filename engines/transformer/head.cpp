// SPDX-License-Identifier: Apache-2.0
// The language-model head: logits, log-probabilities of given tokens, and their gradients. It
// processes one chunk of rows at a time.
#include <algorithm>
#include <memory>
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

namespace {

void check_sizes(std::size_t num_targets, ConstMatrix hidden) {
  TIDEMILL_CHECK(static_cast<std::int64_t>(num_targets) == hidden.rows)
      << num_targets << " targets for " << hidden.rows << " rows";
}

// Computes log-probabilities, one chunk at a time, and reads them after the last chunk.
class LogprobUnits final : public Units {
public:
  LogprobUnits(Transformer::State& state, const HeadInput& input, std::span<float> logprobs,
               std::span<float> entropies)
      : s_(state),
        input_(input),
        logprobs_(logprobs),
        entropies_(entropies),
        chunks_(input.targets, input.options.chunk_rows) {
    check_sizes(input.targets.size(), input.hidden);
    TIDEMILL_CHECK(logprobs.size() == input.targets.size());
    TIDEMILL_CHECK(entropies.empty() || entropies.size() == input.targets.size());
    std::ranges::fill(logprobs, 0.0F);
    std::ranges::fill(entropies, 0.0F);
    s_.begin_head(input.hidden.rows, input.options.chunk_rows);
    s_.head.holds_all_logits = chunks_.num_chunks() == 1;
    if (!done()) {
      chunks_.prepare(s_);
      reserve(s_.head.logprobs, input.hidden.rows, chunks_.num_targets());
      reserve(s_.head.entropies, input.hidden.rows, chunks_.num_targets());
    }
  }

  [[nodiscard]] bool done() const override { return next_ == chunks_.num_chunks(); }

  void run() override {
    const TargetChunks::Chunk chunk = chunks_.chunk(next_);
    const Matrix logits = chunk_logits(*input_.weights, input_.adapter, input_.hidden,
                                       chunks_.rows(chunk), s_.ops, s_.head);
    s_.ops.log_softmax_gather(logits, chunks_.targets(chunk), 1.0F / input_.options.temperature,
                              of_chunk(s_.head.logprobs, chunk),
                              entropies_.empty() ? Vector() : of_chunk(s_.head.entropies, chunk));
    if (++next_ == chunks_.num_chunks()) {
      read_values(s_.head.logprobs, chunks_, s_.ops, logprobs_);
      if (!entropies_.empty()) {
        read_values(s_.head.entropies, chunks_, s_.ops, entropies_);
      }
    }
  }

private:
  Transformer::State& s_;
  HeadInput input_;
  std::span<float> logprobs_;
  std::span<float> entropies_;
  TargetChunks chunks_;
  std::int64_t next_ = 0;
};

// Propagates the gradients of log-probabilities and entropies, one chunk at a time.
class LogprobBackwardUnits final : public Units {
public:
  LogprobBackwardUnits(Transformer::State& state, const HeadInput& input,
                       const TokenGradients& upstream, Matrix dhidden, Gradients& gradients)
      : s_(state),
        input_(input),
        dhidden_(dhidden),
        gradients_(gradients),
        with_entropies_(!upstream.dentropies.empty()),
        chunks_(input.targets, input.options.chunk_rows) {
    check_sizes(input.targets.size(), input.hidden);
    TIDEMILL_CHECK(upstream.dlogprobs.size() == input.targets.size());
    TIDEMILL_CHECK(!with_entropies_ || upstream.dentropies.size() == input.targets.size());
    TIDEMILL_CHECK(dhidden.rows == input.hidden.rows && dhidden.cols == input.hidden.cols);
    held_ = upstream.follows_token_logprobs && s_.head.holds_all_logits;
    s_.head.holds_all_logits = false;  // the gradient overwrites them
    s_.begin_head(input.hidden.rows, input.options.chunk_rows);
    s_.ops.fill(0.0F, dhidden);
    if (!done()) {
      chunks_.prepare(s_);
      write_values(upstream.dlogprobs, dhidden.rows, chunks_, s_.ops, s_.head.dlogprobs);
      if (with_entropies_) {
        write_values(upstream.dentropies, dhidden.rows, chunks_, s_.ops, s_.head.dentropies);
      }
    }
  }

  [[nodiscard]] bool done() const override { return next_ == chunks_.num_chunks(); }

  void run() override {
    const TargetChunks::Chunk chunk = chunks_.chunk(next_++);
    const Matrix dlogits = held_ ? s_.head.logits.view()
                                 : chunk_logits(*input_.weights, input_.adapter, input_.hidden,
                                                chunks_.rows(chunk), s_.ops, s_.head);
    s_.ops.log_softmax_backward(
        dlogits, chunks_.targets(chunk), 1.0F / input_.options.temperature,
        of_chunk(s_.head.dlogprobs, chunk),
        with_entropies_ ? of_chunk(s_.head.dentropies, chunk) : ConstVector());
    const Matrix drows = s_.head.dhidden.reshape(chunk.size, input_.hidden.cols);
    head_backward(*input_.weights, head_bypass(input_.adapter), dlogits, s_.head.hidden.view(),
                  s_.ops, gradients_.head(), drows);
    s_.ops.copy_rows(drows, {}, dhidden_, chunks_.rows(chunk));
  }

private:
  Transformer::State& s_;
  HeadInput input_;
  Matrix dhidden_;
  Gradients& gradients_;
  bool with_entropies_;
  bool held_ = false;
  TargetChunks chunks_;
  std::int64_t next_ = 0;
};

}  // namespace

std::unique_ptr<Units> Transformer::start_token_logprobs(const HeadInput& input,
                                                         std::span<float> logprobs,
                                                         std::span<float> entropies) {
  return std::make_unique<LogprobUnits>(*state_, input, logprobs, entropies);
}

std::unique_ptr<Units> Transformer::start_token_logprobs_backward(const HeadInput& input,
                                                                  const TokenGradients& upstream,
                                                                  Matrix dhidden,
                                                                  Gradients& gradients) {
  return std::make_unique<LogprobBackwardUnits>(*state_, input, upstream, dhidden, gradients);
}

}  // namespace tidemill::engines
