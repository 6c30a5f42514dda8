// SPDX-License-Identifier: Apache-2.0
#include "storage/stream/id_map.hpp"

#include <bit>

namespace tidemill::storage {
namespace {

constexpr std::uint64_t bit(std::uint64_t index) noexcept {
  return std::uint64_t{1} << index;
}

// The bits from `index` on. Requires `index` < 64.
constexpr std::uint64_t bits_from(std::uint64_t index) noexcept {
  return ~std::uint64_t{0} << index;
}

}  // namespace

// -- nodes --------------------------------------------------------------------

template <class Kind>
Kind* IdMap::Pool<Kind>::take() {
  if (free_ != nullptr) {
    Kind* node = free_;
    free_ = reinterpret_cast<Kind*>(node->used);
    node->used = 0;
    return node;
  }
  constexpr std::size_t kChunk = 16;
  if (end_ == chunks_.size() * kChunk) {
    chunks_.push_back(std::make_unique<std::array<Kind, kChunk>>());
  }
  Kind* node = &(*chunks_[end_ / kChunk])[end_ % kChunk];
  ++end_;
  return node;
}

template <class Kind>
void IdMap::Pool<Kind>::give_back(Kind* node) {
  node->used = reinterpret_cast<std::uint64_t>(free_);
  free_ = node;
}

void IdMap::set_levels(unsigned levels, std::uint64_t id) {
  levels_ = levels;
  root_mask_ = levels == kMaxLevels ? 0 : bits_from(kBits * levels);
  root_base_ = id & root_mask_;
}

void IdMap::cover(std::uint64_t id) {
  if (root_ == nullptr) {
    root_ = inner_.take();
    set_levels(kMinLevels, id);
  }
  while ((id & root_mask_) != root_base_) {
    Inner* above = inner_.take();
    const std::uint64_t index = root_base_ >> kBits * levels_ & kLast;
    above->used = bit(index);
    above->child[index] = root_;
    root_ = above;
    set_levels(levels_ + 1, root_base_);
  }
}

// -- changing -----------------------------------------------------------------

void IdMap::insert(std::uint64_t id, Slot slot) {
  if (root_ == nullptr || (id & root_mask_) != root_base_) {
    cover(id);
  }
  Node* node = root_;
  for (unsigned shift = kBits * (levels_ - 1); shift > 0; shift -= kBits) {
    auto* inner = static_cast<Inner*>(node);
    const std::uint64_t index = id >> shift & kLast;
    node = inner->child[index];
    if (node == nullptr) {
      node = shift == kBits ? static_cast<Node*>(leaves_.take()) : inner_.take();
      inner->child[index] = node;
      inner->used |= bit(index);
    }
  }
  auto* leaf = static_cast<Leaf*>(node);
  size_ += leaf->slot[id & kLast] == kNoSlot ? 1 : 0;
  leaf->slot[id & kLast] = slot;
  leaf->used |= bit(id & kLast);
}

Slot IdMap::erase(std::uint64_t id) {
  Node* node = root_;
  if (node == nullptr || (id & root_mask_) != root_base_) {
    return kNoSlot;
  }
  std::array<Inner*, kMaxLevels> path;  // by level; filled as far as it is read
  for (unsigned level = levels_ - 1; level > 0; --level) {
    path[level] = static_cast<Inner*>(node);
    node = path[level]->child[id >> kBits * level & kLast];
    if (node == nullptr) {
      return kNoSlot;
    }
  }
  auto* leaf = static_cast<Leaf*>(node);
  const Slot slot = std::exchange(leaf->slot[id & kLast], kNoSlot);
  if (slot == kNoSlot) {
    return kNoSlot;
  }
  --size_;
  leaf->used &= ~bit(id & kLast);
  if (leaf->used == 0) {
    leaves_.give_back(leaf);
    prune(path, id);
  }
  return slot;
}

void IdMap::prune(const std::array<Inner*, kMaxLevels>& path, std::uint64_t id) {
  for (unsigned level = 1; level < levels_; ++level) {
    Inner* inner = path[level];
    const std::uint64_t index = id >> kBits * level & kLast;
    inner->child[index] = nullptr;
    inner->used &= ~bit(index);
    if (inner->used != 0) {
      return;
    }
    inner_.give_back(inner);
  }
  root_ = nullptr;
}

// -- visiting -----------------------------------------------------------------

IdMap::Place IdMap::seek(std::uint64_t id) const {
  if (root_ == nullptr || (id & root_mask_) > root_base_) {
    return {};
  }
  if ((id & root_mask_) < root_base_) {
    id = root_base_;
  }
  std::array<const Node*, kMaxLevels> path;  // by level; filled as far as it is read
  unsigned level = levels_ - 1;
  path[level] = root_;
  while (true) {
    const std::uint64_t index = id >> kBits * level & kLast;
    const std::uint64_t rest = path[level]->used & bits_from(index);
    if (rest != 0 && level == 0) {
      return {static_cast<const Leaf*>(path[0]), id & ~std::uint64_t{kLast}, rest};
    }
    if (rest != 0) {
      const auto next = static_cast<std::uint64_t>(std::countr_zero(rest));
      if (next != index) {  // all ids of that child are greater
        id = (id & bits_from(kBits * level) << kBits) | next << kBits * level;
      }
      path[level - 1] = static_cast<const Inner*>(path[level])->child[next];
      --level;
      continue;
    }
    // All ids that are left differ in the bits of a higher level.
    do {
      if (++level == levels_) {
        return {};
      }
    } while ((id >> kBits * level & kLast) == kLast);
    id = (id & bits_from(kBits * level)) + bit(kBits * level);
    if (id == 0) {  // that was the last id of all
      return {};
    }
  }
}

IdMap::Entry IdMap::front() const {
  TIDEMILL_CHECK(!empty());
  return *begin();
}

IdMap::Iterator IdMap::begin() const {
  return {this, seek(0)};
}

IdMap::Iterator IdMap::end() const {
  return {this, {}};
}

IdMap::Entry IdMap::Iterator::operator*() const noexcept {
  const auto index = static_cast<std::uint64_t>(std::countr_zero(place_.rest));
  return {place_.base + index, place_.leaf->slot[index]};
}

IdMap::Iterator& IdMap::Iterator::operator++() {
  place_.rest &= place_.rest - 1;
  if (place_.rest == 0) {
    const bool last = place_.base >= bits_from(kBits);
    place_ = last ? Place{} : map_->seek(place_.base + kLast + 1);
  }
  return *this;
}

}  // namespace tidemill::storage
