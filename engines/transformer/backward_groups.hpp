// SPDX-License-Identifier: Apache-2.0
// Divides rows into the groups that a backward pass takes through a layer together.
//
// A group consists of consecutive whole segments, or of one window [a, b) of a segment that is
// longer than the maximum window. The windows of a sequence are processed from the last to the
// first, since the queries of a window add to the gradients of all keys and values before it. After
// window [a, b), the gradients of its own keys and values are complete and can go through their
// projections. How a segment is cut depends only on its own tokens, and gradients of weights are
// added group after group, so a segment adds the same bits at any position in the batch. If the
// backend declares a `BackendTraits::row_sum_step` other than 1, no group has more than one
// segment, so that the cuts of sums count from the first row of the segment.
//
// A segment that continues a prefix also has rows for the gradients of the prefix's keys and
// values, before those of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "engines/ops/ops.hpp"
#include "engines/transformer/batch_plan.hpp"

namespace tidemill::engines {

/// A segment of a group.
struct GroupSegment {
  AttentionSegment attention;  // row numbers count from the group's first row
  PrefixRole role;
  bool completes = true;  // the first tokens of the segment are in this group
};

/// Consecutive rows of a plan: whole segments, or one window of one.
struct BackwardGroup {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  /// Rows of the gradients of keys and values. They cover the positions of each segment from 0 on;
  /// for a window, the positions of its whole segment.
  std::int64_t num_kv_rows = 0;
  /// Whether those gradients start at zero. If not, a window of later tokens has added to them.
  bool starts_at_zero = true;
  std::vector<GroupSegment> segments;
};

/// Maximum rows of a group of whole segments if there are no windows: enough for products at full
/// speed. A longer segment is a group by itself.
inline constexpr std::int64_t kWholeRows = 512;

/// What determines groups besides the plan.
struct GroupOptions {
  std::int64_t window_tokens = 0;  // 0: no segment is cut
  std::int64_t row_sum_step = 1;   // of the backend; `window_tokens` is a multiple of it
};

/// Divides the rows of `plan` into groups, in the order in which they are processed. Groups have at
/// most `window_tokens` rows. If `window_tokens` is 0, groups have at most `kWholeRows` rows or are
/// a single segment, and no segment is cut. The rows of gradients of keys and values in a group do
/// not exceed the number of all rows or what one segment needs.
[[nodiscard]] std::vector<BackwardGroup> plan_groups(const BatchPlan& plan,
                                                     const GroupOptions& options);

}  // namespace tidemill::engines
