// SPDX-License-Identifier: Apache-2.0
// Whole sequences that are trained on, or scored, in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/runtime/device.hpp"
#include "engines/runtime/weight_shelf.hpp"
#include "engines/train_engine.hpp"

namespace tidemill::engines {

/// Returns the rows that a sequence takes: the row of token t predicts token t + 1, so rows end
/// before its last target. 0: there is no target and nothing to compute.
[[nodiscard]] std::int64_t num_rows(const TrainSequence& sequence) noexcept;

/// The flat batch of some sequences, with its cache pages, which it returns when it goes.
///
/// Sequences come one after the other; those without targets take no rows.
class MicroBatch {
public:
  /// `device` must outlive it.
  explicit MicroBatch(Device& device) : device_(device) {}
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;
  ~MicroBatch();

  /// Appends `sequence`, which must outlive this. Returns false, changing nothing, when its pages
  /// are not free; the first one with rows has generation make room.
  [[nodiscard]] bool add(const TrainSequence& sequence);

  [[nodiscard]] bool empty() const noexcept { return sequences_.empty(); }
  [[nodiscard]] std::int64_t rows() const noexcept { return batch_.num_rows(); }
  [[nodiscard]] std::span<const TrainSequence* const> sequences() const { return sequences_; }

  /// Runs the decoder; the hidden states are borrowed until the next forward of the device.
  /// Requires rows.
  [[nodiscard]] ConstMatrix forward(const LaidOutWeights& weights, Activations& activations);

  [[nodiscard]] const Batch& batch() const noexcept { return batch_; }
  /// Returns what each row predicts, -1 for nothing.
  [[nodiscard]] std::span<const std::int32_t> targets() const { return targets_; }

  /// Returns values by row as one column (T) per sequence: 0 where masked.
  [[nodiscard]] std::vector<std::vector<float>> to_columns(std::span<const float> rows) const;
  /// Returns columns (T) as values by row.
  [[nodiscard]] std::vector<float> to_rows(const std::vector<std::vector<float>>& columns) const;

private:
  Device& device_;
  std::vector<const TrainSequence*> sequences_;
  std::vector<std::vector<std::int32_t>> pages_;  // of each sequence
  Batch batch_;                                   // segments are made by `forward`
  std::vector<std::int32_t> targets_;
};

}  // namespace tidemill::engines
