// SPDX-License-Identifier: Apache-2.0
// The language-model head: logits, log-probabilities of given tokens, and their gradients. It
// processes one chunk of rows at a time.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "engines/transformer/adapter_rows.hpp"
#include "engines/transformer/transformer_state.hpp"

namespace tidemill::engines {
namespace {

// The rows that have a target, cut into chunks. Rows without a target cost nothing. If sums cannot
// be cut after any row, the chunks of each sequence are its own (R2 of ops.hpp).
class TargetChunks {
public:
  TargetChunks(const HeadInput& input, std::int64_t row_sum_step)
      : chunk_rows_(input.options.chunk_rows) {
    TIDEMILL_CHECK(chunk_rows_ > 0 && chunk_rows_ % row_sum_step == 0)
        << "chunks of " << chunk_rows_ << " for sums over " << row_sum_step;
    const std::int64_t num_rows = std::ssize(input.targets);
    if (row_sum_step == 1 || input.sequence_rows.empty()) {
      add_sequence(input.targets, 0, num_rows);
      return;
    }
    std::int64_t first = 0;
    for (const std::int64_t count : input.sequence_rows) {
      add_sequence(input.targets, first, count);
      first += count;
    }
    TIDEMILL_CHECK(first == num_rows) << first << " rows in sequences, " << num_rows << " targets";
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
  [[nodiscard]] std::int64_t num_chunks() const { return std::ssize(chunks_); }
  [[nodiscard]] Chunk chunk(std::int64_t index) const {
    return chunks_[static_cast<std::size_t>(index)];
  }
  /// Return the rows, and the targets, of a chunk. Require `prepare`.
  [[nodiscard]] IndexList rows(const Chunk& chunk) const {
    return row_list_.slice(chunk.first, chunk.size);
  }
  [[nodiscard]] IndexList targets(const Chunk& chunk) const {
    return target_list_.slice(chunk.first, chunk.size);
  }

  /// Returns all rows that have a target as one chunk.
  [[nodiscard]] Chunk all() const { return {0, num_targets()}; }
  /// Returns the first row of a chunk, and the row after its last.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> row_range(const Chunk& chunk) const {
    const std::span<const std::int32_t> rows = rows_of(chunk);
    return {rows.front(), rows.back() + 1};
  }
  /// Returns the values of the rows of a chunk that have a target.
  [[nodiscard]] std::vector<float> gather(const Chunk& chunk, std::span<const float> values) const {
    std::vector<float> gathered;
    gathered.reserve(static_cast<std::size_t>(chunk.size));
    for (const std::int32_t row : rows_of(chunk)) {
      gathered.push_back(values[static_cast<std::size_t>(row)]);
    }
    return gathered;
  }
  /// Writes `values`, one for each row of a chunk that has a target, to those rows.
  void scatter(const Chunk& chunk, std::span<const float> values, std::span<float> to) const {
    for (std::size_t i = 0; const std::int32_t row : rows_of(chunk)) {
      to[static_cast<std::size_t>(row)] = values[i++];
    }
  }

private:
  [[nodiscard]] std::span<const std::int32_t> rows_of(const Chunk& chunk) const {
    return std::span(rows_).subspan(static_cast<std::size_t>(chunk.first),
                                    static_cast<std::size_t>(chunk.size));
  }
  // Adds the rows [first, first + count) that have a target, in chunks of their own.
  void add_sequence(std::span<const std::int32_t> targets, std::int64_t first, std::int64_t count) {
    const std::int64_t begin = num_targets();
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int32_t target = targets[static_cast<std::size_t>(row)];
      if (target >= 0) {
        rows_.push_back(static_cast<std::int32_t>(row));
        targets_.push_back(target);
      }
    }
    for (std::int64_t at = begin; at < num_targets(); at += chunk_rows_) {
      chunks_.push_back({at, std::min(chunk_rows_, num_targets() - at)});
    }
  }

