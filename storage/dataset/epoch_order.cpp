// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/epoch_order.hpp"

#include <limits>
#include <numeric>
#include <span>

#include "base/check.hpp"
#include "base/random.hpp"

namespace tidemill::storage {
namespace {

// Separates the draws of a shuffle from those of samples, which are keyed by small numbers.
constexpr std::uint64_t kShuffleStreams = 0x73687566'00000000U;

}  // namespace

EpochOrder::EpochOrder(std::uint64_t num_rows, RowOrder order, std::uint64_t seed)
    : num_rows_(num_rows), order_(order), seed_(seed) {
  TIDEMILL_CHECK(num_rows > 0 && num_rows < std::numeric_limits<std::uint32_t>::max()) << num_rows;
}

std::uint64_t EpochOrder::row_of(std::uint64_t position) {
  const std::uint64_t epoch = position / num_rows_;
  const std::uint64_t index = position % num_rows_;
  if (order_ == RowOrder::kFileOrder) {
    return index;
  }
  if (permutation_.empty() || epoch != epoch_) {
    permutation_.resize(num_rows_);
    std::iota(permutation_.begin(), permutation_.end(), 0U);
    RandomStream random(seed_, kShuffleStreams ^ epoch);
    shuffle(std::span(permutation_), random);
    epoch_ = epoch;
  }
  return permutation_[index];
}

}  // namespace tidemill::storage
