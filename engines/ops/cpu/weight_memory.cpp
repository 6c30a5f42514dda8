// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/weight_memory.hpp"

namespace tidemill::engines::cpu {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kLargePage = std::int64_t{2} << 20U;
// Eight large pages. What stays unused at its end, at most a quarter, is not touched.
constexpr std::int64_t kBlockBytes = 8 * kLargePage;
constexpr std::int64_t kMostShared = kBlockBytes / 4;

// The size of a block for one weight: whole large pages where that is an eighth more at most.
std::int64_t own_block_bytes(std::int64_t size) {
  const std::int64_t whole = (size + kLargePage - 1) / kLargePage * kLargePage;
  return whole - size <= size / 8 ? whole : size;
}

}  // namespace

WeightBytes WeightMemory::allocate(std::int64_t size) {
  const std::int64_t rounded = (size + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (rounded > kMostShared) {
    return {std::make_shared<const AlignedBytes>(own_block_bytes(size)), 0, size};
  }
  if (block_ == nullptr || used_ + rounded > block_->size()) {
    block_ = std::make_shared<const AlignedBytes>(kBlockBytes);
    used_ = 0;
  }
  const std::int64_t offset = used_;
  used_ += rounded;
  return {block_, offset, size};
}

}  // namespace tidemill::engines::cpu