  std::int64_t chunk_rows_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> targets_;
  std::vector<Chunk> chunks_;
  IndexList row_list_;
  IndexList target_list_;
};

const LinearBypass* head_bypass(const Adapter* adapter) {
  return adapter != nullptr ? adapter->head() : nullptr;
}

// Features cut into parts of the same size, except the last.
class FeatureParts {
public:
  struct Part {
    std::int64_t first = 0;
    std::int64_t size = 0;
  };

  // The size of a part is at least `size`, rounded up to what operations can cut. 0: one part.
  FeatureParts(std::int64_t features, std::int64_t size)
      : features_(features),
        size_(size > 0 ? (size + kFeatureStep - 1) / kFeatureStep * kFeatureStep : features) {}

  [[nodiscard]] std::int64_t count() const { return (features_ + size_ - 1) / size_; }
  [[nodiscard]] Part part(std::int64_t index) const {
    return {index * size_, std::min(size_, features_ - index * size_)};
  }

private:
  std::int64_t features_;
  std::int64_t size_;
};

// The head over the rows of a chunk, part by part. An adapter that changes the head makes each
// product one part.
class HeadProducts {
public:
  HeadProducts(const HeadInput& input, Ops& ops, HeadBuffers& buffers)
      : input_(input),
        head_(input.weights->head()),
        bypass_(head_bypass(input.adapter)),
        ops_(ops),
        b_(buffers),
        outputs_(head_.out_features(), bypass_ != nullptr ? 0 : input.options.unit_features),
        inputs_(head_.in_features(),
                bypass_ != nullptr
                    ? 0
                    : input.options.unit_features * head_.in_features() / head_.out_features()) {}

  [[nodiscard]] std::int64_t num_logit_parts() const { return outputs_.count(); }
  // Computes a part of the chunk's logits. The first gathers the rows.
  void logits(std::int64_t index, IndexList chunk_rows) {
    const std::int64_t cols = input_.hidden.cols;
    if (index == 0) {
      ops_.copy_rows(input_.hidden, chunk_rows, b_.hidden.reshape(chunk_rows.size, cols), {});
      b_.logits.reshape(chunk_rows.size, head_.out_features());
    }
    const ConstMatrix rows = b_.hidden.view();
    if (bypass_ != nullptr) {
      bypass_->forward({&head_, {}}, rows, Store::kOverwrite, b_.logits.view(), ops_);
      return;
    }
    const auto [first, size] = outputs_.part(index);
    const LinearTerm term{&head_, {}, b_.logits.view().slice_cols(first, size), first};
    ops_.linear_group(rows, {&term, 1}, Store::kOverwrite);
  }

  [[nodiscard]] std::int64_t num_gradient_parts(const LinearGradient& gradient) const {
    return num_weight_parts(gradient) + inputs_.count();
  }
  // Computes a part of the gradients of the head's weight, then of its input, given those of the
  // logits.
  void gradients(std::int64_t index, const LinearGradient& gradient) {
    const ConstMatrix dlogits = b_.logits.view();
    const ConstMatrix rows = b_.hidden.view();
    const Matrix drows = b_.dhidden.reshape(rows.rows, rows.cols);
    if (bypass_ != nullptr) {
      bypass_->backward({&head_, {}}, dlogits, rows, {}, Store::kOverwrite, &drows, gradient, ops_);
      return;
    }
    const std::int64_t num_weight = num_weight_parts(gradient);
    if (index < num_weight) {
      const auto [first, size] = outputs_.part(index);
      ops_.linear_backward_weight(dlogits.slice_cols(first, size), rows,
                                  gradient.weight.slice_rows(first, size));
      return;
    }
    const auto [first, size] = inputs_.part(index - num_weight);
    for (std::int64_t row = 0; row < drows.rows; row += kHeadGradientRows) {
      const std::int64_t count = std::min(kHeadGradientRows, drows.rows - row);
      ops_.linear_backward_input(dlogits.slice_rows(row, count), head_, first, Store::kOverwrite,
                                 drows.slice_rows(row, count).slice_cols(first, size));
    }
  }

private:
  [[nodiscard]] std::int64_t num_weight_parts(const LinearGradient& gradient) const {
    return bypass_ == nullptr && !gradient.weight.is_null() ? outputs_.count() : 0;
  }

