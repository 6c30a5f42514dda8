// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/weight_memory.hpp"

namespace tidemill::engines::cpu {
namespace {

constexpr std::int64_t kCacheLine = 64;
// Two large pages. At most an eighth of it stays unused at its end.
constexpr std::int64_t kBlockBytes = std::int64_t{4} << 20U;
constexpr std::int64_t kMostShared = kBlockBytes / 8;

}  // namespace

WeightBytes WeightMemory::allocate(std::int64_t size) {
  const std::int64_t rounded = (size + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (rounded > kMostShared) {
    return {std::make_shared<const AlignedBytes>(size), 0, size};
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
