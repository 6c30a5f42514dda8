// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/mixture_order.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.hpp"

namespace tidemill::storage {
namespace {

constexpr std::uint64_t kGoldenRatio = 0x9E3779B97F4A7C15U;  // times 2^64, modulo 1

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights) : drawn_(weights.size(), 0) {
  TIDEMILL_CHECK(!weights.empty());
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double below = 0.0;
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    TIDEMILL_CHECK(weights[i] > 0.0 && std::isfinite(sum)) << weights[i];
    below += weights[i];
    // 53 bits of the share. The rounding error is one draw in 10^15.
    constexpr std::uint64_t kLast = (std::uint64_t{1} << 53U) - 1;
    ends_.push_back(std::min(static_cast<std::uint64_t>(below / sum * 0x1p53), kLast) << 11U);
  }
}

std::size_t MixtureOrder::source_of(std::uint64_t position) const {
  const std::uint64_t point = position * kGoldenRatio;
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), point) -
                                  ends_.begin());
}

MixtureOrder::Draw MixtureOrder::at(std::uint64_t position) {
  if (position < next_) {
    next_ = 0;
    std::fill(drawn_.begin(), drawn_.end(), 0);
  }
  for (; next_ < position; ++next_) {
    ++drawn_[source_of(next_)];
  }
  const std::size_t source = source_of(position);
  return {source, drawn_[source]};
}

std::uint64_t MixtureOrder::longest_gap(std::size_t source) const {
  const std::uint64_t begin = source == 0 ? 0 : ends_[source - 1];
  if (source == ends_.size() && begin == 0) {
    return 1;  // the share is everything
  }
  // The last share ends at 2^64, which is 0 here.
  const std::uint64_t share = (source == ends_.size() ? 0 : ends_[source]) - begin;
  return share == 0 ? std::numeric_limits<std::uint64_t>::max()
                    : static_cast<std::uint64_t>(0x1p66 / static_cast<double>(share)) + 1;
}

}  // namespace tidemill::storage
