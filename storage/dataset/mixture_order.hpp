// SPDX-License-Identifier: Apache-2.0
// Which of several weighted sources a position of a run draws from.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill::storage {

/// Assigns positions to sources in proportion to the sources' weights, and evenly: of any n
/// consecutive positions, each source gets its share of n to within a few positions.
///
/// A pure function of (weights, position). The shares divide the interval [0, 1) in the order of
/// the sources. A position p belongs to the source whose share contains p times the golden ratio,
/// modulo 1 (a Weyl sequence). Asking for positions in increasing order is cheap. A jump ahead
/// passes over all positions in between, and a jump back over all positions from the start.
/// Threads: one call at a time.
class MixtureOrder {
public:
  /// Requires at least one weight, each finite and > 0.
  explicit MixtureOrder(const std::vector<double>& weights);

  /// The source that a position draws from, and the number of earlier draws from that source.
  struct Draw {
    std::size_t source = 0;
    std::uint64_t position = 0;
  };
  [[nodiscard]] Draw at(std::uint64_t position);

  /// Returns a number of consecutive positions that draw from `source` at least once: 4 divided by
  /// its share, which is twice what the golden ratio requires (three-gap theorem). If the share
  /// rounds to 0, the source is never drawn, and the result is the largest number.
  [[nodiscard]] std::uint64_t longest_gap(std::size_t source) const;

private:
  [[nodiscard]] std::size_t source_of(std::uint64_t position) const;

  std::vector<std::uint64_t> ends_;   // of all shares but the last, in units of 2^-64
  std::vector<std::uint64_t> drawn_;  // of each source, at positions below `next_`
  std::uint64_t next_ = 0;
};

}  // namespace tidemill::storage
