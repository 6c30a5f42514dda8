// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/weight_memory.hpp"

#include <algorithm>
#include <iterator>

namespace tidemill::engines::cpu {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kLargePage = std::int64_t{2} << 20U;
// Blocks of small weights, such as those of adapters, are small: adapters are replaced often, and a
// block is freed only with the last weight in it. The unused end of a block is never touched.
constexpr std::int64_t kSmallBlock = 2 * kLargePage;
constexpr std::int64_t kMaxSmall = kSmallBlock / 8;
constexpr std::int64_t kMediumBlock = 8 * kLargePage;
constexpr std::int64_t kMaxMedium = kMediumBlock / 4;
// The matrices of a model are allocated together and freed together. They share blocks because the
// kernel allocates and clears whole pages, even if a matrix uses only the beginning of one.
constexpr std::int64_t kLargeBlock = 16 * kLargePage;
constexpr std::int64_t kMaxLarge = kLargeBlock / 2;

std::int64_t rounded_up(std::int64_t size, std::int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Returns the size of a block for one weight. It is rounded up to whole large pages if that adds at
// most an eighth.
std::int64_t own_block_bytes(std::int64_t size) {
  const std::int64_t whole = rounded_up(size, kLargePage);
  return whole - size <= size / 8 ? whole : size;
}

}  // namespace

WeightPlacement::BlockOffset WeightPlacement::add(std::int64_t size) {
  const std::int64_t rounded = rounded_up(size, kCacheLine);
  if (rounded <= kMaxSmall) {
    return cut(Kind::kSmall, kSmallBlock, rounded);
  }
  if (rounded <= kMaxMedium) {
    return cut(Kind::kMedium, kMediumBlock, rounded);
  }
  if (rounded <= kMaxLarge) {
    return cut(Kind::kLarge, kLargeBlock, rounded);
  }
  const std::int64_t own = own_block_bytes(size);
  bytes_ += own;
  return {Kind::kOwn, own, 0};
}

WeightPlacement::BlockOffset WeightPlacement::cut(Kind kind, std::int64_t block_bytes,
                                                  std::int64_t size) {
  std::int64_t& used = used_[static_cast<std::size_t>(kind)];
  const bool needs_block = used == 0 || used + size > block_bytes;
  const BlockOffset at{kind, needs_block ? block_bytes : 0, needs_block ? 0 : used};
  used = at.offset + size;
  bytes_ += rounded_up(used, kLargePage) - rounded_up(at.offset, kLargePage);
  return at;
}

void WeightSets::begin_set(std::int64_t sets) {
  ++set_;
  oldest_ = std::max<std::int64_t>(0, set_ - sets + 1);
}

void WeightSets::add(std::int64_t size) {
  const WeightPlacement::BlockOffset at = placement_.add(size);
  const bool own = at.kind == WeightPlacement::Kind::kOwn;
  const auto kind = static_cast<std::size_t>(at.kind);
  if (at.block_bytes > 0) {
    blocks_.push_back({.shared = !own});
    if (!own) {
      last_[kind] = std::ssize(blocks_) - 1;
    }
  }
  Block& block = own ? blocks_.back() : blocks_[static_cast<std::size_t>(last_[kind])];
  block.used = own ? at.block_bytes : at.offset + size;
  block.newest_set = set_;
  block.permanent = block.permanent || set_ < 0;
}

std::int64_t WeightSets::bytes() const noexcept {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const bool last = std::ranges::find(last_, static_cast<std::int64_t>(i)) != last_.end();
    if (block.permanent || last || block.newest_set >= oldest_) {
      bytes += block.shared ? rounded_up(block.used, kLargePage) : block.used;
    }
  }
  return bytes;
}

WeightMemory::Block WeightMemory::new_block(WeightPlacement::Kind kind, std::int64_t size) {
  if (kind != WeightPlacement::Kind::kSmall) {
    return std::make_shared<const AlignedBytes>(size);
  }
  std::unique_ptr<const AlignedBytes> block;
  {
    const std::lock_guard lock(small_->mutex);
    if (!small_->free.empty()) {
      block = std::move(small_->free.back());
      small_->free.pop_back();
    }
  }
  if (block == nullptr) {
    block = std::make_unique<const AlignedBytes>(size);
  }
  {
    const std::lock_guard lock(small_->mutex);
    ++small_->num_used;
  }
  return {block.release(), [small = small_](const AlignedBytes* freed) {
            give_back(*small, std::unique_ptr<const AlignedBytes>(freed));
          }};
}

void WeightMemory::give_back(SmallBlocks& blocks, std::unique_ptr<const AlignedBytes> block) {
  std::vector<std::unique_ptr<const AlignedBytes>> excess;  // freed without the lock
  const std::lock_guard lock(blocks.mutex);
  --blocks.num_used;
  blocks.free.push_back(std::move(block));
  while (blocks.free.size() > blocks.num_used) {
    excess.push_back(std::move(blocks.free.back()));
    blocks.free.pop_back();
  }
}

std::size_t WeightMemory::num_free() const {
  const std::lock_guard lock(small_->mutex);
  return small_->free.size();
}

WeightBytes WeightMemory::allocate(std::int64_t size) {
  const WeightPlacement::BlockOffset at = placement_.add(size);
  const bool own = at.kind == WeightPlacement::Kind::kOwn;
  Block block = own ? nullptr : blocks_[static_cast<std::size_t>(at.kind)];
  if (at.block_bytes > 0) {
    block = new_block(at.kind, at.block_bytes);
    block_bytes_ += at.block_bytes;
    if (!own) {
      blocks_[static_cast<std::size_t>(at.kind)] = block;
    }
  }
  return {std::move(block), at.offset, size};
}

}  // namespace tidemill::engines::cpu
