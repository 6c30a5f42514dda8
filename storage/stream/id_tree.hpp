// SPDX-License-Identifier: Apache-2.0
// The tree below ordered sets and maps of ids. Private to storage/stream.
//
// A page has one bit for each of 4096 consecutive ids. Above the pages is a tree whose nodes have
// 64 children each: six bits of the id choose the child, and a word says which children exist. Ids
// that were given out one after the other share their page, so that n such ids have about n / 4096
// pages. The tree has a fixed number of levels, which is enough for ids that differ in their last
// 30 bits only, and gets more if they differ in others. So the cost of a call does not depend on
// the number of ids.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "storage/stream/slots.hpp"

namespace tidemill::storage::internal {

inline constexpr unsigned kIdBits = 6;  // that choose a child, a word or a bit
inline constexpr std::uint64_t kLastIndex = (1U << kIdBits) - 1;

/// Returns a word in which only bit `index` is set.
[[nodiscard]] constexpr std::uint64_t bit_at(std::uint64_t index) noexcept {
  return std::uint64_t{1} << index;
}
/// Returns a word in which the bits from `index` on are set. Requires `index` < 64.
[[nodiscard]] constexpr std::uint64_t bits_from(std::uint64_t index) noexcept {
  return ~std::uint64_t{0} << index;
}
/// Returns the index of the lowest bit that is set. Requires that there is one.
[[nodiscard]] constexpr std::uint64_t lowest(std::uint64_t word) noexcept {
  return static_cast<std::uint64_t>(std::countr_zero(word));
}

/// The bits of 4096 ids, and which of their words are not 0.
struct IdPage {
  std::uint64_t used = 0;
  std::array<std::uint64_t, 64> words{};

  [[nodiscard]] bool contains(std::uint64_t id) const noexcept {
    return (words[id >> kIdBits & kLastIndex] >> (id & kLastIndex) & 1U) != 0;
  }
  void insert(std::uint64_t id) noexcept {
    const std::uint64_t word = id >> kIdBits & kLastIndex;
    words[word] |= bit_at(id & kLastIndex);
    used |= bit_at(word);
  }
  /// Returns whether the word of the id is now 0.
  bool erase(std::uint64_t id) noexcept {
    const std::uint64_t word = id >> kIdBits & kLastIndex;
    words[word] &= ~bit_at(id & kLastIndex);
    used &= ~(std::uint64_t{words[word] == 0} << word);
    return words[word] == 0;
  }
};

/// Pages of ids, by the ids that they are for. `Page` is an `IdPage` or derives from it. A page
/// that is given back must be as a new one.
///
/// Memory: pages and nodes are reused, and given back with the tree. There are never more than the
/// largest number of pages that existed together, with a node for each level.
/// Threads: one call at a time. A tree that was moved from may only be destroyed or assigned to.
template <class Page>
class IdTree {
public:
  static constexpr unsigned kPageBits = 2 * kIdBits;

  class Place;

  IdTree() = default;
  IdTree(const IdTree&) = delete;
  IdTree& operator=(const IdTree&) = delete;
  IdTree(IdTree&&) noexcept = default;
  IdTree& operator=(IdTree&&) noexcept = default;
  ~IdTree() = default;

  /// Returns the page of an id, or null.
  [[nodiscard]] Page* find(std::uint64_t id) const noexcept {
    if ((id & root_mask_) != root_base_ || root_ == nullptr) {
      return nullptr;
    }
    void* node = root_;
    for (unsigned shift = root_shift_; shift >= kPageBits && node != nullptr; shift -= kIdBits) {
      node = static_cast<const Inner*>(node)->child[id >> shift & kLastIndex];
    }
    return static_cast<Page*>(node);
  }
  /// Returns the page of an id, which is added if it does not exist.
  [[nodiscard]] Page& reach(std::uint64_t id) {
    cover(id);
    void* node = root_;
    for (unsigned shift = root_shift_; shift >= kPageBits; shift -= kIdBits) {
      auto* inner = static_cast<Inner*>(node);
      void*& child = inner->child[id >> shift & kLastIndex];
      if (child == nullptr) {
        child = shift == kPageBits ? static_cast<void*>(pages_.take()) : inner_.take();
        inner->used |= bit_at(id >> shift & kLastIndex);
      }
      node = child;
    }
    return *static_cast<Page*>(node);
  }
  /// Removes the page of an id, and the nodes that become empty. Requires that it exists.
  void remove(std::uint64_t id);
  /// Returns the page with the smallest ids.
  [[nodiscard]] Place first() const;

private:
  static constexpr unsigned kMinRootShift = 24;  // for 30 bits of an id
  static constexpr unsigned kMaxRootShift = 60;  // for all bits of an id

