// SPDX-License-Identifier: Apache-2.0
// Memory of packed weights: all but the largest lie side by side on large pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "engines/ops/cpu/scratch.hpp"

namespace tidemill::engines::cpu {

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

private:
  // A block with room at its end.
  struct Open {
    std::shared_ptr<const AlignedBytes> block;
    std::int64_t used = 0;
  };

  [[nodiscard]] static WeightBytes cut(Open& open, std::int64_t block_bytes, std::int64_t size,
                                       std::int64_t rounded);

  Open small_;
  Open medium_;
  Open large_;
};

}  // namespace tidemill::engines::cpu
