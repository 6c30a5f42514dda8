// SPDX-License-Identifier: Apache-2.0
// Ordered sets of deliverable units.
#include "storage/stream/ready_set.hpp"

#include <algorithm>

namespace tidemill::storage {

bool operator==(const ReadySet::Units& a, const ReadySet::Units& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
}

bool ReadySet::fresh_at(std::uint64_t oldest_step) const noexcept {
  return !max_staleness_ || oldest_step == kNoStep || oldest_step >= version_ ||
         version_ - oldest_step <= *max_staleness_;
}

void ReadySet::put(Unit unit, std::uint64_t oldest_step) {
  Slot slot = fresh_.find(unit.position);
  if (slot != kNoSlot) {
    if (items_[slot].oldest_step == oldest_step) {
      return;
    }
    fresh_.erase(unit.position);
    take_from_heap(slot);
  } else if (!stale_.empty()) {
    slot = stale_.erase(unit.position);
  }
  if (slot == kNoSlot) {
    slot = items_.take();
  }
  items_[slot] = {unit, oldest_step};
  add(slot);
}

void ReadySet::add(Slot slot) {
  const Item& item = items_[slot];
  if (!fresh_at(item.oldest_step)) {
    stale_.insert(item.unit.position, slot);
    return;
  }
  fresh_.insert(item.unit.position, slot);
  if (max_staleness_ && item.oldest_step != kNoStep) {
    by_step_.push_back(slot);
    sift_up(by_step_.size() - 1, slot);
  }
}

void ReadySet::erase(Unit unit) {
  Slot slot = fresh_.erase(unit.position);
  if (slot != kNoSlot) {
    take_from_heap(slot);
  } else {
    slot = stale_.erase(unit.position);
  }
  if (slot != kNoSlot) {
    items_.give_back(slot);
  }
}

void ReadySet::set_version(std::uint64_t version) {
  const bool back = version < version_;
  version_ = version;
  while (!by_step_.empty() && !fresh_at(items_[by_step_.front()].oldest_step)) {
    const Slot slot = by_step_.front();
    take_from_heap(slot);
    fresh_.erase(items_[slot].unit.position);
    stale_.insert(items_[slot].unit.position, slot);
  }
  if (back) {
    // Only recovery lowers the version, so checking every stale unit again is cheap enough.
    const IdMap rechecked = std::exchange(stale_, IdMap());
    for (const auto [position, slot] : rechecked) {
      add(slot);
    }
  }
}

// -- the heap -----------------------------------------------------------------

void ReadySet::place(std::size_t index, Slot slot) {
  by_step_[index] = slot;
  items_[slot].heap_index = index;
}

void ReadySet::sift_up(std::size_t index, Slot slot) {
  const std::uint64_t step = items_[slot].oldest_step;
  while (index > 0 && items_[by_step_[(index - 1) / 2]].oldest_step > step) {
    place(index, by_step_[(index - 1) / 2]);
    index = (index - 1) / 2;
  }
  place(index, slot);
}

void ReadySet::sift_down(std::size_t index, Slot slot) {
  const std::uint64_t step = items_[slot].oldest_step;
  while (2 * index + 1 < by_step_.size()) {
    std::size_t child = 2 * index + 1;
    if (child + 1 < by_step_.size() &&
        items_[by_step_[child + 1]].oldest_step < items_[by_step_[child]].oldest_step) {
      ++child;
    }
    if (items_[by_step_[child]].oldest_step >= step) {
      break;
    }
    place(index, by_step_[child]);
    index = child;
  }
  place(index, slot);
}

void ReadySet::take_from_heap(Slot slot) {
  const std::size_t index = std::exchange(items_[slot].heap_index, kNotInHeap);
  if (index == kNotInHeap) {
    return;
  }
  const Slot last = by_step_.back();
  by_step_.pop_back();
  if (last == slot) {
    return;
  }
  if (index > 0 && items_[by_step_[(index - 1) / 2]].oldest_step > items_[last].oldest_step) {
    sift_up(index, last);
  } else {
    sift_down(index, last);
  }
}

}  // namespace tidemill::storage
