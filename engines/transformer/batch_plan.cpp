// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/batch_plan.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

void check_segment(const Segment& segment, const KvCache& cache) {
  TIDEMILL_CHECK(segment.num_tokens > 0 && segment.first_position >= 0);
  const std::int64_t end = segment.first_position + segment.num_tokens;
  TIDEMILL_CHECK(end <= std::numeric_limits<std::int32_t>::max()) << end;
  TIDEMILL_CHECK(static_cast<std::int64_t>(segment.pages.size()) >= cache.pages_for(end))
      << segment.pages.size() << " pages for " << end << " tokens";
  TIDEMILL_CHECK(segment.mode == SegmentMode::kInference ||
                 (segment.first_position == 0) == (segment.prefix < 0))
      << "a training segment must begin a sequence or continue a prefix";
}

void check_prefix(const Batch& batch, std::size_t index) {
  const Segment& segment = batch.segments[index];
  TIDEMILL_CHECK(segment.prefix < std::ssize(batch.segments)) << segment.prefix;
  const Segment& prefix = batch.segments[static_cast<std::size_t>(segment.prefix)];
  TIDEMILL_CHECK(prefix.prefix < 0 && prefix.first_position == 0 &&
                 prefix.num_tokens == segment.first_position)
      << "segment " << index << " does not continue its prefix, segment " << segment.prefix;
  TIDEMILL_CHECK(prefix.mode == SegmentMode::kInference ||
                 segment.prefix > static_cast<std::int64_t>(index))
      << "a training prefix must come after the segments that continue it";
}

// If `segment` has its own copy of the page in which it starts, plans to store the prefix tokens of
// that page there too.
void append_shared_page(const Segment& segment, const AttentionSegment& prefix,
                        std::int64_t page_tokens, BatchPlan& plan) {
  const std::int64_t page = segment.first_position / page_tokens;
  const std::int64_t begin = page * page_tokens;
  const auto at = static_cast<std::size_t>(page);
  if (begin < segment.first_position && segment.pages[at] != prefix.pages[at]) {
    plan.appends.push_back(
        {prefix.first_row + begin, segment.first_position - begin, begin, segment.pages});
  }
}

void add_segment(const Segment& segment, BatchPlan& plan) {
  const auto first_row = static_cast<std::int64_t>(plan.positions.size());
  for (std::int64_t i = 0; i < segment.num_tokens; ++i) {
    plan.positions.push_back(static_cast<std::int32_t>(segment.first_position + i));
  }
  plan.num_positions = std::max(plan.num_positions, segment.first_position + segment.num_tokens);
  plan.segments.push_back({first_row, segment.num_tokens, segment.first_position, segment.pages});
  plan.appends.push_back(plan.segments.back());
  append_adapter_rows(segment.adapter, first_row, segment.num_tokens, plan.adapter_runs);
}

// Plans the prefixes of `segments`, the first of which is segment `first_index` of the batch.
void plan_prefixes(std::span<const Segment> segments, std::int64_t first_index, BatchPlan& plan) {
  plan.roles.resize(segments.size());
  std::int64_t num_rows = 0;
  std::int64_t last = -1;  // the last planned prefix; segments that continue it are adjacent
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    if (segment.prefix < 0) {
      continue;
    }
    if (segment.prefix != last) {
      last = segment.prefix;
      const bool trained = last >= first_index;
      if (trained) {
        plan.roles[static_cast<std::size_t>(last - first_index)].own_prefix =
            std::ssize(plan.prefixes);
      }
      plan.prefixes.push_back({num_rows, segment.first_position, trained});
      num_rows += segment.first_position;
    }
    plan.roles[i].continued_prefix = std::ssize(plan.prefixes) - 1;
  }
}

// Returns the part of `segment` in rows [begin, end), whose row numbers then count from `begin`.
AttentionSegment part_of(const AttentionSegment& segment, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = std::max(segment.first_row, begin);
  const std::int64_t last = std::min(segment.first_row + segment.num_tokens, end);
  return {first - begin, last - first, segment.first_position + first - segment.first_row,
          segment.pages};
}

// Returns the parts of `segments` in rows [begin, end).
std::vector<AttentionSegment> parts_of(std::span<const AttentionSegment> segments,
                                       std::int64_t begin, std::int64_t end) {
  std::vector<AttentionSegment> parts;
  for (const AttentionSegment& segment : segments) {
    if (segment.first_row < end && segment.first_row + segment.num_tokens > begin) {
      parts.push_back(part_of(segment, begin, end));
    }
  }
  return parts;
}

// Plans rows [begin, end) of `plan` alone.
BatchPlan plan_rows(const BatchPlan& plan, std::int64_t begin, std::int64_t end) {
  BatchPlan rows;
  rows.positions.assign(plan.positions.begin() + begin, plan.positions.begin() + end);
  rows.num_positions = plan.num_positions;
  rows.segments = parts_of(plan.segments, begin, end);
  rows.appends = parts_of(plan.appends, begin, end);
  for (const AdapterRun& run : plan.adapter_runs) {
    const std::int64_t first = std::max(run.first_row, begin);
    const std::int64_t last = std::min(run.first_row + run.num_rows, end);
    if (first < last) {
      rows.adapter_runs.push_back({run.adapter, first - begin, last - first});
    }
  }
  return rows;
}

