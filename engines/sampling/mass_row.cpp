// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/mass_row.hpp"

namespace tidemill::engines {

void MassRow::resize(std::size_t size) {
  masses_.resize(size);
  bounds_.resize((size + kMassBlock - 1) / kMassBlock);
}

std::uint64_t MassRow::sum_at_least(float min, int bits) const {
  std::uint64_t total = 0;
  for (std::size_t b = 0; b < bounds_.size(); ++b) {
    if (!may_reach(b, min)) {
      continue;
    }
    const std::span<const float> masses = block(b);
    total += kernels_->fixed_point_sum(masses.data(), masses.size(), bits, min);
  }
  return total;
}

double MassRow::drop_below(std::size_t block, float min) noexcept {
  const std::span<float> masses = this->block(block);
  kernels_->drop_below(masses.data(), masses.size(), min);
  return kernels_->sum(masses.data(), masses.size());
}

}  // namespace tidemill::engines
