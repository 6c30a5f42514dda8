// SPDX-License-Identifier: Apache-2.0
// Memory for records that come and go: numbered slots that keep their addresses and are reused.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/tensor/aligned_bytes.hpp"

namespace tidemill::storage {

/// The number of a slot. Slots are dense: the numbers in use are below the largest number of slots
/// that were ever in use together.
using Slot = std::uint32_t;

/// Stands for "no slot".
inline constexpr Slot kNoSlot = 0xFFFFFFFF;

/// Uninitialized memory for slots of one size. It grows in blocks, each as large as all before it,
/// so growing moves nothing. Large blocks are in large pages.
///
/// Memory: pages are used up to the largest slot that was ever touched, and given back with the
/// object.
class SlotMemory {
public:
  /// Slots whose size is a multiple of 64 start on a cache line.
  explicit SlotMemory(std::size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  /// Makes `slot` and all slots below it usable.
  void reach(Slot slot) {
    while (block_of(slot) >= blocks_.size()) {
      blocks_.emplace_back(static_cast<std::int64_t>(slot_bytes_ << (kFirstBits + blocks_.size())));
    }
  }
  [[nodiscard]] std::byte* at(Slot slot) const noexcept {
    const std::size_t block = block_of(slot);
    const std::uint64_t first = (std::uint64_t{1} << (kFirstBits + block)) - kFirst;
    return blocks_[block].data() + (slot - first) * slot_bytes_;
  }

private:
  static constexpr unsigned kFirstBits = 6;  // small, since most streams have few rows
  static constexpr std::uint64_t kFirst = std::uint64_t{1} << kFirstBits;

  // Block b has 2^b times as many slots as the first.
  [[nodiscard]] static std::size_t block_of(Slot slot) noexcept {
    return static_cast<std::size_t>(std::bit_width(slot + kFirst)) - 1 - kFirstBits;
  }

  std::size_t slot_bytes_;
  std::vector<AlignedBytes> blocks_;
};

/// Records in slots. A record that was given back keeps its value until its slot is taken again.
template <class T>
class SlotArray {
public:
  SlotArray() : memory_(sizeof(Element)) {}

  /// Returns a slot that is not in use. Its record has any value.
  [[nodiscard]] Slot take() {
    ++in_use_;
    if (free_ != kNoSlot) {
      const Slot slot = free_;
      free_ = element(slot).next_free;
      return slot;
    }
    TIDEMILL_CHECK(end_ != kNoSlot) << "no slots are left";
    memory_.reach(end_);
    new (memory_.at(end_)) Element;
    return end_++;
  }
  /// Gives back a slot that is in use.
  void give_back(Slot slot) {
    --in_use_;
    element(slot).next_free = free_;
    free_ = slot;
  }
  [[nodiscard]] T& operator[](Slot slot) { return element(slot).record; }
  [[nodiscard]] const T& operator[](Slot slot) const { return element(slot).record; }
  [[nodiscard]] std::size_t in_use() const noexcept { return in_use_; }

private:
  struct Element {
    T record;
    Slot next_free = kNoSlot;  // of slots that are not in use
  };
  static_assert(std::is_trivially_destructible_v<T>);

  [[nodiscard]] Element& element(Slot slot) const {
    return *std::launder(reinterpret_cast<Element*>(memory_.at(slot)));
  }

  SlotMemory memory_;
  Slot free_ = kNoSlot;
  Slot end_ = 0;
  std::size_t in_use_ = 0;
};

/// Objects that keep their addresses and are reused. An object that was given back keeps its value
/// until it is taken again, except its first bytes, which are as in a new object.
template <class T>
class ObjectPool {
public:
  ObjectPool() : memory_(sizeof(T)) {}

  /// Returns an object that is new or was given back.
  [[nodiscard]] T* take() {
    if (free_ == nullptr) {
      memory_.reach(end_);
      return new (memory_.at(end_++)) T;
    }
    T* object = free_;
    std::memcpy(static_cast<void*>(&free_), object, kLinkBytes);
    std::memcpy(static_cast<void*>(object), &first_, kLinkBytes);
    return object;
  }
  /// Gives back an object whose first bytes are as in a new one.
  void give_back(T* object) {
    std::memcpy(&first_, object, kLinkBytes);
    std::memcpy(static_cast<void*>(object), &free_, kLinkBytes);
    free_ = object;
  }

private:
  static constexpr std::size_t kLinkBytes = sizeof(std::uintptr_t);
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) >= kLinkBytes);

  SlotMemory memory_;
  T* free_ = nullptr;         // the last object given back; its first bytes point to the next
  std::uintptr_t first_ = 0;  // what they are in a new object
  Slot end_ = 0;
};

}  // namespace tidemill::storage