  HeadInput input_;
  const PreparedWeight& head_;
  const LinearBypass* bypass_;
  Ops& ops_;
  HeadBuffers& b_;
  FeatureParts outputs_;
  FeatureParts inputs_;
};

// Returns the entries of a chunk.
Vector of_chunk(const DeviceMatrix& values, const TargetChunks::Chunk& chunk) {
  return values.elements().slice(chunk.first, chunk.size);
}

// Makes room for a value of each target, and for `rows` values at most.
void reserve(DeviceMatrix& values, std::int64_t rows, std::int64_t num_targets) {
  values.reshape(rows, 1);
  values.resize_rows(num_targets);
}

// Reads the values of a chunk's targets to their rows in `to`.
void read_values(const DeviceMatrix& values, const TargetChunks& chunks,
                 const TargetChunks::Chunk& chunk, Ops& ops, std::span<float> to) {
  std::vector<float> read(static_cast<std::size_t>(chunk.size));
  const Status status = ops.read(values.view().slice_rows(chunk.first, chunk.size), read);
  TIDEMILL_CHECK(status.ok()) << status.to_string();
  chunks.scatter(chunk, read, to);
}

// Writes the values of a chunk's targets, given those of all rows.
void write_values(std::span<const float> from, const TargetChunks& chunks,
                  const TargetChunks::Chunk& chunk, Ops& ops, DeviceMatrix& values) {
  ops.write(chunks.gather(chunk, from), values.view().slice_rows(chunk.first, chunk.size));
}

}  // namespace

void Transformer::logits(const ModelWeights& weights, std::span<const AdapterRun> runs,
                         ConstMatrix hidden, Matrix logits) {
  const auto find = [](const Adapter& adapter) { return adapter.head(); };
  AdapterLists lists;
  if (std::ranges::any_of(runs,
                          [&](const AdapterRun& run) { return find(*run.adapter) != nullptr; })) {
    PassContents contents;
    const AdapterRanges ranges = add_adapters(runs, hidden.rows, contents);
    lists = lists_at(ranges, state_->prepare(std::move(contents), state_->logits_pass));
  }
  adapted_linear({&weights.head(), {}}, runs, lists, find, hidden, Store::kOverwrite, logits, {},
                 state_->ops);
}

