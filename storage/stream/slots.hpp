// SPDX-License-Identifier: Apache-2.0
// Memory for records that come and go: numbered slots that keep their addresses and are reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.hpp"

namespace tidemill::storage {

/// The number of a slot. Slots are dense: the numbers in use are below the largest number of slots
/// that were ever in use together.
using Slot = std::uint32_t;

/// Stands for "no slot".
inline constexpr Slot kNoSlot = 0xFFFFFFFF;

/// An array that grows in chunks, so that its elements keep their addresses and growing copies
/// none. Slot `s` has `stride` elements.
///
/// Memory: grows with the largest slot and is given back with the array.
template <class T>
class ChunkedArray {
public:
  explicit ChunkedArray(std::size_t stride = 1) : stride_(stride) {}

  /// Makes `slot` and all slots below it usable. New elements are value-initialized.
  void reach(Slot slot) {
    while (slot >> kChunkBits >= chunks_.size()) {
      chunks_.push_back(std::make_unique<T[]>(stride_ << kChunkBits));
    }
  }
  [[nodiscard]] T& operator[](Slot slot) { return *first(slot); }
  [[nodiscard]] const T& operator[](Slot slot) const { return *first(slot); }
  /// Returns the elements of a slot.
  [[nodiscard]] std::span<T> all(Slot slot) { return {first(slot), stride_}; }
  [[nodiscard]] std::span<const T> all(Slot slot) const { return {first(slot), stride_}; }

private:
  static constexpr unsigned kChunkBits = 8;  // small, since most streams have few rows

  [[nodiscard]] T* first(Slot slot) const noexcept {
    return chunks_[slot >> kChunkBits].get() + (slot & ((1U << kChunkBits) - 1)) * stride_;
  }

  std::size_t stride_;
  std::vector<std::unique_ptr<T[]>> chunks_;  // NOLINT(modernize-avoid-c-arrays): sized at run time
};

/// Numbers slots, and reuses those that were given back, the last one first.
class SlotNumbers {
public:
  /// Returns a slot that is not in use.
  [[nodiscard]] Slot take() {
    ++in_use_;
    if (free_ != kNoSlot) {
      const Slot slot = free_;
      free_ = next_free_[slot];
      return slot;
    }
    TIDEMILL_CHECK(end_ != kNoSlot) << "no slots are left";
    next_free_.reach(end_);
    return end_++;
  }
  /// Gives back a slot that is in use.
  void give_back(Slot slot) {
    --in_use_;
    next_free_[slot] = free_;
    free_ = slot;
  }
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }

private:
  ChunkedArray<Slot> next_free_;  // of slots that are not in use
  Slot free_ = kNoSlot;
  Slot end_ = 0;
  std::size_t in_use_ = 0;
};

/// Records in slots. A record that was given back keeps its value until its slot is taken again.
template <class T>
class SlotArray {
public:
  /// Returns a slot that is not in use. Its record has the value that it was given back with.
  [[nodiscard]] Slot take() {
    const Slot slot = numbers_.take();
    records_.reach(slot);
    return slot;
  }
  void give_back(Slot slot) { numbers_.give_back(slot); }
  [[nodiscard]] T& operator[](Slot slot) { return records_[slot]; }
  [[nodiscard]] const T& operator[](Slot slot) const { return records_[slot]; }
  [[nodiscard]] std::size_t in_use() const noexcept { return numbers_.in_use(); }

private:
  SlotNumbers numbers_;
  ChunkedArray<T> records_;
};

}  // namespace tidemill::storage
