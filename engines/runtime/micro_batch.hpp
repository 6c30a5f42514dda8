// SPDX-License-Identifier: Apache-2.0
// A batch of whole sequences that one pass trains on or scores.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/reserved_pages.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/shared_prompts.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// Returns the number of rows that a sequence takes if it shares no prompt. The row of token t
/// predicts token t + 1, so the last row is the one before the last target. Returns 0 if there is
/// no target.
[[nodiscard]] std::int64_t num_rows(const TrainSequence& sequence) noexcept;

/// A flat batch of whole sequences and its cache pages, which the destructor releases.
///
/// The rows of the sequences follow each other. Sequences without targets take no rows. A shared
/// prompt has one set of rows, after those of the last sequence that shares it. If that sequence is
/// in a later micro-batch, this one computes the prompt only so that its keys and values can be
/// read, and its gradient is carried to the later one.
class MicroBatch {
public:
  /// Takes its pages from `reserved` or, if that is null, from those that the cache shares. Both
  /// arguments must outlive this object. At most one micro-batch at a time has `reserved`.
  explicit MicroBatch(RuntimeContext& context, ReservedPages* reserved = nullptr)
      : context_(context), reserved_(reserved) {}
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;
  ~MicroBatch();

  /// Appends `sequence`, which must outlive this object. If too few shared pages are free, evicts
  /// cached pages and, if the batch has no rows yet, preempts generation. Returns false and leaves
  /// the batch unchanged if that does not suffice; it preempts nothing if other jobs hold too many
  /// pages.
  [[nodiscard]] bool add(const TrainSequence& sequence, const SharedPrompt& prompt);

  [[nodiscard]] bool empty() const noexcept { return sequences_.empty(); }
  /// Returns the number of rows to compute.
  [[nodiscard]] std::int64_t rows() const noexcept { return num_rows_; }
  /// Returns the number of rows that `add` would add.
  [[nodiscard]] std::int64_t rows_of(const TrainSequence& sequence,
                                     const SharedPrompt& prompt) const noexcept;
  [[nodiscard]] std::span<const TrainSequence* const> sequences() const { return sequences_; }

  /// Starts the pass of `transformer` through the decoder, with at most `window_tokens` rows in a
  /// layer together. `hidden` returns its result. Requires `rows()` > 0.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_forward(Transformer& transformer,
                                                            const LaidOutWeights& weights,
                                                            Activations& activations,
                                                            std::int64_t window_tokens);
  /// Starts to recall the rows: restores the same state from kept rows, without running the
  /// decoder. Returns null unless `generated` has all rows.
  [[nodiscard]] std::unique_ptr<UnitSequence> start_recall(Transformer& transformer,
                                                           const LaidOutWeights& weights,
                                                           Activations& activations,
                                                           GeneratedRows& generated,
                                                           std::int64_t window_tokens);
  /// Returns the hidden states of the training rows, valid until the next pass of `transformer`.
  [[nodiscard]] ConstMatrix hidden(const Transformer& transformer) const;

  [[nodiscard]] const Batch& batch() const noexcept { return batch_; }
  /// Returns the target of each training row, or -1 for rows without one.
  [[nodiscard]] std::span<const std::int32_t> targets() const { return targets_; }
  /// Returns how many training rows each sequence and each shared prompt has, in row order.
  [[nodiscard]] std::vector<std::int64_t> sequence_rows() const;

  /// Consecutive tokens of a sequence whose rows follow each other too. The row of a token is the
  /// one that predicts it.
  struct TokenRange {
    const TrainSequence* sequence = nullptr;
    std::size_t first_token = 0;
    std::size_t first_row = 0;
    std::size_t count = 0;
  };
  /// Returns the tokens of the training rows [first, end), in row order.
  [[nodiscard]] std::vector<TokenRange> tokens_of(std::int64_t first, std::int64_t end) const;

  /// Converts values per training row to one column (T) per sequence, 0 where masked.
  [[nodiscard]] std::vector<std::vector<float>> to_columns(std::span<const float> rows) const;
  /// Converts columns (T) to values per training row.
  [[nodiscard]] std::vector<float> to_rows(const std::vector<std::vector<float>>& columns) const;

private:
  // Consecutive training rows of one sequence or of a shared prompt.
  struct Run {
    std::span<const std::int32_t> ids;
    std::vector<std::int32_t> pages;
    std::int64_t first_position = 0;
    std::size_t prompt = 0;  // index in `prompts_` of the prompt it follows; unused at position 0
  };
  struct Prompt {
    std::span<const std::int32_t> ids;
    std::vector<std::int32_t> pages;
    std::int64_t run = -1;  // index in `runs_` of its training rows; -1: not in this micro-batch
  };

  [[nodiscard]] bool starts_prompt(const SharedPrompt& prompt) const noexcept;
  [[nodiscard]] bool allocate(std::int64_t count, const SharedPrompt& prompt,
                              std::vector<std::int32_t>& pages);
  [[nodiscard]] bool take_shared(std::int64_t needed, std::vector<std::int32_t>& pages);
  [[nodiscard]] Segment segment_of(const Run& run, std::int64_t first_run,
                                   const Adapter* adapter) const;
  void train_prompt();
  void make_batch(const Adapter* adapter);
  [[nodiscard]] std::vector<DigestKey> row_keys(const LaidOutWeights& weights) const;
  [[nodiscard]] std::int64_t window_rows(std::int64_t window_tokens) const;

  RuntimeContext& context_;
  ReservedPages* reserved_;
  std::vector<const TrainSequence*> sequences_;
  std::vector<TokenRange> ranges_;  // of each sequence, all of its rows
  std::vector<Run> runs_;           // the training rows, in order
  std::vector<Prompt> prompts_;
  bool open_ = false;  // more sequences to come share the last prompt
  std::int64_t num_rows_ = 0;
  std::int64_t num_pages_ = 0;  // counted in `RuntimeContext::job_pages`
  std::vector<std::int32_t> targets_;
  Batch batch_;  // set by `make_batch`
};

}  // namespace tidemill::engines
