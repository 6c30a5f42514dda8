// SPDX-License-Identifier: Apache-2.0
// What the operations of one pass over a batch read in addition to matrices: ids, positions,
// targets, row numbers, segments and page tables. A pass uploads all of them at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engines/ops/op_types.hpp"

namespace tidemill::engines {

/// The position of a list in the contents of a pass.
struct PassRange {
  std::int64_t first = 0;
  std::int64_t size = 0;
};

/// Collects the lists of a pass in host memory.
class PassContents {
public:
  /// Add a list and return its position. `segments` are copied with their page tables.
  PassRange add_indices(std::span<const std::int32_t> values);
  PassRange add_segments(std::span<const AttentionSegment> segments);

  [[nodiscard]] std::span<const std::int32_t> indices() const noexcept { return indices_; }
  /// Returns all segments. Their page tables are borrowed until the contents change.
  [[nodiscard]] std::vector<AttentionSegment> segments() const;

private:
  struct Table {
    std::size_t first = 0;  // in `pages_`
    std::size_t size = 0;
  };

  std::vector<std::int32_t> indices_;
  std::vector<AttentionSegment> segments_;  // without page tables
  std::vector<Table> tables_;               // of the segments
  std::vector<std::int32_t> pages_;
};

class PreparedPass;

/// A list of numbers in a prepared pass. A default-constructed list is empty.
struct IndexList {
  const PreparedPass* pass = nullptr;
  std::int64_t first = 0;
  std::int64_t size = 0;

  [[nodiscard]] bool empty() const noexcept { return size == 0; }
  /// Returns entries [first, first + count).
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

/// Holds the lists of a pass where the device can read them. Immutable.
class PreparedPass {
public:
  PreparedPass() = default;
  PreparedPass(const PreparedPass&) = delete;
  PreparedPass& operator=(const PreparedPass&) = delete;
  virtual ~PreparedPass() = default;

  /// Return the list that the contents had at `range`. Borrows the pass.
  [[nodiscard]] IndexList indices(PassRange range) const noexcept {
    return {this, range.first, range.size};
  }
  [[nodiscard]] SegmentList segments(PassRange range) const noexcept {
    return {this, range.first, range.size};
  }

  /// Returns the segments of `list`, a list of this pass, in host memory.
  [[nodiscard]] virtual std::span<const AttentionSegment> at(const SegmentList& list) const = 0;
};

}  // namespace tidemill::engines