  struct Inner {
    std::uint64_t used = 0;  // bit i: child i exists
    std::array<void*, 64> child{};
  };
  using Path = std::array<Inner*, kMaxRootShift / kIdBits + 1>;  // by shift / kIdBits

  // Makes the tree high enough for `id`.
  void cover(std::uint64_t id) {
    if (root_ == nullptr) {
      root_ = inner_.take();
      set_root_shift(kMinRootShift, id);
    }
    while ((id & root_mask_) != root_base_) {
      Inner* above = inner_.take();
      const std::uint64_t index = root_base_ >> (root_shift_ + kIdBits) & kLastIndex;
      above->used = bit_at(index);
      above->child[index] = std::exchange(root_, above);
      set_root_shift(root_shift_ + kIdBits, root_base_);
    }
  }
  void set_root_shift(unsigned shift, std::uint64_t id) {
    root_shift_ = shift;
    root_mask_ = shift == kMaxRootShift ? 0 : bits_from(shift + kIdBits);
    root_base_ = id & root_mask_;
  }

  ObjectPool<Inner> inner_;
  ObjectPool<Page> pages_;
  Inner* root_ = nullptr;
  unsigned root_shift_ = kMinRootShift;  // of the bits that choose a child of the root
  std::uint64_t root_mask_ = 0;          // the bits that all ids share
  std::uint64_t root_base_ = 0;          // and their values
};

template <class Page>
void IdTree<Page>::remove(std::uint64_t id) {
  Path path;  // filled as far as it is read
  void* node = root_;
  for (unsigned shift = root_shift_; shift >= kPageBits; shift -= kIdBits) {
    path[shift / kIdBits] = static_cast<Inner*>(node);
    node = path[shift / kIdBits]->child[id >> shift & kLastIndex];
  }
  pages_.give_back(static_cast<Page*>(node));
  for (unsigned shift = kPageBits; shift <= root_shift_; shift += kIdBits) {
    Inner* inner = path[shift / kIdBits];
    inner->child[id >> shift & kLastIndex] = nullptr;
    inner->used &= ~bit_at(id >> shift & kLastIndex);
    if (inner->used != 0) {
      return;
    }
    inner_.give_back(inner);
  }
  root_ = nullptr;
}

/// A page of a tree, on the way from the one with the smallest ids to the one with the greatest.
/// Valid until the tree changes.
template <class Page>
class IdTree<Page>::Place {
public:
  Place() = default;

  /// Returns the page, or null past the last one.
  [[nodiscard]] const Page* page() const noexcept { return page_; }
  /// Returns the smallest id of the page.
  [[nodiscard]] std::uint64_t base() const noexcept { return base_; }
  /// Goes to the next page. Requires that there is a page.
  void advance() noexcept {
    for (unsigned shift = kPageBits; shift <= root_shift_; shift += kIdBits) {
      const std::uint64_t later = bits_from(base_ >> shift & kLastIndex) << 1;
      if (const std::uint64_t rest = path_[shift / kIdBits]->used & later; rest != 0) {
        base_ = (base_ & bits_from(shift) << kIdBits) | lowest(rest) << shift;
        descend(shift);
        return;
      }
    }
    page_ = nullptr;
  }

private:
  friend class IdTree;

  // Goes from the node at `shift` to the child that `base_` names, and on to its first page.
  void descend(unsigned shift) noexcept {
    const void* node = path_[shift / kIdBits]->child[base_ >> shift & kLastIndex];
    while (shift > kPageBits) {
      shift -= kIdBits;
      path_[shift / kIdBits] = static_cast<const Inner*>(node);
      const std::uint64_t index = lowest(path_[shift / kIdBits]->used);
      base_ |= index << shift;
      node = path_[shift / kIdBits]->child[index];
    }
    page_ = static_cast<const Page*>(node);
  }

  const Page* page_ = nullptr;
  std::uint64_t base_ = 0;
  unsigned root_shift_ = 0;
  std::array<const Inner*, kMaxRootShift / kIdBits + 1> path_{};  // by shift / kIdBits
};

template <class Page>
typename IdTree<Page>::Place IdTree<Page>::first() const {
  Place place;
  if (root_ != nullptr) {
    place.root_shift_ = root_shift_;
    place.path_[root_shift_ / kIdBits] = root_;
    place.base_ = root_base_ | lowest(root_->used) << root_shift_;
    place.descend(root_shift_);
  }
  return place;
}

}  // namespace tidemill::storage::internal
