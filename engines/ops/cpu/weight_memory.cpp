// SPDX-License-Identifier: Apache-2.0
#include "engines/ops/cpu/weight_memory.hpp"

#include <algorithm>
#include <iterator>

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

std::int64_t rounded_up(std::int64_t size, std::int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// The size of a block for one weight: whole large pages where that is an eighth more at most.
std::int64_t own_block_bytes(std::int64_t size) {
  const std::int64_t whole = rounded_up(size, kLargePage);
  return whole - size <= size / 8 ? whole : size;
}

}  // namespace

WeightPlaces::Place WeightPlaces::add(std::int64_t size) {
  const std::int64_t rounded = rounded_up(size, kCacheLine);
  if (rounded <= kMostSmall) {
    return cut(Kind::kSmall, kSmallBlock, rounded);
  }
  if (rounded <= kMostMedium) {
    return cut(Kind::kMedium, kMediumBlock, rounded);
  }
  if (rounded <= kMostLarge) {
    return cut(Kind::kLarge, kLargeBlock, rounded);
  }
  const std::int64_t own = own_block_bytes(size);
  bytes_ += own;
  return {Kind::kOwn, own, 0};
}

WeightPlaces::Place WeightPlaces::cut(Kind kind, std::int64_t block_bytes, std::int64_t size) {
  std::int64_t& used = used_[static_cast<std::size_t>(kind)];
  const bool opens = used == 0 || used + size > block_bytes;
  const Place place{kind, opens ? block_bytes : 0, opens ? 0 : used};
  used = place.offset + size;
  bytes_ += rounded_up(used, kLargePage) - rounded_up(place.offset, kLargePage);
  return place;
}

void WeightSets::begin_set(std::int64_t sets) {
  ++set_;
  oldest_ = std::max<std::int64_t>(0, set_ - sets + 1);
}

void WeightSets::add(std::int64_t size) {
  const WeightPlaces::Place place = places_.add(size);
  const bool own = place.kind == WeightPlaces::Kind::kOwn;
  const auto kind = static_cast<std::size_t>(place.kind);
  if (place.block_bytes > 0) {
    blocks_.push_back({.shared = !own});
    if (!own) {
      last_[kind] = std::ssize(blocks_) - 1;
    }
  }
  Block& block = own ? blocks_.back() : blocks_[static_cast<std::size_t>(last_[kind])];
  block.used = own ? place.block_bytes : place.offset + size;
  block.newest_set = set_;
  block.stays = block.stays || set_ < 0;
}

std::int64_t WeightSets::bytes() const noexcept {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const bool last = std::ranges::find(last_, static_cast<std::int64_t>(i)) != last_.end();
    if (block.stays || last || block.newest_set >= oldest_) {
      bytes += block.shared ? rounded_up(block.used, kLargePage) : block.used;
    }
  }
  return bytes;
}

WeightBytes WeightMemory::allocate(std::int64_t size) {
  const WeightPlaces::Place place = places_.add(size);
  const bool own = place.kind == WeightPlaces::Kind::kOwn;
  std::shared_ptr<const AlignedBytes> block =
      own ? nullptr : blocks_[static_cast<std::size_t>(place.kind)];
  if (place.block_bytes > 0) {
    block = std::make_shared<const AlignedBytes>(place.block_bytes);
    block_bytes_ += place.block_bytes;
    if (!own) {
      blocks_[static_cast<std::size_t>(place.kind)] = block;
    }
  }
  return {std::move(block), place.offset, size};
}

}  // namespace tidemill::engines::cpu