namespace {

void check_sizes(std::size_t num_targets, ConstMatrix hidden) {
  TIDEMILL_CHECK(static_cast<std::int64_t>(num_targets) == hidden.rows)
      << num_targets << " targets for " << hidden.rows << " rows";
}

// Computes log-probabilities, one chunk at a time, and reads them after the last chunk.
class LogprobUnits final : public UnitSequence {
public:
  LogprobUnits(Transformer::State& state, const HeadInput& input, std::span<float> logprobs,
               std::span<float> entropies)
      : s_(state),
        input_(input),
        logprobs_(logprobs),
        entropies_(entropies),
        chunks_(input, state.ops.traits().row_sum_step),
        products_(input, state.ops, state.head) {
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

  [[nodiscard]] UnitKind next() const override {
    const bool last = part_ + 1 == products_.num_logit_parts();
    return {UnitStage::kHead, static_cast<std::uint8_t>(last ? 1 : 0), chunks_.chunk(next_).size,
            0};
  }

  void run() override {
    const TargetChunks::Chunk chunk = chunks_.chunk(next_);
    products_.logits(part_, chunks_.rows(chunk));
    if (++part_ < products_.num_logit_parts()) {
      return;
    }
    part_ = 0;
    s_.ops.log_softmax_gather(s_.head.logits.view(), chunks_.targets(chunk),
                              1.0F / input_.options.temperature, of_chunk(s_.head.logprobs, chunk),
                              entropies_.empty() ? Vector() : of_chunk(s_.head.entropies, chunk));
    if (++next_ == chunks_.num_chunks()) {
      read_values(s_.head.logprobs, chunks_, chunks_.all(), s_.ops, logprobs_);
      if (!entropies_.empty()) {
        read_values(s_.head.entropies, chunks_, chunks_.all(), s_.ops, entropies_);
      }
    }
  }

private:
  Transformer::State& s_;
  HeadInput input_;
  std::span<float> logprobs_;
  std::span<float> entropies_;
  TargetChunks chunks_;
  HeadProducts products_;
  std::int64_t next_ = 0;  // chunk
  std::int64_t part_ = 0;  // of its logits
};

// Propagates the gradients of log-probabilities and entropies, one chunk at a time: its logits part
// by part, their gradients, and those of the head part by part. If a loss sets the gradients of a
// chunk, computes the log-probabilities that it needs first.
class LogprobBackwardUnits final : public UnitSequence {
public:
  // The gradients of all rows are known.
  LogprobBackwardUnits(Transformer::State& state, const HeadInput& input,
                       const TokenGradients& upstream, Matrix dhidden, Gradients& gradients)
      : LogprobBackwardUnits(state, input, !upstream.dentropies.empty(), dhidden, gradients) {
    TIDEMILL_CHECK(upstream.dlogprobs.size() == input.targets.size());
    TIDEMILL_CHECK(!with_entropies_ || upstream.dentropies.size() == input.targets.size());
    if (upstream.follows_token_logprobs && s_.head.holds_all_logits) {
      stage_ = Stage::kSoftmax;  // the logits of the only chunk are there
    }
    begin();
    if (!done()) {
      write_gradients(chunks_.all(), upstream.dlogprobs, upstream.dentropies);
    }
  }

  // A loss sets the gradients.
  LogprobBackwardUnits(Transformer::State& state, const HeadInput& input, TokenLossValues loss,
                       Matrix dhidden, Gradients& gradients)
      : LogprobBackwardUnits(state, input, true, dhidden, gradients) {
    loss_ = std::move(loss);
    for (const std::size_t size : {loss_.logprobs.size(), loss_.entropies.size(),
                                   loss_.dlogprobs.size(), loss_.dentropies.size()}) {
      TIDEMILL_CHECK(size == input.targets.size()) << size;
    }
    std::ranges::fill(loss_.logprobs, 0.0F);
    std::ranges::fill(loss_.entropies, 0.0F);
    begin();
  }

  [[nodiscard]] bool done() const override { return next_ == chunks_.num_chunks(); }

  [[nodiscard]] UnitKind next() const override {
    return {UnitStage::kHeadBackward, static_cast<std::uint8_t>(stage_), chunks_.chunk(next_).size,
            0};
  }

  void run() override {
    const TargetChunks::Chunk chunk = chunks_.chunk(next_);
    switch (stage_) {
      case Stage::kLogits:
        products_.logits(part_, chunks_.rows(chunk));
        go_on(products_.num_logit_parts(), loss_.set_gradients ? Stage::kLoss : Stage::kSoftmax);
        break;
      case Stage::kLoss:
        run_loss(chunk);
        stage_ = Stage::kSoftmax;
        break;
      case Stage::kSoftmax:
        s_.ops.log_softmax_backward(
            s_.head.logits.view(), chunks_.targets(chunk), 1.0F / input_.options.temperature,
            of_chunk(s_.head.dlogprobs, chunk),
            with_entropies_ ? of_chunk(s_.head.dentropies, chunk) : ConstVector());
        stage_ = Stage::kGradients;
        break;
      case Stage::kGradients:
        products_.gradients(part_, gradients_.head());
        if (go_on(products_.num_gradient_parts(gradients_.head()), Stage::kLogits)) {
          s_.ops.copy_rows(s_.head.dhidden.view(), {}, dhidden_, chunks_.rows(chunk));
          ++next_;
        }
        break;
    }
  }

private:
  enum class Stage { kLogits, kLoss, kSoftmax, kGradients };

