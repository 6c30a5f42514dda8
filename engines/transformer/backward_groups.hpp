// SPDX-License-Identifier: Apache-2.0
// The rows that a backward pass takes through a layer together.
//
// A group is consecutive whole segments, or one window [a, b) of a segment that is longer than a
// window may be. Windows of one sequence go from its last to its first: a window's queries add to
// the gradients of all keys and values before it, so that those of [a, b) are complete, and go on
// through their projections, once the window itself is done. A segment is cut by its own tokens
// alone, and weights get their gradients group after group: every segment adds the same bits
// wherever it stands.
//
// A segment that continues a prefix has rows for the gradients of the prefix's keys and values too,
// before its own.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch_plan.hpp"

namespace tidemill::engines {

/// A segment of a group.
struct GroupSegment {
  AttentionSegment attention;  // its rows count from the group's first row
  PrefixRole role;
  std::int64_t first_kv_row = 0;  // of position 0, in the gradients of keys and values
  bool completes = true;          // none of its tokens before these are still to come
};

/// Consecutive rows of a plan: whole segments, or one window of one.
struct BackwardGroup {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  /// Rows of the gradients of keys and values: of each segment's positions from 0 on; for a window,
  /// of the positions of its whole segment.
  std::int64_t num_kv_rows = 0;
  bool opens = true;  // they begin at zero; else a later window has added to them
  std::vector<GroupSegment> segments;
};

/// Without windows, whole segments go together while they have no more rows than this: enough for
/// products at full speed. One that is longer goes alone.
inline constexpr std::int64_t kWholeRows = 512;

/// Cuts the rows of `plan` into groups of at most `window_tokens` rows in the order they are gone
/// through, 0: of at most `kWholeRows` or one segment, none of which is cut. Rows of gradients of
/// keys and values in a group are no more than all rows, or than one segment needs.
[[nodiscard]] std::vector<BackwardGroup> plan_groups(const BatchPlan& plan,
                                                     std::int64_t window_tokens);

}  // namespace tidemill::engines
