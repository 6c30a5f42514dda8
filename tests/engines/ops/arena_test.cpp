// SPDX-License-Identifier: Apache-2.0
// Tests of the arena that backends on host memory allocate from.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "engines/ops/guarded/guarded_memory.hpp"
#include "engines/ops/host/device_access.hpp"
#include "engines/ops/host/host_memory.hpp"
#include "engines/ops/host/range_allocator.hpp"

namespace tidemill::engines::host {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20U;

TEST(RangeAllocatorTest, AllocatesTheSmallestRangeThatFits) {
  RangeAllocator ranges;
  ranges.add(0, 100);
  ranges.add(200, 30);
  ranges.add(300, 20);
  EXPECT_EQ(ranges.allocate(20, 1), 300);
  EXPECT_EQ(ranges.allocate(20, 1), 200);
  EXPECT_EQ(ranges.allocate(11, 1), 0);
  EXPECT_EQ(ranges.allocate(10, 1), 220) << "the rest of the second range";
  EXPECT_EQ(ranges.allocate(90, 1), std::nullopt);
  EXPECT_EQ(ranges.free_size(), 89);
  EXPECT_EQ(ranges.largest(), 89);
}

TEST(RangeAllocatorTest, AlignsAndKeepsWhatIsSkipped) {
  RangeAllocator ranges;
  ranges.add(10, 200);
  EXPECT_EQ(ranges.allocate(64, 64), 64);
  EXPECT_EQ(ranges.allocate(54, 1), 10) << "the part before the aligned range";
  EXPECT_EQ(ranges.allocate(64, 64), 128);
  EXPECT_EQ(ranges.allocate(18, 1), 192);
  EXPECT_EQ(ranges.free_size(), 0);
  EXPECT_EQ(ranges.allocate(1, 1), std::nullopt);
}

TEST(RangeAllocatorTest, JoinsNeighbors) {
  RangeAllocator ranges;
  ranges.add(0, 40);
  for (std::int64_t first = 0; first < 40; first += 10) {
    EXPECT_EQ(ranges.allocate(10, 1), first);
  }
  ranges.free(0, 10);
  ranges.free(20, 10);
  EXPECT_EQ(ranges.largest(), 10);
  ranges.free(10, 10);  // joins both
  EXPECT_EQ(ranges.largest(), 30);
  ranges.free(30, 10);
  EXPECT_EQ(ranges.allocate(40, 1), 0);
}

// Compares it with an array of cells.
TEST(RangeAllocatorTest, HoldsUnderRandomRequests) {
  constexpr std::int64_t kCells = 500;
  RangeAllocator ranges;
  ranges.add(0, kCells);
  std::vector<bool> used(kCells);
  std::map<std::int64_t, std::int64_t> allocated;
  RandomStream random(7);
  for (int step = 0; step < 20000; ++step) {
    if (!allocated.empty() && random.below(2) == 0) {
      const auto at =
          std::next(allocated.begin(), static_cast<std::ptrdiff_t>(random.below(allocated.size())));
      std::fill_n(used.begin() + at->first, at->second, false);
      ranges.free(at->first, at->second);
      allocated.erase(at);
      continue;
    }
    const auto size = static_cast<std::int64_t>(1 + random.below(60));
    const std::int64_t alignment = std::int64_t{1} << random.below(5);
    const auto first = ranges.allocate(size, alignment);
    if (first.has_value()) {
      ASSERT_EQ(*first % alignment, 0);
      ASSERT_TRUE(*first >= 0 && *first + size <= kCells);
      ASSERT_TRUE(std::none_of(used.begin() + *first, used.begin() + *first + size,
                               [](bool cell) { return cell; }));
      std::fill_n(used.begin() + *first, size, true);
      allocated.emplace(*first, size);
    } else {
      for (std::int64_t cell = 0; cell + size <= kCells; cell += alignment) {
        ASSERT_TRUE(std::any_of(used.begin() + cell, used.begin() + cell + size,
                                [](bool one) { return one; }));
      }
    }
    ASSERT_EQ(ranges.free_size(), std::count(used.begin(), used.end(), false));
  }
  for (const auto& [first, size] : allocated) {
    ranges.free(first, size);
  }
  EXPECT_EQ(ranges.largest(), kCells);
}

std::uintptr_t number_of(const DeviceBlock& block) {
  return DeviceAccess::to_number(block.address());
}

TEST(MappedMemoryTest, BlocksComeFromWhatIsReserved) {
  const auto memory = MappedMemory::create({.reserved = 64 * kMebibyte}).value();
  const DeviceBlock whole = memory->allocate(5 * kMebibyte + 1, BlockUse::kWhole).value();
  const DeviceBlock sparse = memory->allocate(7 * kMebibyte, BlockUse::kSparse).value();
  const DeviceBlock small = memory->allocate(100, BlockUse::kWhole).value();
  EXPECT_EQ(number_of(whole) % static_cast<std::uintptr_t>(2 * kMebibyte), 0U);
  EXPECT_EQ(number_of(sparse) % 4096, 0U);
  EXPECT_EQ(number_of(small) % 64, 0U);
  const auto [lowest, highest] =
      std::minmax({number_of(whole), number_of(sparse), number_of(small)});
  EXPECT_LT(highest - lowest, static_cast<std::uintptr_t>(64 * kMebibyte));
  EXPECT_EQ(memory->used_bytes(), 12 * kMebibyte + 101);
  for (const DeviceBlock* block : {&whole, &sparse, &small}) {
    std::byte* bytes = memory->pointer(block->address());
    bytes[0] = bytes[block->size_bytes() - 1] = std::byte{1};
  }
}

TEST(MappedMemoryTest, GrowsBeyondWhatIsReserved) {
  MappedMemory memory;
  std::vector<DeviceBlock> blocks;
  for (const std::int64_t bytes : {std::int64_t{1}, 3 * kMebibyte, 40 * kMebibyte, kMebibyte}) {
    blocks.push_back(memory.allocate(bytes, BlockUse::kWhole).value());
    memory.pointer(blocks.back().address())[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(memory.num_allocations(), 4);
  blocks.clear();
  EXPECT_EQ(memory.used_bytes(), 0);
}

TEST(MappedMemoryTest, ALargeBlockGoesBackToTheSystem) {
  const auto memory = MappedMemory::create({.reserved = 16 * kMebibyte}).value();
  std::uintptr_t first = 0;
  {
    const DeviceBlock block = memory->allocate(4 * kMebibyte, BlockUse::kWhole).value();
    first = number_of(block);
    *memory->pointer(block.address()) = std::byte{7};
  }
  const DeviceBlock again = memory->allocate(4 * kMebibyte, BlockUse::kWhole).value();
  EXPECT_EQ(number_of(again), first);
  EXPECT_EQ(*memory->pointer(again.address()), std::byte{0}) << "a new page";
}

TEST(MappedMemoryTest, TheLimitIsReportedWithTheSizes) {
  const auto memory = MappedMemory::create({.limit = 1000}).value();
  const DeviceBlock block = memory->allocate(600, BlockUse::kWhole).value();
  const Status refused = memory->allocate(401, BlockUse::kWhole).status();
  EXPECT_EQ(refused.code(), Errc::kResourceExhausted);
  EXPECT_EQ(refused.message(), "device memory: 401 bytes do not fit beside 600 of 1000");
  EXPECT_TRUE(memory->allocate(400, BlockUse::kWhole).ok());
  constexpr std::int64_t kHuge = std::int64_t{1} << 60U;
  EXPECT_EQ(MappedMemory().allocate(kHuge, BlockUse::kSparse).status().code(),
            Errc::kResourceExhausted);
  EXPECT_EQ(MappedMemory::create({.reserved = kHuge}).status().code(), Errc::kResourceExhausted);
}

TEST(MappedMemoryTest, FreedBlocksStayWhileTheyAreHeld) {
  MappedMemory memory;
  memory.hold_freed(true);
  std::uintptr_t first = 0;
  std::byte* bytes = nullptr;
  {
    const DeviceBlock block = memory.allocate(3 * kMebibyte, BlockUse::kWhole).value();
    first = number_of(block);
    bytes = memory.pointer(block.address());
    *bytes = std::byte{9};
  }
  const DeviceBlock other = memory.allocate(3 * kMebibyte, BlockUse::kWhole).value();
  EXPECT_NE(number_of(other), first);
  EXPECT_EQ(*bytes, std::byte{9});
  memory.release_freed();
  EXPECT_EQ(*bytes, std::byte{0}) << "the page went back to the system";
}

TEST(GuardedArenaTest, FragmentsAreNotLost) {
  const auto memory = GuardedMemory::create(8 * kMebibyte).value();
  RandomStream random(3);
  std::vector<DeviceBlock> blocks;
  for (int step = 0; step < 2000; ++step) {
    if (random.below(3) == 0 && !blocks.empty()) {
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      blocks.pop_back();
      continue;
    }
    auto block =
        memory->allocate(static_cast<std::int64_t>(1 + random.below(100000)), BlockUse::kSparse);
    if (!block.ok()) {
      EXPECT_EQ(block.status().code(), Errc::kResourceExhausted);
      blocks.clear();
      EXPECT_TRUE(memory->allocate(8 * kMebibyte, BlockUse::kSparse).ok());
    } else {
      blocks.push_back(std::move(block).value());
    }
  }
}

}  // namespace
}  // namespace tidemill::engines::host
