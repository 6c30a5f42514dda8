// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/backward_groups.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

// Whether the group's rows and those of its keys and values are the same: no window of a sequence.
bool is_whole(const BackwardGroup& group) {
  return group.num_kv_rows == group.num_rows;
}

void add_whole(const AttentionSegment& sequence, std::int64_t max_rows,
               std::vector<BackwardGroup>& groups) {
  const std::int64_t count = sequence.num_tokens;
  if (groups.empty() || !is_whole(groups.back()) || groups.back().num_rows + count > max_rows) {
    groups.emplace_back().first_row = sequence.first_row;
  }
  BackwardGroup& group = groups.back();
  group.segments.push_back({group.num_rows, count, 0, sequence.pages});
  group.num_rows += count;
  group.num_kv_rows += count;
}

void add_windows(const AttentionSegment& sequence, std::int64_t window_tokens,
                 std::vector<BackwardGroup>& groups) {
  const std::int64_t length = sequence.num_tokens;
  const std::int64_t last = (length - 1) / window_tokens * window_tokens;
  for (std::int64_t begin = last; begin >= 0; begin -= window_tokens) {
    const std::int64_t count = std::min(window_tokens, length - begin);
    groups.push_back({.first_row = sequence.first_row + begin,
                      .num_rows = count,
                      .num_kv_rows = length,
                      .first_kv_row = begin,
                      .opens = begin == last,
                      .segments = {{0, count, begin, sequence.pages}}});
  }
}

}  // namespace

std::vector<BackwardGroup> plan_groups(const BatchPlan& plan, std::int64_t window_tokens) {
  TIDEMILL_CHECK(window_tokens >= 0) << window_tokens;
  const auto num_rows = static_cast<std::int64_t>(plan.positions.size());
  const std::int64_t max_rows = window_tokens > 0 ? window_tokens : num_rows;
  std::vector<BackwardGroup> groups;
  for (const AttentionSegment& sequence : plan.segments) {
    TIDEMILL_CHECK(sequence.first_position == 0) << sequence.first_position;
    if (sequence.num_tokens > max_rows) {
      add_windows(sequence, max_rows, groups);
    } else {
      add_whole(sequence, max_rows, groups);
    }
  }
  return groups;
}

}  // namespace tidemill::engines
