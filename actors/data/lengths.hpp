// SPDX-License-Identifier: Apache-2.0
// How long the rows of a data set are.
#pragma once

#include <cstdint>

namespace tidemill::actors {

/// The lengths of all rows, as far as plans need them. Units: tokens.
class Lengths {
public:
  void add(std::int64_t tokens) noexcept;

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] std::int64_t longest() const noexcept { return longest_; }
  [[nodiscard]] double mean() const noexcept;
  /// Returns the most tokens that `rows` rows drawn at random are likely to have together in
  /// `draws` draws: the mean, and so many standard deviations as the largest of `draws` normal
  /// numbers lies above theirs, sqrt(2 ln draws). At most as if all were the longest.
  [[nodiscard]] std::int64_t likely_most(std::int64_t rows, std::uint64_t draws) const noexcept;

private:
  std::int64_t count_ = 0;
  std::int64_t longest_ = 0;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace tidemill::actors
