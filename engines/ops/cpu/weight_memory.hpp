// SPDX-License-Identifier: Apache-2.0
// Allocates memory for packed weights. All but the largest share blocks of large pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/tensor/aligned_bytes.hpp"

namespace tidemill::engines::cpu {

/// Assigns blocks and offsets to weights that are allocated one after the other. It allocates
/// nothing itself, so that it can also predict the memory that weights will take.
class WeightPlacement {
public:
  /// The block of a weight: one of three kinds that weights of similar size share, or its own.
  enum class Kind : std::uint8_t { kSmall, kMedium, kLarge, kOwn };
  static constexpr std::size_t kSharedKinds = 3;  // all but kOwn
  struct BlockOffset {
    Kind kind = Kind::kOwn;
    std::int64_t block_bytes = 0;  // size of a new block for it; 0: it uses the last one of `kind`
    std::int64_t offset = 0;       // in its block
  };

  /// Returns the block and the offset of the next weight, which has `size` bytes.
  [[nodiscard]] BlockOffset add(std::int64_t size);
  /// Returns the size of all blocks without the unused large pages at their ends. Units: bytes.
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

private:
  [[nodiscard]] BlockOffset cut(Kind kind, std::int64_t block_bytes, std::int64_t size);

  // Bytes used of the last block of a kind; 0: no block exists.
  std::array<std::int64_t, kSharedKinds> used_{};
  std::int64_t bytes_ = 0;
};

/// Simulates the memory of blocks while sets of weights are allocated and freed in turn. A block
/// exists while it holds a weight, or while it is the last of its kind, which further weights may
/// share.
class WeightSets {
public:
  /// Begins a set, after freeing the oldest sets until `sets` exist including the new one. Weights
  /// added before the first call are never freed.
  void begin_set(std::int64_t sets);
  /// Adds a weight of `size` bytes to the current set.
  void add(std::int64_t size);
  /// Returns the size of the existing blocks, counted as in `WeightPlacement`. Units: bytes.
  [[nodiscard]] std::int64_t bytes() const noexcept;

private:
  struct Block {
    std::int64_t used = 0;         // bytes, from its beginning
    std::int64_t newest_set = -1;  // that has a weight in it; -1: only permanent weights
    bool permanent = false;        // holds a weight that is never freed
    bool shared = false;           // may hold several weights
  };

  WeightPlacement placement_;
  std::vector<Block> blocks_;
  // The last block of each shared kind, or -1.
  std::array<std::int64_t, WeightPlacement::kSharedKinds> last_{-1, -1, -1};
  std::int64_t set_ = -1;    // the current set
  std::int64_t oldest_ = 0;  // the oldest set that is not freed
};

/// Holds the memory of one weight: uninitialized, aligned to a cache line. Keeps its block alive.
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

/// Allocates weights from blocks of large pages.
///
/// Weights of similar size that are allocated one after the other share a block. Reading them then
/// needs fewer address translations, and no page is allocated for the end of a single weight. A
/// weight of more than 16 MiB has its own block. A block is freed with the last weight in it.
///
/// Blocks of small weights that are free are kept to be used again, but not more of them than are
/// in use: the kernel would clear the pages of new ones, which takes longer than packing the
/// weights of an adapter. Blocks never take more memory than they would if none were kept, since a
/// new one is made only if none is free.
/// Threads: one call at a time. Dropping weights is safe in any thread.
class WeightMemory {
public:
  [[nodiscard]] WeightBytes allocate(std::int64_t size);

  /// Returns the size of the blocks allocated until now, counted as in `WeightPlacement`. Units:
  /// bytes.
  [[nodiscard]] std::int64_t bytes() const noexcept { return placement_.bytes(); }
  /// Returns the full size of the blocks allocated until now. Units: bytes.
  [[nodiscard]] std::int64_t block_bytes() const noexcept { return block_bytes_; }
  /// Returns how many free blocks are kept.
  [[nodiscard]] std::size_t num_free() const;

private:
  using Block = std::shared_ptr<const AlignedBytes>;

  // The blocks of small weights. Shared with those that are in use, which return to it.
  struct SmallBlocks {
    std::mutex mutex;  // of all below
    std::vector<std::unique_ptr<const AlignedBytes>> free;
    std::size_t num_used = 0;
  };

  [[nodiscard]] Block new_block(WeightPlacement::Kind kind, std::int64_t size);
  static void give_back(SmallBlocks& blocks, std::unique_ptr<const AlignedBytes> block);

  WeightPlacement placement_;
  std::int64_t block_bytes_ = 0;
  std::shared_ptr<SmallBlocks> small_ = std::make_shared<SmallBlocks>();
  // The last block of each kind, which further weights may share.
  std::array<Block, WeightPlacement::kSharedKinds> blocks_;
};

}  // namespace tidemill::engines::cpu
