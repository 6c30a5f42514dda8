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
  TIDEMILL_CHECK(segment.mode == SegmentMode::kInference || segment.first_position == 0)
      << "a training segment is a whole sequence";
}

void add_segment(const Segment& segment, BatchPlan& plan) {
  const auto first_row = static_cast<std::int64_t>(plan.positions.size());
  for (std::int64_t i = 0; i < segment.num_tokens; ++i) {
    plan.positions.push_back(static_cast<std::int32_t>(segment.first_position + i));
  }
  plan.num_positions = std::max(plan.num_positions, segment.first_position + segment.num_tokens);
  plan.segments.push_back({first_row, segment.num_tokens, segment.first_position, segment.pages});
  append_adapter_rows(segment.adapter, first_row, segment.num_tokens, plan.adapter_runs);
}

// The segments from the first training segment on.
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
    TIDEMILL_CHECK(segment.mode == SegmentMode::kTraining) << "inference segments come first";
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
      hidden.rows.push_back(row);
    }
  }
  return hidden;
}

BatchPlan plan_training_rows(const Batch& batch, const KvCache& cache) {
  BatchPlan plan;
  for (const Segment& segment : training_segments(batch)) {
    check_segment(segment, cache);
    add_segment(segment, plan);
  }
  TIDEMILL_CHECK(
      plan.adapter_runs.empty() ||
      (plan.adapter_runs.size() == 1 &&
       plan.adapter_runs[0].num_rows == static_cast<std::int64_t>(plan.positions.size())))
      << "training segments share one adapter";
  return plan;
}

}  // namespace tidemill::engines
