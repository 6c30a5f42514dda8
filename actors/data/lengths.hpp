// SPDX-License-Identifier: Apache-2.0
// Statistics of the lengths of a data set's rows.
#pragma once

#include <cstdint>
#include <string>

#include "storage/dataset/rows.hpp"

namespace tidemill::actors {

/// Statistics of the lengths of rows, for memory plans. Units: tokens.
class Lengths {
public:
  void add(std::int64_t tokens) noexcept;
  /// Adds the length of the row at `location`.
  void add(std::int64_t tokens, const storage::RowLocation& location);

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] std::int64_t longest() const noexcept { return longest_; }
  /// Returns where the first of the longest rows is, "FILE:LINE"; empty if no row has a location.
  [[nodiscard]] const std::string& longest_location() const noexcept { return location_; }
  [[nodiscard]] double mean() const noexcept;
  /// Returns an estimate of the largest total length among `draws` random selections of `rows`
  /// rows. It is the mean total plus sqrt(2 ln draws) standard deviations, by which the largest of
  /// `draws` normal numbers exceeds their mean. If the selections cover all rows, it is at least
  /// the longest row plus the mean of the others for each further row. It is at most `rows` times
  /// the longest row.
  [[nodiscard]] std::int64_t expected_max(std::int64_t rows, std::uint64_t draws) const noexcept;

private:
  std::int64_t count_ = 0;
  std::int64_t longest_ = 0;
  std::string location_;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace tidemill::actors
