// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/backward_groups.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {
namespace {

void add_whole(const AttentionSegment& segment, const PrefixRole& role, BackwardGroup& group) {
  group.segments.push_back({{group.num_rows, segment.num_tokens, segment.first_position,
                             segment.pages, group.num_kv_rows},
                            role});
  group.num_rows += segment.num_tokens;
  group.num_kv_rows += segment.first_position + segment.num_tokens;
}

void add_windows(const AttentionSegment& segment, const PrefixRole& role,
                 std::int64_t window_tokens, std::vector<BackwardGroup>& groups) {
  const std::int64_t last = (segment.num_tokens - 1) / window_tokens * window_tokens;
  for (std::int64_t begin = last; begin >= 0; begin -= window_tokens) {
    const std::int64_t count = std::min(window_tokens, segment.num_tokens - begin);
    const AttentionSegment window{0, count, segment.first_position + begin, segment.pages};
    groups.push_back({.first_row = segment.first_row + begin,
                      .num_rows = count,
                      .num_kv_rows = segment.first_position + segment.num_tokens,
                      .starts_at_zero = begin == last,
                      .segments = {{window, role, begin == 0}}});
  }
}

}  // namespace

std::int64_t layer_rows(std::int64_t rows, std::int64_t longest,
                        const BackwardOptions& options) noexcept {
  const std::int64_t max_rows =
      options.window_tokens > 0 ? options.window_tokens : std::max(longest, kWholeRows);
  return std::min(rows, max_rows);
}

std::vector<BackwardGroup> plan_groups(const BatchPlan& plan, const GroupOptions& options) {
  const std::int64_t window_tokens = options.window_tokens;
  TIDEMILL_CHECK(window_tokens >= 0 && window_tokens % options.row_sum_step == 0)
      << "windows of " << window_tokens << " for sums over " << options.row_sum_step;
  std::int64_t longest = 0;
  for (const AttentionSegment& sequence : plan.segments) {
    longest = std::max(longest, sequence.num_tokens);
  }
  const auto num_rows = static_cast<std::int64_t>(plan.positions.size());
  const std::int64_t max_rows = layer_rows(num_rows, longest, {window_tokens});
  const std::int64_t max_kv_rows = window_tokens > 0 ? max_rows : num_rows;
  std::vector<BackwardGroup> groups;
  bool whole = false;  // the last group consists of whole segments
  for (std::size_t i = 0; i < plan.segments.size(); ++i) {
    const AttentionSegment& segment = plan.segments[i];
    const PrefixRole& role = plan.roles[i];
    if (segment.num_tokens > max_rows) {
      add_windows(segment, role, max_rows, groups);
      whole = false;
      continue;
    }
    const std::int64_t positions = segment.first_position + segment.num_tokens;
    const bool joins = whole && options.row_sum_step == 1;
    if (!joins || groups.back().num_rows + segment.num_tokens > max_rows ||
        groups.back().num_kv_rows + positions > max_kv_rows) {
      groups.emplace_back().first_row = segment.first_row;
      whole = true;
    }
    add_whole(segment, role, groups.back());
  }
  return groups;
}

}  // namespace tidemill::engines
