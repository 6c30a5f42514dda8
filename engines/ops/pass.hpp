// SPDX-License-Identifier: Apache-2.0
// What the operations of one pass over a batch read in addition to matrices: ids, positions,
// targets, row numbers, segments, page tables, and which rows have which adapter. A pass uploads
// all of them at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/ops/op_types.hpp"

namespace tidemill::engines {

/// Consecutive rows of a batch that share an adapter.
struct RowRun {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::int64_t adapter = 0;  // its number among the adapters of the list
};

/// The position of a list in the contents of a pass.
struct PassRange {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/// Collects the lists of a pass in host memory.
class PassContents {
public:
  /// Adds a list and returns its position. Segments are copied with their page tables.
  PassRange add_indices(std::span<const std::int32_t> values);
  PassRange add_segments(std::span<const AttentionSegment> segments);
  PassRange add_runs(std::span<const RowRun> runs);

  /// Returns all indices. Borrowed until the contents change.
  [[nodiscard]] std::span<const std::int32_t> indices() const noexcept { return indices_; }
  /// Returns all segments. Their page tables are borrowed until the contents change.
  [[nodiscard]] std::vector<AttentionSegment> segments() const;
  /// Returns all runs. Borrowed until the contents change.
  [[nodiscard]] std::span<const RowRun> runs() const noexcept { return runs_; }

private:
  struct Table {
    std::size_t first = 0;  // in `pages_`
    std::size_t size = 0;
  };

  std::vector<std::int32_t> indices_;
  std::vector<AttentionSegment> segments_;  // without page tables
  std::vector<Table> tables_;               // of the segments
  std::vector<std::int32_t> pages_;
  std::vector<RowRun> runs_;
};

class PreparedPass;

/// A list of numbers in a prepared pass. A default-constructed list is empty.
struct IndexList {
  const PreparedPass* pass = nullptr;
  std::int64_t first = 0;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
  /// Returns entries [begin, begin + count) of this list.
  [[nodiscard]] IndexList slice(std::int64_t begin, std::int64_t count) const noexcept {
    return {pass, first + begin, count};
  }
};

/// A list of segments in a prepared pass.
struct SegmentList {
  const PreparedPass* pass = nullptr;
  std::int64_t first = 0;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
};

/// A list of runs in a prepared pass.
struct RunList {
  const PreparedPass* pass = nullptr;
  std::int64_t first = 0;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
};

/// Holds the lists of a pass where the device can read them. Immutable.
class PreparedPass {
public:
  PreparedPass() = default;
  PreparedPass(const PreparedPass&) = delete;
  PreparedPass& operator=(const PreparedPass&) = delete;
  virtual ~PreparedPass() = default;

  /// Returns the list that the contents had at `range`. Borrows the pass.
  [[nodiscard]] IndexList indices(PassRange range) const noexcept {
    return {this, range.first, range.size};
  }
  [[nodiscard]] SegmentList segments(PassRange range) const noexcept {
    return {this, range.first, range.size};
  }
  [[nodiscard]] RunList runs(PassRange range) const noexcept {
    return {this, range.first, range.size};
  }

  /// Returns the entries of `list`, which must be a list of this pass, in host memory. Borrowed
  /// from the pass.
  [[nodiscard]] virtual std::span<const AttentionSegment> at(const SegmentList& list) const = 0;
  [[nodiscard]] virtual std::span<const RowRun> at(const RunList& list) const = 0;
};

}  // namespace tidemill::engines
