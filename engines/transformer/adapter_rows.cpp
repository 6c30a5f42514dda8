// SPDX-License-Identifier: Apache-2.0
#include "engines/transformer/adapter_rows.hpp"

namespace tidemill::engines {
namespace {

// Returns the number of `adapter` in `adapters`, to which it is added if it is new.
std::int64_t number_of(const Adapter* adapter, std::vector<const Adapter*>& adapters) {
  const auto found = std::ranges::find(adapters, adapter);
  const std::int64_t number = found - adapters.begin();
  if (found == adapters.end()) {
    adapters.push_back(adapter);
  }
  return number;
}

}  // namespace

AdapterRanges add_adapters(std::span<const AdapterRun> runs, std::int64_t first_kept,
                           PassContents& contents) {
  AdapterRanges ranges;
  std::vector<RowRun> all;
  std::vector<RowRun> before_kept;
  for (const AdapterRun& run : runs) {
    all.push_back({run.first_row, run.num_rows, number_of(run.adapter, ranges.adapters)});
    if (run.first_row < first_kept) {
      before_kept.push_back(all.back());
      before_kept.back().num_rows = std::min(run.num_rows, first_kept - run.first_row);
    }
  }
  ranges.runs = contents.add_runs(all);
  ranges.before_kept = contents.add_runs(before_kept);
  return ranges;
}

AdapterLists lists_at(const AdapterRanges& ranges, const PreparedPass& pass) {
  return {ranges.adapters, pass.runs(ranges.runs), pass.runs(ranges.before_kept)};
}

}  // namespace tidemill::engines
