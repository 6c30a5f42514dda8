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
  /// Removes all lists and keeps the memory.
  void clear() noexcept;

  [[nodiscard]] std::span<const std::int32_t> indices() const noexcept { return indices_; }
  /// Returns all segments. Their page tables are borrowed until the contents change.
  [[nodiscard]] std::vector<AttentionSegment> segments() const;
  /// Returns all segments without their page tables.
  [[nodiscard]] const std::vector<AttentionSegment>& shapes() const noexcept { return segments_; }

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
  explicit PreparedPass(const PassContents& contents);
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

  /// Returns the segments of `list`, a list of this pass, without their page tables.
  [[nodiscard]] std::span<const AttentionSegment> shapes(const SegmentList& list) const {
    return std::span(shapes_).subspan(static_cast<std::size_t>(list.first),
                                      static_cast<std::size_t>(list.size));
  }

private:
  std::vector<AttentionSegment> shapes_;
};

}  // namespace tidemill::engines
