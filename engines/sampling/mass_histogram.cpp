// SPDX-License-Identifier: Apache-2.0
#include "engines/sampling/mass_histogram.hpp"

#include <algorithm>
#include <bit>

namespace tidemill::engines {
namespace {

// Leading bits of a mass that number its bucket: 64 buckets for each power of two. The bits of
// floats that are not negative are in the order of their values.
constexpr std::uint32_t kBucketShift = 17;
// `exp_nonpositive` is within 2 ulp. The mass of a larger logit is therefore at most 4 ulp, which
// across a power of two are 8 steps, below that of a smaller one. This is twice as much.
constexpr std::uint32_t kMargin = 16;

std::uint32_t bits_of(float mass) {
  return std::bit_cast<std::uint32_t>(mass);
}

std::uint32_t bucket_of(float mass) {
  return bits_of(mass) >> kBucketShift;
}

}  // namespace

float rounding_margin_below(float mass) noexcept {
  const std::uint32_t bits = bits_of(mass);
  return std::bit_cast<float>(bits > kMargin ? bits - kMargin : 0U);
}

float rounding_margin_above(float mass) noexcept {
  const std::uint32_t infinite = bits_of(std::numeric_limits<float>::infinity());
  return std::bit_cast<float>(std::min(bits_of(mass) + kMargin, infinite));
}

void MassHistogram::clear() {
  sums_.assign(bucket_of(1.0F) + 1, 0);
}

void MassHistogram::add(float mass, std::uint64_t amount) noexcept {
  sums_[bucket_of(mass)] += amount;
}

MassHistogram::Bucket MassHistogram::bucket_reaching(std::uint64_t wanted) const noexcept {
  std::size_t at = sums_.size() - 1;
  std::uint64_t above = 0;
  while (at > 0 && above + sums_[at] < wanted) {
    above += sums_[at--];
  }
  const std::uint32_t bits = static_cast<std::uint32_t>(at) << kBucketShift;
  return {{std::bit_cast<float>(bits), std::bit_cast<float>(bits + (1U << kBucketShift) - 1)},
          above};
}

}  // namespace tidemill::engines
