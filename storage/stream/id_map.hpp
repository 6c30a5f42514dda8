// SPDX-License-Identifier: Apache-2.0
// Ordered sets of ids, and ordered maps from ids to slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "storage/stream/id_tree.hpp"
#include "storage/stream/slots.hpp"

namespace tidemill::storage {

namespace internal {

/// The slots of the ids of one word.
struct alignas(64) WordSlots {
  WordSlots() { slots.fill(kNoSlot); }
  std::array<Slot, 64> slots;
};

/// A page with the slots of its ids.
struct SlotPage : IdPage {
  std::array<WordSlots*, 64> leaves{};  // null where the word is 0
};

/// Visits ids in ascending order.
template <class Page>
class IdCursor {
public:
  IdCursor() = default;
  explicit IdCursor(const IdTree<Page>& tree) : place_(tree.first()) { enter_page(); }

  [[nodiscard]] std::uint64_t id() const noexcept {
    return place_.base() | word_ << kIdBits | lowest(bits_);
  }
  [[nodiscard]] const Page* page() const noexcept { return place_.page(); }
  void advance() noexcept {
    bits_ &= bits_ - 1;
    if (bits_ != 0) {
      return;
    }
    words_ &= words_ - 1;
    if (words_ != 0) {
      enter_word();
    } else {
      place_.advance();
      enter_page();
    }
  }
  friend bool operator==(const IdCursor& a, const IdCursor& b) noexcept {
    return a.page() == b.page() && a.bits_ == b.bits_ && a.words_ == b.words_;
  }

private:
  void enter_page() noexcept {
    words_ = page() == nullptr ? 0 : page()->used;
    if (words_ != 0) {
      enter_word();
    }
  }
  void enter_word() noexcept {
    word_ = lowest(words_);
    bits_ = page()->words[word_];
  }

  typename IdTree<Page>::Place place_;
  std::uint64_t words_ = 0;  // of the page that are left
  std::uint64_t word_ = 0;
  std::uint64_t bits_ = 0;  // of that word that are left
};

}  // namespace internal

/// A set of ids, in ascending order.
///
/// Cost: O(log of the largest id, to base 64) per call. Allocates only for more pages than ever.
/// Memory: for ids without gaps, 1 bit per id. At most 1.6 KiB per id of the largest set that ever
/// was, if the ids are so far apart that none share a page or a node.
/// Threads: one call at a time. A set that was moved from may only be destroyed or assigned to.
class IdSet {
public:
  void insert(std::uint64_t id);
  /// Removes an id, if it is present.
  void erase(std::uint64_t id);
  [[nodiscard]] bool contains(std::uint64_t id) const noexcept {
    const internal::IdPage* page = tree_.find(id);
    return page != nullptr && page->contains(id);
  }
  /// Begins to load what tells whether an id is in the set into the processor's cache.
  // Inlined, because GCC removes calls of functions that only prefetch.
  [[gnu::always_inline]] void prefetch(std::uint64_t id) const noexcept {
    if (const internal::IdPage* page = tree_.find(id); page != nullptr) {
      __builtin_prefetch(&page->words[id >> internal::kIdBits & internal::kLastIndex], 1);
    }
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the smallest id. Requires that there is one.
  [[nodiscard]] std::uint64_t front() const;
  friend bool operator==(const IdSet& a, const IdSet& b);

private:
  internal::IdTree<internal::IdPage> tree_;
  std::size_t size_ = 0;
};

/// A map from ids to slots, in ascending order of the ids.
///
/// Cost: as that of `IdSet`.
/// Memory: for ids without gaps, 4.3 bytes per id. At most 2.5 KiB per id of the largest map that
/// ever was, if the ids are so far apart that none share a page or a node.
/// Threads: one call at a time. A map that was moved from may only be destroyed or assigned to.
class IdMap {
public:
  struct Entry {
    std::uint64_t id = 0;
    Slot slot = kNoSlot;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  class Iterator;

  /// Returns the slot of an id, or `kNoSlot`.
  [[nodiscard]] Slot find(std::uint64_t id) const noexcept {
    const internal::SlotPage* page = tree_.find(id);
    if (page == nullptr) {
      return kNoSlot;
    }
    const internal::WordSlots* leaf = page->leaves[id >> internal::kIdBits & internal::kLastIndex];
    return leaf == nullptr ? kNoSlot : leaf->slots[id & internal::kLastIndex];
  }
  [[nodiscard]] bool contains(std::uint64_t id) const noexcept { return find(id) != kNoSlot; }
  /// Adds an id, or changes its slot.
  void insert(std::uint64_t id, Slot slot);
  /// Removes an id, if it is present. Returns its slot, or `kNoSlot`.
  Slot erase(std::uint64_t id);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the entry of the smallest id. Requires that there is one.
  [[nodiscard]] Entry front() const;

  /// An iterator is valid until the next change.
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;

private:
  internal::IdTree<internal::SlotPage> tree_;
  ObjectPool<internal::WordSlots> leaves_;
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
  [[nodiscard]] Entry operator*() const noexcept {
    const std::uint64_t id = cursor_.id();
    const auto* leaf = cursor_.page()->leaves[id >> internal::kIdBits & internal::kLastIndex];
    return {id, leaf->slots[id & internal::kLastIndex]};
  }
  Iterator& operator++() {
    cursor_.advance();
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const Iterator& a, const Iterator& b) noexcept {
    return a.cursor_ == b.cursor_;
  }

private:
  friend class IdMap;
  explicit Iterator(const internal::IdTree<internal::SlotPage>& tree) : cursor_(tree) {}

  internal::IdCursor<internal::SlotPage> cursor_;
};

inline IdMap::Iterator IdMap::begin() const {
  return Iterator(tree_);
}
inline IdMap::Iterator IdMap::end() const {
  return {};
}

}  // namespace tidemill::storage
