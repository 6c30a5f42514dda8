// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/pass.hpp"

namespace tidemill::engines {

PassRange PassContents::add_indices(std::span<const std::int32_t> values) {
  const PassRange range{std::ssize(indices_), std::ssize(values)};
  indices_.insert(indices_.end(), values.begin(), values.end());
  return range;
}

PassRange PassContents::add_segments(std::span<const AttentionSegment> segments) {
  const PassRange range{std::ssize(segments_), std::ssize(segments)};
  for (const AttentionSegment& segment : segments) {
    tables_.push_back({pages_.size(), segment.pages.size()});
    pages_.insert(pages_.end(), segment.pages.begin(), segment.pages.end());
    segments_.push_back(segment);
    segments_.back().pages = {};
  }
  return range;
}

PassRange PassContents::add_runs(std::span<const RowRun> runs) {
  const PassRange range{std::ssize(runs_), std::ssize(runs)};
  runs_.insert(runs_.end(), runs.begin(), runs.end());
  return range;
}

std::vector<AttentionSegment> PassContents::segments() const {
  std::vector<AttentionSegment> segments = segments_;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    segments[i].pages = std::span(pages_).subspan(tables_[i].first, tables_[i].size);
  }
  return segments;
}

}  // namespace tidemill::engines
