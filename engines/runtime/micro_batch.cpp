// SPDX-License-Identifier: Apache-2.0
#include "engines/runtime/micro_batch.hpp"

#include <utility>

#include "base/check.hpp"

namespace tidemill::engines {

std::int64_t num_rows(const TrainSequence& sequence) noexcept {
  std::size_t last = sequence.response_mask.size();
  while (last > 1 && sequence.response_mask[last - 1] == 0) {
    --last;
  }
  return last > 1 ? static_cast<std::int64_t>(last) - 1 : 0;
}

MicroBatch::~MicroBatch() {
  for (const auto& pages : pages_) {
    device_.cache->release(pages);
  }
}

bool MicroBatch::add(const TrainSequence& sequence) {
  const std::int64_t count = num_rows(sequence);
  const std::int64_t needed = device_.cache->pages_for(count);
  if (needed > device_.cache->num_free_pages()) {
    device_.make_room(needed, rows() == 0 ? RoomFrom::kRunning : RoomFrom::kCached);
  }
  std::vector<std::int32_t> pages;
  if (!device_.cache->allocate(needed, pages)) {
    return false;
  }
  sequences_.push_back(&sequence);
  pages_.push_back(std::move(pages));
  batch_.ids.insert(batch_.ids.end(), sequence.ids.begin(), sequence.ids.begin() + count);
  for (std::size_t t = 1; t <= static_cast<std::size_t>(count); ++t) {
    targets_.push_back(sequence.response_mask[t] != 0 ? sequence.ids[t] : -1);
  }
  return true;
}

ConstMatrix MicroBatch::forward(const LaidOutWeights& weights, Activations& activations) {
  batch_.segments.clear();
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (const std::int64_t count = num_rows(*sequences_[i]); count > 0) {
      batch_.segments.push_back(
          {count, 0, pages_[i], weights.adapter.get(), SegmentMode::kTraining});
    }
  }
  return device_.transformer->forward(*weights.base, batch_, *device_.cache, {&activations, {}});
}

std::vector<std::vector<float>> MicroBatch::to_columns(std::span<const float> rows) const {
  TIDEMILL_CHECK(rows.size() == targets_.size());
  std::vector<std::vector<float>> columns;
  std::size_t row = 0;
  for (const TrainSequence* sequence : sequences_) {
    std::vector<float>& column = columns.emplace_back(sequence->ids.size());
    const auto count = static_cast<std::size_t>(num_rows(*sequence));
    for (std::size_t t = 1; t <= count; ++t, ++row) {
      column[t] = rows[row];
    }
  }
  return columns;
}

std::vector<float> MicroBatch::to_rows(const std::vector<std::vector<float>>& columns) const {
  std::vector<float> rows;
  rows.reserve(targets_.size());
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const auto count = static_cast<std::ptrdiff_t>(num_rows(*sequences_[i]));
    rows.insert(rows.end(), columns[i].begin() + 1, columns[i].begin() + 1 + count);
  }
  return rows;
}

}  // namespace tidemill::engines
