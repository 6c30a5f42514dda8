// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/weight_memory.hpp"

namespace tidemill::engines::cpu {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kLargePage = std::int64_t{2} << 20U;
// Adapters are laid out again and again, and a block lives as long as anything in it: theirs are
// small. What stays unused at a block's end is not touched.
constexpr std::int64_t kSmallBlock = 2 * kLargePage;
constexpr std::int64_t kMostSmall = kSmallBlock / 8;
constexpr std::int64_t kMediumBlock = 8 * kLargePage;
constexpr std::int64_t kMostMedium = kMediumBlock / 4;
// A model's matrices are laid out together and go together: side by side, since a page that only
// one of them begins is made and cleared whole.
constexpr std::int64_t kLargeBlock = 16 * kLargePage;
constexpr std::int64_t kMostLarge = kLargeBlock / 2;

// The size of a block for one weight: whole large pages where that is an eighth more at most.
std::int64_t own_block_bytes(std::int64_t size) {
  const std::int64_t whole = (size + kLargePage - 1) / kLargePage * kLargePage;
  return whole - size <= size / 8 ? whole : size;
}

}  // namespace

WeightBytes WeightMemory::allocate(std::int64_t size) {
  const std::int64_t rounded = (size + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (rounded <= kMostSmall) {
    return cut(small_, kSmallBlock, size, rounded);
  }
  if (rounded <= kMostMedium) {
    return cut(medium_, kMediumBlock, size, rounded);
  }
  if (rounded <= kMostLarge) {
    return cut(large_, kLargeBlock, size, rounded);
  }
  return {std::make_shared<const AlignedBytes>(own_block_bytes(size)), 0, size};
}

WeightBytes WeightMemory::cut(Open& open, std::int64_t block_bytes, std::int64_t size,
                              std::int64_t rounded) {
  if (open.block == nullptr || open.used + rounded > open.block->size()) {
    open.block = std::make_shared<const AlignedBytes>(block_bytes);
    open.used = 0;
  }
  const std::int64_t offset = open.used;
  open.used += rounded;
  return {open.block, offset, size};
}

}  // namespace tidemill::engines::cpu
