// SPDX-License-Identifier: Apache-2.0
#include "actors/data/lengths.hpp"

#include <algorithm>
#include <cmath>

namespace tidemill::actors {

void Lengths::add(std::int64_t tokens) noexcept {
  ++count_;
  longest_ = std::max(longest_, tokens);
  const auto length = static_cast<double>(tokens);
  sum_ += length;
  squares_ += length * length;
}

void Lengths::add(std::int64_t tokens, const storage::RowLocation& location) {
  if (count_ == 0 || tokens > longest_) {
    location_ = location.to_string();
  }
  add(tokens);
}

double Lengths::mean() const noexcept {
  return count_ > 0 ? sum_ / static_cast<double>(count_) : 0.0;
}

std::int64_t Lengths::expected_max(std::int64_t rows, std::uint64_t draws) const noexcept {
  if (count_ == 0) {
    return 0;
  }
  const auto n = static_cast<double>(rows);
  const double variance = std::max(squares_ / static_cast<double>(count_) - mean() * mean(), 0.0);
  const double margin =
      std::sqrt(2.0 * std::log(static_cast<double>(std::max<std::uint64_t>(draws, 1))));
  double likely = n * mean() + margin * std::sqrt(n * variance);
  if (n * static_cast<double>(draws) >= static_cast<double>(count_)) {
    const auto others = static_cast<double>(std::max<std::int64_t>(count_ - 1, 1));
    const auto longest = static_cast<double>(longest_);
    likely = std::max(likely, longest + (n - 1.0) * (sum_ - longest) / others);
  }
  return std::min(rows * longest_, static_cast<std::int64_t>(std::ceil(likely)));
}

}  // namespace tidemill::actors