  LogprobBackwardUnits(Transformer::State& state, const HeadInput& input, bool with_entropies,
                       Matrix dhidden, Gradients& gradients)
      : s_(state),
        input_(input),
        dhidden_(dhidden),
        gradients_(gradients),
        with_entropies_(with_entropies),
        chunks_(input, state.ops.traits().row_sum_step),
        products_(input, state.ops, state.head) {
    check_sizes(input.targets.size(), input.hidden);
    TIDEMILL_CHECK(dhidden.rows == input.hidden.rows && dhidden.cols == input.hidden.cols);
  }

  void begin() {
    s_.head.holds_all_logits = false;  // the gradient overwrites them
    s_.begin_head(input_.hidden.rows, input_.options.chunk_rows);
    s_.ops.fill(0.0F, dhidden_);
    if (!done()) {
      chunks_.prepare(s_);
      for (DeviceMatrix* values :
           {&s_.head.logprobs, &s_.head.entropies, &s_.head.dlogprobs, &s_.head.dentropies}) {
        reserve(*values, input_.hidden.rows, chunks_.num_targets());
      }
    }
  }

  void write_gradients(const TargetChunks::Chunk& chunk, std::span<const float> dlogprobs,
                       std::span<const float> dentropies) {
    write_values(dlogprobs, chunks_, chunk, s_.ops, s_.head.dlogprobs);
    if (with_entropies_) {
      write_values(dentropies, chunks_, chunk, s_.ops, s_.head.dentropies);
    }
  }

  // Has the loss set the gradients of a chunk.
  void run_loss(const TargetChunks::Chunk& chunk) {
    s_.ops.log_softmax_gather(s_.head.logits.view(), chunks_.targets(chunk),
                              1.0F / input_.options.temperature, of_chunk(s_.head.logprobs, chunk),
                              of_chunk(s_.head.entropies, chunk));
    read_values(s_.head.logprobs, chunks_, chunk, s_.ops, loss_.logprobs);
    read_values(s_.head.entropies, chunks_, chunk, s_.ops, loss_.entropies);
    const auto [first, end] = chunks_.row_range(chunk);
    loss_.set_gradients(first, end);
    write_gradients(chunk, loss_.dlogprobs, loss_.dentropies);
  }

  // Goes on to the next part or, after the last of `count`, to `next`. Returns whether that was the
  // last.
  bool go_on(std::int64_t count, Stage next) {
    if (++part_ < count) {
      return false;
    }
    part_ = 0;
    stage_ = next;
    return true;
  }

  Transformer::State& s_;
  HeadInput input_;
  Matrix dhidden_;
  Gradients& gradients_;
  bool with_entropies_;
  TokenLossValues loss_;  // `set_gradients` is null if the gradients are known
  TargetChunks chunks_;
  HeadProducts products_;
  std::int64_t next_ = 0;  // chunk
  Stage stage_ = Stage::kLogits;
  std::int64_t part_ = 0;  // of the stage
};

}  // namespace

std::unique_ptr<UnitSequence> Transformer::start_token_logprobs(const HeadInput& input,
                                                                std::span<float> logprobs,
                                                                std::span<float> entropies) {
  return std::make_unique<LogprobUnits>(*state_, input, logprobs, entropies);
}

std::unique_ptr<UnitSequence> Transformer::start_token_logprobs_backward(
    const HeadInput& input, const TokenGradients& upstream, Matrix dhidden, Gradients& gradients) {
  return std::make_unique<LogprobBackwardUnits>(*state_, input, upstream, dhidden, gradients);
}

std::unique_ptr<UnitSequence> Transformer::start_token_loss(const HeadInput& input,
                                                            TokenLossValues values, Matrix dhidden,
                                                            Gradients& gradients) {
  return std::make_unique<LogprobBackwardUnits>(*state_, input, std::move(values), dhidden,
                                                gradients);
}

}  // namespace tidemill::engines
