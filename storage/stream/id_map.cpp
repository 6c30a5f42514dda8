// SPDX-License-Identifier: Apache-2.0
#include "storage/stream/id_map.hpp"

#include <utility>

#include "base/check.hpp"

namespace tidemill::storage {

using internal::kIdBits;
using internal::kLastIndex;

// -- sets ---------------------------------------------------------------------

void IdSet::insert(std::uint64_t id) {
  internal::IdPage& page = tree_.reach(id);
  size_ += page.contains(id) ? 0 : 1;
  page.insert(id);
}

void IdSet::erase(std::uint64_t id) {
  internal::IdPage* page = tree_.find(id);
  if (page == nullptr || !page->contains(id)) {
    return;
  }
  --size_;
  page->erase(id);
  if (page->used == 0) {
    tree_.remove(id);
  }
}

std::uint64_t IdSet::front() const {
  TIDEMILL_CHECK(!empty());
  return internal::IdCursor(tree_).id();
}

bool operator==(const IdSet& a, const IdSet& b) {
  internal::IdCursor left(a.tree_);
  internal::IdCursor right(b.tree_);
  for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i) {
    if (left.id() != right.id()) {
      return false;
    }
    left.advance();
    right.advance();
  }
  return a.size() == b.size();
}

// -- maps ---------------------------------------------------------------------

void IdMap::insert(std::uint64_t id, Slot slot) {
  internal::SlotPage& page = tree_.reach(id);
  internal::WordSlots*& leaf = page.leaves[id >> kIdBits & kLastIndex];
  if (leaf == nullptr) {
    leaf = leaves_.take();
  }
  Slot& entry = leaf->slots[id & kLastIndex];
  size_ += entry == kNoSlot ? 1 : 0;
  entry = slot;
  page.insert(id);
}

Slot IdMap::erase(std::uint64_t id) {
  internal::SlotPage* page = tree_.find(id);
  if (page == nullptr || !page->contains(id)) {
    return kNoSlot;
  }
  internal::WordSlots*& leaf = page->leaves[id >> kIdBits & kLastIndex];
  const Slot slot = std::exchange(leaf->slots[id & kLastIndex], kNoSlot);
  --size_;
  if (page->erase(id)) {
    leaves_.give_back(std::exchange(leaf, nullptr));
    if (page->used == 0) {
      tree_.remove(id);
    }
  }
  return slot;
}

IdMap::Entry IdMap::front() const {
  TIDEMILL_CHECK(!empty());
  return *begin();
}

}  // namespace tidemill::storage
