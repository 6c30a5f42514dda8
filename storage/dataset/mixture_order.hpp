// SPDX-License-Identifier: Apache-2.0
// Which of several weighted sources a position of a run draws from.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemill::storage {

/// Deals positions out to sources in proportion to their weights, as evenly as a sequence that
/// knows nothing of its past can: among any n positions in a row a source gets its share of n, give
/// or take a few.
///
/// A pure function of (weights, position): position p goes where p times the golden ratio, modulo
/// 1, falls among the shares laid end to end (a Weyl sequence). Asking for positions in order costs
/// nothing; a jump ahead costs a pass over what lies between, a jump back one from the start.
/// Threads: one call at a time.
class MixtureOrder {
public:
  /// Requires at least one weight, each finite and > 0.
  explicit MixtureOrder(const std::vector<double>& weights);

  /// Where a position is drawn: the how-many-th draw (from 0) of which source.
  struct Draw {
    std::size_t source = 0;
    std::uint64_t position = 0;
  };
  [[nodiscard]] Draw at(std::uint64_t position);

  /// Returns a number of positions in a row among which `source` is drawn at least once: 4 divided
  /// by its share, twice what the golden ratio asks for (three-gap theorem). A share that is
  /// rounded away is never drawn: the largest number.
  [[nodiscard]] std::uint64_t longest_gap(std::size_t source) const;

private:
  [[nodiscard]] std::size_t source_of(std::uint64_t position) const;

  std::vector<std::uint64_t> ends_;   // of the shares, in units of 2^-64; the last one is the rest
  std::vector<std::uint64_t> drawn_;  // of each source, at positions below `next_`
  std::uint64_t next_ = 0;
};

}  // namespace tidemill::storage
