// SPDX-License-Identifier: Apache-2.0
#include "engines/optimizer/gradient_norm.hpp"

#include <algorithm>
#include <array>

#include "base/check.hpp"

namespace tidemill::engines {
namespace {

template <class Real>
double squares_of_block(std::span<const Real> values) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> lanes{};
  const std::size_t whole = values.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) {
      const auto value = static_cast<double>(values[i + j]);
      lanes[j] += value * value;
    }
  }
  double sum = 0.0;
  for (const double lane : lanes) {
    sum += lane;
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    sum += value * value;
  }
  return sum;
}

template <class Real>
std::span<const Real> block_of(std::span<const Real> values, std::size_t block) {
  const std::size_t begin = block * kNormBlock;
  return values.subspan(begin, std::min(kNormBlock, values.size() - begin));
}

}  // namespace

template <class Real>
void block_squares(std::span<const Real> values, std::span<double> sums) {
  TIDEMILL_CHECK(sums.size() == norm_blocks(values.size())) << sums.size();
  for (std::size_t block = 0; block < sums.size(); ++block) {
    sums[block] = squares_of_block(block_of(values, block));
  }
}

template <class Real>
double squared_norm(std::span<const Real> values) {
  double sum = 0.0;
  for (std::size_t block = 0; block < norm_blocks(values.size()); ++block) {
    sum += squares_of_block(block_of(values, block));
  }
  return sum;
}

double clip_scale(double norm, double max_norm) noexcept {
  return max_norm == 0.0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
}

template void block_squares(std::span<const float>, std::span<double>);
template void block_squares(std::span<const double>, std::span<double>);
template double squared_norm(std::span<const float>);
template double squared_norm(std::span<const double>);

}  // namespace tidemill::engines
