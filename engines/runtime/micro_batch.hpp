// SPDX-License-Identifier: Apache-2.0
// Whole sequences that are trained on, or scored, in one pass.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engines/runtime/device.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/shared_prompts.hpp"
#include "engines/runtime/weight_shelf.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Returns the rows that a sequence takes alone: the row of token t predicts token t + 1, so rows
/// end before its last target. 0: there is no target and nothing to compute.
[[nodiscard]] std::int64_t num_rows(const TrainSequence& sequence) noexcept;

/// The flat batch of some sequences, with its cache pages, which it returns when it goes.
///
/// Sequences come one after the other; those without targets take no rows. A prompt that several
/// share has one set of rows, behind the last of them; while their last is yet to come, in another
/// micro-batch, it is computed to be read alone and its gradient is carried there.
class MicroBatch {
public:
  /// `device` must outlive it.
  explicit MicroBatch(Device& device) : device_(device) {}
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;
  ~MicroBatch();

  /// Appends `sequence`, which must outlive this. Returns false, changing nothing, when its pages
  /// are not free; the first one with rows has generation make room.
  [[nodiscard]] bool add(const TrainSequence& sequence, const SharedPrompt& prompt);

  [[nodiscard]] bool empty() const noexcept { return sequences_.empty(); }
  /// Returns the rows that are computed.
  [[nodiscard]] std::int64_t rows() const noexcept { return num_rows_; }
  /// Returns the rows that `add` would add.
  [[nodiscard]] std::int64_t rows_of(const TrainSequence& sequence,
                                     const SharedPrompt& prompt) const noexcept;
  [[nodiscard]] std::span<const TrainSequence* const> sequences() const { return sequences_; }

  /// Runs the decoder. Returns the hidden states of the training rows, borrowed until the next
  /// forward of the device. Requires rows.
  [[nodiscard]] ConstMatrix forward(const LaidOutWeights& weights, Activations& activations);
  /// The same from what generation has kept of all its rows, or nothing if it has not.
  [[nodiscard]] std::optional<ConstMatrix> recall(const LaidOutWeights& weights,
                                                  Activations& activations,
                                                  GeneratedRows& generated);

  [[nodiscard]] const Batch& batch() const noexcept { return batch_; }
  /// Returns what each training row predicts, -1 for nothing.
  [[nodiscard]] std::span<const std::int32_t> targets() const { return targets_; }

  /// Returns values by training row as one column (T) per sequence: 0 where masked.
  [[nodiscard]] std::vector<std::vector<float>> to_columns(std::span<const float> rows) const;
  /// Returns columns (T) as values by training row.
  [[nodiscard]] std::vector<float> to_rows(const std::vector<std::vector<float>>& columns) const;

private:
  // Neighbouring rows of one sequence, or of a shared prompt.
  struct Run {
    std::span<const std::int32_t> ids;
    std::vector<std::int32_t> pages;
    std::int64_t first_position = 0;
    std::size_t prompt = 0;  // which of `prompts_` it follows, when it does not begin at 0
  };
  struct Prompt {
    std::span<const std::int32_t> ids;
    std::vector<std::int32_t> pages;
    std::int64_t run = -1;  // where its rows are trained on; -1: not here
  };
  // Where a sequence's values are: row first_row + i belongs to token first_token + i.
  struct Place {
    std::size_t first_row = 0;
    std::size_t first_token = 0;
    std::size_t count = 0;
  };

  [[nodiscard]] bool opens(const SharedPrompt& prompt) const noexcept;
  [[nodiscard]] bool allocate(std::int64_t count, const SharedPrompt& prompt,
                              std::vector<std::int32_t>& pages);
  [[nodiscard]] Segment segment_of(const Run& run, std::int64_t first_run,
                                   const Adapter* adapter) const;
  void train_prompt();
  void make_batch(const Adapter* adapter);
  [[nodiscard]] std::vector<DigestKey> row_names(const LaidOutWeights& weights) const;
  [[nodiscard]] ConstMatrix training_rows(ConstMatrix hidden) const;

  Device& device_;
  std::vector<const TrainSequence*> sequences_;
  std::vector<Place> places_;  // of each sequence
  std::vector<Run> runs_;      // the training rows
  std::vector<Prompt> prompts_;
  bool open_ = false;  // more sequences share the last prompt
  std::int64_t num_rows_ = 0;
  std::vector<std::int32_t> targets_;
  Batch batch_;  // made by `make_batch`
};

}  // namespace tidemill::engines
