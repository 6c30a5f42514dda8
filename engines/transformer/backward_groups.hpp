// SPDX-License-Identifier: Apache-2.0
// The rows that a backward pass takes through a layer together.
//
// A group is consecutive whole sequences, or one window [a, b) of a sequence that is longer than a
// window may be. Windows of one sequence go from its last to its first: a window's queries add to
// the gradients of all keys and values before it, so that those of [a, b) are complete, and go on
// through their projections, once the window itself is done. A sequence is cut by its own positions
// alone, and weights get their gradients group after group: every sequence adds the same bits
// wherever it stands.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch_plan.hpp"

namespace tidemill::engines {

/// Consecutive rows of a plan: whole sequences, or one window of one.
struct BackwardGroup {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  /// Rows of the gradients of keys and values: the group's own, or, for a window, the positions of
  /// its whole sequence.
  std::int64_t num_kv_rows = 0;
  std::int64_t first_kv_row = 0;  // of them, the row of `first_row`
  bool opens = true;              // they begin at zero; else a later window has added to them
  std::vector<AttentionSegment> segments;  // their rows count from `first_row`

  /// Returns the first row of segment `segment`'s sequence in the gradients of keys and values.
  [[nodiscard]] std::int64_t sequence_kv_row(const AttentionSegment& segment) const noexcept {
    return first_kv_row + segment.first_row - segment.first_position;
  }
};

/// Cuts the rows of `plan`, whole sequences all, into groups of at most `window_tokens` rows, in
/// the order they are gone through. 0: one group of all rows.
[[nodiscard]] std::vector<BackwardGroup> plan_groups(const BatchPlan& plan,
                                                     std::int64_t window_tokens);

}  // namespace tidemill::engines
