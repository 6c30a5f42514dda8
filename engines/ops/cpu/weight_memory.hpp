// SPDX-License-Identifier: Apache-2.0
// Memory of packed weights: all but the largest lie side by side on large pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/aligned_bytes.hpp"

namespace tidemill::engines::cpu {

/// Where weights lie that are made after each other: what memory they take can be told without
/// taking it.
class WeightPlaces {
public:
  /// Which blocks a weight lies in: one that is cut into small weights, or one of its own.
  enum class Kind : std::uint8_t { kSmall, kMedium, kLarge, kOwn };
  static constexpr std::size_t kSharedKinds = 3;  // all but kOwn
  struct Place {
    Kind kind = Kind::kOwn;
    std::int64_t block_bytes = 0;  // of a block that must be made for it; 0: the last one of `kind`
    std::int64_t offset = 0;       // in its block
  };

  /// Returns the place of the next weight, of `size` bytes.
  [[nodiscard]] Place add(std::int64_t size);
  /// Returns the bytes of all blocks, without the large pages at their ends that nothing lies in.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

private:
  [[nodiscard]] Place cut(Kind kind, std::int64_t block_bytes, std::int64_t size);

  // What is used of the last block of a kind; 0: there is none.
  std::array<std::int64_t, kSharedKinds> used_{};
  std::int64_t bytes_ = 0;
};

/// What blocks take while sets of weights are made one after the other and go again: a block stays
/// while a weight in it does, or while there may be room at its end.
class WeightSets {
public:
  /// Begins a set, after letting the oldest of those before go until `sets` exist with it. Weights
  /// added before the first call stay.
  void begin_set(std::int64_t sets);
  /// Adds a weight of `size` bytes to the set.
  void add(std::int64_t size);
  /// Returns the bytes of the blocks that are there, as `WeightPlaces` counts them.
  [[nodiscard]] std::int64_t bytes() const noexcept;

private:
  struct Block {
    std::int64_t used = 0;         // bytes, from its begin on
    std::int64_t newest_set = -1;  // with a weight in it; -1: of those that stay
    bool stays = false;            // holds one that stays
    bool shared = false;           // and is cut into weights
  };

  WeightPlaces places_;
  std::vector<Block> blocks_;
  // The last block of each kind that is cut, or -1.
  std::array<std::int64_t, WeightPlaces::kSharedKinds> last_{-1, -1, -1};
  std::int64_t set_ = -1;
  std::int64_t oldest_ = 0;  // set that is still there
};

/// The bytes of one weight, from a cache line on, uninitialised. Keeps the block alive that they
/// are in.
class WeightBytes {
public:
  WeightBytes(std::shared_ptr<const AlignedBytes> block, std::int64_t offset, std::int64_t size)
      : data_(block->data() + offset), size_(size), block_(std::move(block)) {}

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

private:
  std::byte* data_;
  std::int64_t size_;
  std::shared_ptr<const AlignedBytes> block_;
};

/// Cuts blocks of large pages into weights, those of like size that are made after each other from
/// one block: they are read with fewer address translations so, and no page is made for the end of
/// one weight alone. One of more than 16 MiB gets a block of its own. A block is freed with the
/// last weight in it.
/// Threads: one call at a time.
class WeightMemory {
public:
  [[nodiscard]] WeightBytes allocate(std::int64_t size);

  /// Returns the bytes of the blocks made so far, as `WeightPlaces` counts them.
  [[nodiscard]] std::int64_t bytes() const noexcept { return places_.bytes(); }
  /// Returns the sizes of the blocks made so far, added up.
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return block_bytes_; }

private:
  WeightPlaces places_;
  std::int64_t block_bytes_ = 0;
  // The last block of each kind, with room at its end.
  std::array<std::shared_ptr<const AlignedBytes>, WeightPlaces::kSharedKinds> blocks_;
};

}  // namespace tidemill::engines::cpu
