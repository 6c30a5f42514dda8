// SPDX-License-Identifier: Apache-2.0
// Ordered sets and maps of ids, compared with those of the standard library.
#include "storage/stream/id_map.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::storage {
namespace {

using ::testing::ElementsAreArray;

constexpr std::uint64_t kLargestId = std::numeric_limits<std::uint64_t>::max();

std::vector<IdMap::Entry> entries_of(const IdMap& map) {
  return {map.begin(), map.end()};
}

std::vector<IdMap::Entry> entries_of(const std::map<std::uint64_t, Slot>& map) {
  std::vector<IdMap::Entry> entries;
  for (const auto& [id, slot] : map) {
    entries.push_back({id, slot});
  }
  return entries;
}

TEST(IdMap, AnEmptyMapHasNoEntries) {
  IdMap map;
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.begin(), map.end());
  EXPECT_EQ(map.find(0), kNoSlot);
  EXPECT_EQ(map.erase(kLargestId), kNoSlot);
}

TEST(IdMap, HoldsTheSmallestAndTheLargestIds) {
  IdMap map;
  for (const std::uint64_t id : {kLargestId, std::uint64_t{0}, std::uint64_t{1} << 60U,
                                 (std::uint64_t{1} << 30U) - 1, std::uint64_t{1} << 30U}) {
    map.insert(id, static_cast<Slot>(id % 1000));
  }
  EXPECT_THAT(entries_of(map),
              ElementsAreArray(std::vector<IdMap::Entry>{
                  {0, 0},
                  {(1U << 30U) - 1, ((1U << 30U) - 1) % 1000},
                  {1U << 30U, (1U << 30U) % 1000},
                  {std::uint64_t{1} << 60U, static_cast<Slot>((std::uint64_t{1} << 60U) % 1000)},
                  {kLargestId, static_cast<Slot>(kLargestId % 1000)}}));
  EXPECT_EQ(map.erase(kLargestId), static_cast<Slot>(kLargestId % 1000));
  EXPECT_EQ(map.find(kLargestId), kNoSlot);
  EXPECT_EQ(map.front().id, 0U);
  EXPECT_EQ(map.size(), 4U);
}

/// Plays random operations on ids that `choose` returns.
template <class Choose>
void compare_with_std_map(std::uint64_t seed, Choose choose) {
  RandomStream random(seed);
  IdMap map;
  IdSet set;
  std::map<std::uint64_t, Slot> expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t id = choose(random);
    // Grows for a while, then shrinks until it is nearly empty.
    if (random.below(100) < (i % 4'000 < 2'000 ? 70U : 20U)) {
      const auto slot = static_cast<Slot>(random.below(1'000'000));
      map.insert(id, slot);
      set.insert(id);
      expected[id] = slot;
    } else {
      const auto known = expected.find(id);
      ASSERT_EQ(map.erase(id), known == expected.end() ? kNoSlot : known->second) << id;
      set.erase(id);
      expected.erase(id);
    }
    const auto known = expected.find(id);
    ASSERT_EQ(map.find(id), known == expected.end() ? kNoSlot : known->second) << id;
    ASSERT_EQ(set.contains(id), known != expected.end()) << id;
    ASSERT_EQ(map.size(), expected.size());
    ASSERT_EQ(set.size(), expected.size());
    if (!expected.empty()) {
      ASSERT_EQ(map.front(), (IdMap::Entry{expected.begin()->first, expected.begin()->second}));
      ASSERT_EQ(set.front(), expected.begin()->first);
    }
    if (i % 500 == 0) {
      ASSERT_EQ(entries_of(map), entries_of(expected));
    }
  }
  for (const auto& [id, slot] : expected) {
    EXPECT_EQ(map.erase(id), slot);
    set.erase(id);
  }
  EXPECT_EQ(map.begin(), map.end());
  EXPECT_EQ(set, IdSet());
}

TEST(IdMap, DenseIdsAgreeWithAStandardMap) {
  compare_with_std_map(1, [](RandomStream& random) { return random.below(300); });
  compare_with_std_map(2, [](RandomStream& random) { return 4'000 + random.below(10'000); });
}

TEST(IdMap, SparseIdsAgreeWithAStandardMap) {
  compare_with_std_map(3, [](RandomStream& random) {
    return random.below(60) << random.below(58);  // of any level
  });
  compare_with_std_map(4, [](RandomStream& random) { return kLargestId - random.below(9'000); });
}

TEST(IdSet, DiffersFromASetWithOtherIds) {
  IdSet a;
  IdSet b;
  a.insert(5);
  EXPECT_NE(a, b);
  b.insert(6);
  EXPECT_NE(a, b);
  b.erase(6);
  b.insert(5);
  b.insert(5);
  EXPECT_EQ(a, b);
}

}  // namespace
}  // namespace tidemill::storage