// A run of rows that windows may cut anywhere.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Appends the rows of the segments of `batch` that are prefixes of others, or of all other
// segments, joined where they are adjacent and have the same mode.
void append_ranges(const Batch& batch, const BatchPlan& plan, const std::vector<bool>& is_prefix,
                   bool prefixes, std::vector<RowRange>& ranges) {
  std::size_t last = batch.segments.size();
  for (std::size_t i = 0; i < batch.segments.size(); ++i) {
    if (is_prefix[i] != prefixes) {
      continue;
    }
    const AttentionSegment& segment = plan.segments[i];
    const std::int64_t end = segment.first_row + segment.num_tokens;
    if (last + 1 == i && batch.segments[last].mode == batch.segments[i].mode) {
      ranges.back().end = end;
    } else {
      ranges.push_back({segment.first_row, end});
    }
    last = i;
  }
}

// Returns the segments from the first training segment on.
std::span<const Segment> training_segments(const Batch& batch) {
  const auto first = std::ranges::find(batch.segments, SegmentMode::kTraining, &Segment::mode);
  return {first, batch.segments.end()};
}

}  // namespace

void append_adapter_rows(const Adapter* adapter, std::int64_t first_row, std::int64_t num_rows,
                         std::vector<AdapterRun>& runs) {
  if (adapter == nullptr) {
    return;
  }
  if (!runs.empty() && runs.back().adapter == adapter &&
      runs.back().first_row + runs.back().num_rows == first_row) {
    runs.back().num_rows += num_rows;
    return;
  }
  runs.push_back({adapter, first_row, num_rows});
}

std::int64_t Batch::num_training_rows() const noexcept {
  std::int64_t rows = 0;
  for (const Segment& segment : training_segments(*this)) {
    rows += segment.num_tokens;
  }
  return rows;
}

BatchPlan plan_batch(const Batch& batch, const KvCache& cache) {
  TIDEMILL_CHECK(!batch.segments.empty());
  BatchPlan plan;
  for (const Segment& segment : batch.segments) {
    check_segment(segment, cache);
    add_segment(segment, plan);
  }
  TIDEMILL_CHECK(static_cast<std::int64_t>(plan.positions.size()) == batch.num_rows())
      << plan.positions.size() << " rows in segments, " << batch.num_rows() << " tokens";
  for (const Segment& segment : training_segments(batch)) {
    TIDEMILL_CHECK(segment.mode == SegmentMode::kTraining) << "inference segments must come first";
  }
  for (std::size_t i = 0; i < batch.segments.size(); ++i) {
    if (const Segment& segment = batch.segments[i]; segment.prefix >= 0) {
      check_prefix(batch, i);
      append_shared_page(segment, plan.segments[static_cast<std::size_t>(segment.prefix)],
                         cache.options().page_tokens, plan);
    }
  }
  return plan;
}

HiddenPlan plan_hidden_rows(const Batch& batch, const BatchPlan& all) {
  HiddenPlan hidden;
  hidden.plan.num_positions = all.num_positions;
  std::int64_t end = 0;
  for (const Segment& segment : batch.segments) {
    end += segment.num_tokens;
    const std::int64_t count = std::min(segment.num_hidden, segment.num_tokens);
    if (count == 0) {
      continue;
    }
    const std::int64_t skipped = segment.num_tokens - count;
    add_segment({count, segment.first_position + skipped, segment.pages, segment.adapter},
                hidden.plan);
    for (std::int64_t row = end - count; row < end; ++row) {
      hidden.rows.push_back(static_cast<std::int32_t>(row));
    }
  }
  return hidden;
}

std::vector<PlannedRows> cut_plan(const Batch& batch, const BatchPlan& plan,
                                  std::int64_t max_rows) {
  TIDEMILL_CHECK(max_rows > 0) << max_rows;
  std::vector<bool> is_prefix(batch.segments.size());
  for (const Segment& segment : batch.segments) {
    if (segment.prefix >= 0) {
      is_prefix[static_cast<std::size_t>(segment.prefix)] = true;
    }
  }
  std::vector<RowRange> ranges;
  append_ranges(batch, plan, is_prefix, true, ranges);
  append_ranges(batch, plan, is_prefix, false, ranges);
  std::vector<PlannedRows> windows;
  for (const RowRange& range : ranges) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += max_rows) {
      windows.push_back({begin, plan_rows(plan, begin, std::min(range.end, begin + max_rows))});
    }
  }
  return windows;
}

BatchPlan plan_training_rows(const Batch& batch, const KvCache& cache) {
  BatchPlan plan;
  const std::span<const Segment> segments = training_segments(batch);
  for (const Segment& segment : segments) {
    check_segment(segment, cache);
    add_segment(segment, plan);
  }
  plan_prefixes(segments, std::ssize(batch.segments) - std::ssize(segments), plan);
  TIDEMILL_CHECK(
      plan.adapter_runs.empty() ||
      (plan.adapter_runs.size() == 1 &&
       plan.adapter_runs[0].num_rows == static_cast<std::int64_t>(plan.positions.size())))
      << "training segments must share one adapter";
  return plan;
}

}  // namespace tidemill::engines
