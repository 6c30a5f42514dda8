// SPDX-License-Identifier: Apache-2.0
// An ordered map from ids to slots.
//
// The map is a tree whose nodes have 64 children each: six bits of the id choose the child, and a
// word of 64 bits says which children exist. Ids that were given out one after the other share
// their nodes, so a map of n such ids has about n / 64 leaves. The tree has a fixed number of
// levels, which is enough for ids that differ in their last 30 bits only, and gets more if they
// differ in others. So the cost of a call does not depend on the number of ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "storage/stream/slots.hpp"

namespace tidemill::storage {

/// Maps ids to slots, in ascending order of the ids.
///
/// Cost: O(log_64 of the largest id) per call, and per id for iteration. Adding an id allocates
/// only if the map needs more nodes than ever before.
/// Memory: nodes are reused and never given back. For each id of the peak, there is at most one
/// leaf (264 bytes) and, in addition, one inner node (520 bytes) for each level. For ids without
/// gaps it is 4.3 bytes per id.
/// Threads: one call at a time. A map that was moved from may only be destroyed or assigned to.
class IdMap {
public:
  struct Entry {
    std::uint64_t id = 0;
    Slot slot = kNoSlot;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  class Iterator;

  IdMap() = default;
  IdMap(const IdMap&) = delete;
  IdMap& operator=(const IdMap&) = delete;
  IdMap(IdMap&&) = default;
  IdMap& operator=(IdMap&&) = default;
  ~IdMap() = default;

  /// Returns the slot of an id, or `kNoSlot`.
  [[nodiscard]] Slot find(std::uint64_t id) const noexcept {
    const Node* node = root_;
    if (node == nullptr || (id & root_mask_) != root_base_) {
      return kNoSlot;
    }
    for (unsigned shift = kBits * (levels_ - 1); shift > 0; shift -= kBits) {
      node = static_cast<const Inner*>(node)->child[id >> shift & kLast];
      if (node == nullptr) {
        return kNoSlot;
      }
    }
    return static_cast<const Leaf*>(node)->slot[id & kLast];
  }
  [[nodiscard]] bool contains(std::uint64_t id) const noexcept { return find(id) != kNoSlot; }

  /// Adds an id, or changes its slot.
  void insert(std::uint64_t id, Slot slot);
  /// Removes an id, if it is present. Returns its slot, or `kNoSlot`.
  Slot erase(std::uint64_t id);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the entry of the smallest id. Requires that the map is not empty.
  [[nodiscard]] Entry front() const;

  /// An iterator is valid until the next change.
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;

private:
  static constexpr unsigned kBits = 6;
  static constexpr unsigned kLast = (1U << kBits) - 1;
  static constexpr unsigned kMinLevels = 5;
  static constexpr unsigned kMaxLevels = 11;  // for all bits of an id

  // A node that is given back has no children, so it is ready to be taken again.
  struct Node {
    std::uint64_t used = 0;  // bit i: child i exists
  };
  struct Inner : Node {
    std::array<Node*, 64> child{};
  };
  struct Leaf : Node {
    Leaf() { slot.fill(kNoSlot); }
    std::array<Slot, 64> slot;
  };
  // Nodes of one kind, which keep their addresses. Free ones are listed through `used`.
  template <class Kind>
  class Pool {
  public:
    [[nodiscard]] Kind* take();
    void give_back(Kind* node);

  private:
    std::vector<std::unique_ptr<std::array<Kind, 16>>> chunks_;
    std::size_t end_ = 0;
    Kind* free_ = nullptr;
  };

  // Where a search has come to: a leaf, its smallest possible id, and the children to be visited.
  struct Place {
    const Leaf* leaf = nullptr;  // null: past the last id
    std::uint64_t base = 0;
    std::uint64_t rest = 0;
  };

  // Returns where the ids from `id` on begin.
  [[nodiscard]] Place seek(std::uint64_t id) const;
  // Makes the tree high enough for `id`.
  void cover(std::uint64_t id);
  void set_levels(unsigned levels, std::uint64_t id);
  // Removes the empty leaf at the end of `path`, and the inner nodes that become empty.
  void prune(const std::array<Inner*, kMaxLevels>& path, std::uint64_t id);

  Pool<Inner> inner_;
  Pool<Leaf> leaves_;
  Node* root_ = nullptr;
  unsigned levels_ = kMinLevels;
  std::uint64_t root_mask_ = 0;  // the bits that all ids share
  std::uint64_t root_base_ = 0;  // and their values
  std::size_t size_ = 0;
};

/// Visits the entries of a map in ascending order of their ids.
class IdMap::Iterator {
public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = Entry;
  using difference_type = std::ptrdiff_t;
  using pointer = const Entry*;
  using reference = Entry;

  Iterator() = default;
  [[nodiscard]] Entry operator*() const noexcept;
  Iterator& operator++();
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Iterator& a, const Iterator& b) noexcept {
    return a.place_.leaf == b.place_.leaf && a.place_.rest == b.place_.rest;
  }

private:
  friend class IdMap;
  Iterator(const IdMap* map, const Place& place) : map_(map), place_(place) {}

  const IdMap* map_ = nullptr;
  Place place_;
};

}  // namespace tidemill::storage
