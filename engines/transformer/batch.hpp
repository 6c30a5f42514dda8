// SPDX-License-Identifier: Apache-2.0
// The flat ragged batch: consecutive tokens of many sequences, stored end to end without padding.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engines/transformer/adapter.hpp"

namespace tidemill::engines {

/// Says what is kept of a segment's rows.
enum class SegmentMode : std::uint8_t {
  kInference,  // only the keys and values in the cache
  kTraining,   // also the activations that `backward` needs
};

/// Describes consecutive tokens of one sequence: a decode step (one token), a prefill chunk, or a
/// training window.
struct Segment {
  std::int64_t num_tokens = 0;
  std::int64_t first_position = 0;  // position of its first token in the sequence
  /// Cache pages of the sequence, for at least positions [0, first_position + num_tokens). Earlier
  /// segments have stored the positions before `first_position`; a segment stores its own.
  std::span<const std::int32_t> pages;
  /// Adapter of its rows, or null. Neighboring segments with the same adapter are computed
  /// together.
  const Adapter* adapter = nullptr;
  SegmentMode mode = SegmentMode::kInference;
  /// Number of tokens, counted from the end, whose hidden states are requested. Those of the other
  /// tokens are undefined, and computations that only they need are skipped. All hidden states of a
  /// training segment are computed.
  std::int64_t num_hidden = std::numeric_limits<std::int64_t>::max();
  /// For a training segment with `first_position` > 0: the segment of the batch that holds the
  /// preceding tokens, from position 0 on. The full pages of that prefix are also pages of this
  /// segment. If this segment has another page after them, the prefix tokens in that page are
  /// stored there too. -1: no prefix.
  std::int64_t prefix = -1;
};

/// Holds tokens and their division into segments. Segments cover the rows in order. Inference
/// segments come first, and all training segments have the same adapter. Two segments belong to one
/// sequence only if one is the prefix of the other.
///
/// A training segment is a whole sequence, the prefix of several sequences, or the continuation of
/// such a prefix. A prefix has no prefix itself. It is a training segment that comes after all
/// segments that continue it. If further segments in later batches will continue it, it is an
/// inference segment instead (`BackwardOptions::carried`).
struct Batch {
  std::vector<std::int32_t> ids;  // (T), each within the vocabulary
  std::vector<Segment> segments;

  [[nodiscard]] std::int64_t num_rows() const noexcept {
    return static_cast<std::int64_t>(ids.size());
  }
  /// Returns the number of rows in training segments, which are the last rows.
  [[nodiscard]] std::int64_t num_training_rows() const noexcept;
};

/// A run of consecutive rows that share an adapter.
struct AdapterRun {
  const Adapter* adapter = nullptr;  // never null
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
};

/// Appends the rows [first_row, first_row + num_rows) of `adapter` to `runs`. All rows in `runs`
/// come before them. Extends the last run if it is adjacent and has the same adapter. Does nothing
/// if `adapter` is null.
void append_adapter_rows(const Adapter* adapter, std::int64_t first_row, std::int64_t num_rows,
                         std::vector<AdapterRun>& runs);

}  // namespace tidemill::engines
