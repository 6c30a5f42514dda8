// SPDX-License-Identifier: Apache-2.0
// The units that one task may lease, in admission order, with fresh and stale units apart.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "storage/records/sample.hpp"
#include "storage/stream/id_map.hpp"
#include "storage/stream/slots.hpp"

namespace tidemill::storage {

/// What one delivery consists of: a row or a group. Units are ordered by admission.
struct Unit {
  std::uint64_t position = 0;  // id of the row, or of the group's first row
  std::uint64_t id = 0;        // of the row or of the group
  friend auto operator<=>(const Unit&, const Unit&) = default;
};

/// The ready units of one task. No two of them have the same position.
///
/// A unit is fresh if it has no version or if `oldest_step + max_staleness >= version`. A change of
/// the version moves only the units whose freshness changes.
/// Cost: O(log n) per call, and per unit moved. Allocates only to hold more units than ever before.
class ReadySet {
public:
  class Units;

  explicit ReadySet(std::optional<std::uint64_t> max_staleness) : max_staleness_(max_staleness) {}

  /// Adds a unit, or changes its `oldest_step`.
  void put(Unit unit, std::uint64_t oldest_step);
  /// Removes a unit, if it is present.
  void erase(Unit unit);
  /// Sets the version that decides which units are fresh.
  void set_version(std::uint64_t version);

  /// Fresh units in admission order, each with its `oldest_step`. Borrowed until the next change.
  [[nodiscard]] Units fresh() const noexcept;
  /// Stale units in admission order, each with its `oldest_step`. Borrowed until the next change.
  [[nodiscard]] Units stale() const noexcept;

private:
  // A unit and its place in `by_step_`, if it has one.
  struct Item {
    Unit unit;
    std::uint64_t oldest_step = kNoStep;
    std::size_t heap_index = kNotInHeap;
  };
  static constexpr std::size_t kNotInHeap = ~std::size_t{0};

  [[nodiscard]] bool fresh_at(std::uint64_t oldest_step) const noexcept;
  void add(Slot slot);
  void take_from_heap(Slot slot);
  // Stores `slot` at an index of `by_step_`, and moves it to where its step belongs.
  void sift_up(std::size_t index, Slot slot);
  void sift_down(std::size_t index, Slot slot);
  void place(std::size_t index, Slot slot);

  std::optional<std::uint64_t> max_staleness_;
  std::uint64_t version_ = 0;
  SlotArray<Item> items_;
  IdMap fresh_;  // items, by position
  IdMap stale_;
  // A binary heap of the fresh units that can become stale, the oldest version first. Used only
  // with `max_staleness`.
  std::vector<Slot> by_step_;
};

/// Units of a set, in admission order, each with its `oldest_step`.
class ReadySet::Units {
public:
  using value_type = std::pair<Unit, std::uint64_t>;
  class Iterator;
  using iterator = Iterator;
  using const_iterator = Iterator;

  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;
  [[nodiscard]] std::size_t size() const noexcept { return by_position_->size(); }
  [[nodiscard]] bool empty() const noexcept { return by_position_->empty(); }
  /// Returns the first unit. Requires that there is one.
  [[nodiscard]] Unit front() const { return (*items_)[by_position_->front().slot].unit; }
  friend bool operator==(const Units& a, const Units& b);

private:
  friend class ReadySet;
  Units(const SlotArray<Item>& items, const IdMap& by_position)
      : items_(&items), by_position_(&by_position) {}

  const SlotArray<Item>* items_;
  const IdMap* by_position_;
};

/// Visits units in admission order.
class ReadySet::Units::Iterator {
public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = Units::value_type;
  using difference_type = std::ptrdiff_t;
  using pointer = const value_type*;
  using reference = value_type;

  Iterator() = default;
  [[nodiscard]] value_type operator*() const {
    const Item& item = (*items_)[(*it_).slot];
    return {item.unit, item.oldest_step};
  }
  Iterator& operator++() {
    ++it_;
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++it_;
    return before;
  }
  friend bool operator==(const Iterator& a, const Iterator& b) noexcept { return a.it_ == b.it_; }

private:
  friend class Units;
  Iterator(const SlotArray<Item>& items, IdMap::Iterator it) : items_(&items), it_(it) {}

  const SlotArray<Item>* items_ = nullptr;
  IdMap::Iterator it_;
};

inline ReadySet::Units::Iterator ReadySet::Units::begin() const {
  return {*items_, by_position_->begin()};
}
inline ReadySet::Units::Iterator ReadySet::Units::end() const {
  return {*items_, by_position_->end()};
}
inline ReadySet::Units ReadySet::fresh() const noexcept {
  return {items_, fresh_};
}
inline ReadySet::Units ReadySet::stale() const noexcept {
  return {items_, stale_};
}

}  // namespace tidemill::storage
