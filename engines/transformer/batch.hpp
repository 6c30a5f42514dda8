// SPDX-License-Identifier: Apache-2.0
// The flat ragged batch: runs of tokens of many sequences, laid end to end, without padding.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engines/transformer/adapter.hpp"

namespace tidemill::engines {

/// What a segment's rows are for.
enum class SegmentMode : std::uint8_t {
  kInference,  // nothing is kept but the keys and values in the cache
  kTraining,   // what `backward` needs is kept too
};

/// A run of consecutive tokens of one sequence: a decode step (one token), a prefill chunk, or a
/// training window.
struct Segment {
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;  // position of its first token in the sequence
  /// Cache pages of the sequence, for at least positions [0, first_position + num_tokens). Those
  /// below `first_position` hold what earlier segments stored; a segment stores its own.
  std::span<const std::int32_t> pages;
  /// Bypasses of its rows, or null. Neighbours with the same adapter are computed together.
  const Adapter* adapter = nullptr;
  SegmentMode mode = SegmentMode::kInference;
  /// Hidden states are wanted of its last so many tokens; those of the others are left undefined,
  /// and what nobody needs for them is not computed. A training segment's are all wanted.
  std::int64_t num_hidden = std::numeric_limits<std::int64_t>::max();
  /// Of a training segment with `first_position` > 0: which segment of the batch has the tokens
  /// before, from position 0 on. Whole pages of those are its pages too; where the next one is not,
  /// the tokens in it are stored there as well. -1: no other segment.
  std::int64_t prefix = -1;
};

/// Tokens and how they are cut. Segments cover the rows in order; inference segments come first,
/// and all training segments have the same adapter. Two segments belong to one sequence only if
/// one is the prefix of the other.
///
/// A training segment is a whole sequence, the prefix of several, or what follows their prefix. A
/// prefix has none itself. It is a training segment behind all that continue it or, if some will
/// follow in batches to come, an inference segment (`BackwardOptions::carried`).
struct Batch {
  std::vector<std::int32_t> ids;  // (T), each within the vocabulary
  std::vector<Segment> segments;

  [[nodiscard]] std::int64_t num_rows() const noexcept {
    return static_cast<std::int64_t>(ids.size());
  }
  /// Returns the number of rows in training segments; they are the last ones.
  [[nodiscard]] std::int64_t num_training_rows() const noexcept;
};

/// Consecutive rows that share an adapter.
struct AdapterRun {
  const Adapter* adapter = nullptr;  // never null
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
};

/// Appends the rows [first_row, first_row + num_rows) of `adapter` to `runs`, which hold none
/// behind them; neighbours with the same adapter become one run. Null: no rows of an adapter.
void append_adapter_rows(const Adapter* adapter, std::int64_t first_row, std::int64_t num_rows,
                         std::vector<AdapterRun>& runs);

}  // namespace tidemill::engines
