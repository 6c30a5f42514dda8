// SPDX-License-Identifier: Apache-2.0
// Tests the states of actors/keeper/device_roster.hpp, and that a random history of loads and
// failures keeps its invariants.
#include "actors/keeper/device_roster.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::test {
namespace {

using actors::DeviceRoster;
using actors::DueLoad;
using actors::GenerationOrder;

using Loads = std::vector<std::pair<std::size_t, std::uint64_t>>;  // device, step

Loads begin(DeviceRoster& roster, bool may_load = true) {
  Loads loads;
  for (const DueLoad& due : roster.begin_loads([&](std::uint64_t) { return may_load; })) {
    loads.emplace_back(due.device, due.step);
  }
  return loads;
}

TEST(DeviceRoster, StartsWithAllDevicesServing) {
  DeviceRoster roster(GenerationOrder::kFree, 4, {"a", "b"});
  EXPECT_EQ(roster.num_in_use(), 2U);
  EXPECT_EQ(roster.serving_step(), 4U);
  EXPECT_EQ(roster.oldest_needed(), 5U) << "nothing is published that a device lacks";
  EXPECT_EQ(begin(roster), Loads{});
}

TEST(DeviceRoster, AFreeDeviceSkipsToTheNewestVersion) {
  DeviceRoster roster(GenerationOrder::kFree, 0, {"a", "b"});
  roster.publish(1);
  EXPECT_EQ(begin(roster, false), (Loads{{0, 1}, {1, 1}})) << "only a fixed order asks";
  roster.publish(2);
  EXPECT_EQ(begin(roster), Loads{}) << "both are switching";
  roster.publish(3);
  roster.end_load(0);
  EXPECT_EQ(begin(roster), (Loads{{0, 3}}));
  EXPECT_EQ(roster.serving_step(), 0U);
  EXPECT_EQ(roster.oldest_needed(), 3U) << "for the second device";
  roster.end_load(1);
  EXPECT_EQ(begin(roster), (Loads{{1, 3}}));
  EXPECT_EQ(roster.oldest_needed(), 4U);
  EXPECT_EQ(roster.serving_step(), 1U);
}

TEST(DeviceRoster, AFixedOrderLoadsEveryVersionOnAllDevicesTogether) {
  DeviceRoster roster(GenerationOrder::kFixed, 0, {"a", "b"});
  roster.publish(1);
  roster.publish(2);
  EXPECT_EQ(begin(roster, false), Loads{});
  EXPECT_EQ(roster.oldest_needed(), 1U);
  EXPECT_EQ(begin(roster), (Loads{{0, 1}, {1, 1}}));
  roster.end_load(1);
  EXPECT_EQ(begin(roster), Loads{}) << "the first device is still switching";
  EXPECT_EQ(roster.oldest_needed(), 2U);
  roster.end_load(0);
  EXPECT_EQ(begin(roster), (Loads{{0, 2}, {1, 2}}));
}

TEST(DeviceRoster, NothingWaitsForAQuarantinedDevice) {
  DeviceRoster roster(GenerationOrder::kFixed, 0, {"a", "b"});
  roster.publish(1);
  begin(roster);
  roster.end_load(0);
  EXPECT_TRUE(roster.quarantine(1, "refused"));
  EXPECT_FALSE(roster.quarantine(1, "ended"));
  EXPECT_EQ(roster.devices()[1].quarantine, "refused");
  EXPECT_EQ(roster.serving_step(), 1U);
  roster.end_load(1);  // too late
  EXPECT_EQ(roster.devices()[1].serving_step, 0U);
  roster.publish(2);
  EXPECT_EQ(begin(roster), (Loads{{0, 2}}));
}

TEST(DeviceRoster, WithoutADeviceTheServingStepStays) {
  DeviceRoster roster(GenerationOrder::kFree, 2, {"a"});
  roster.publish(3);
  begin(roster);
  EXPECT_TRUE(roster.quarantine(0, ""));
  EXPECT_EQ(roster.num_in_use(), 0U);
  EXPECT_FALSE(roster.devices()[0].quarantine.empty());
  EXPECT_EQ(roster.serving_step(), 2U);
  EXPECT_EQ(roster.oldest_needed(), 4U);
  EXPECT_EQ(begin(roster), Loads{});
}

// Versions never go back, no device loads two at a time, only needed versions are loaded, and a
// roster whose loads all end serves the newest version.
TEST(DeviceRoster, RandomHistoriesKeepTheInvariants) {
  int quarantined = 0;
  int loaded = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed, 5);
    const bool fixed = random.below(2) == 0;
    DeviceRoster roster(fixed ? GenerationOrder::kFixed : GenerationOrder::kFree, 0,
                        {"a", "b", "c"});
    std::set<std::size_t> switching;
    std::uint64_t newest = 0;
    const auto load_due = [&] {
      const std::uint64_t needed = roster.oldest_needed();
      const auto before = roster.devices();
      for (const auto& [device, step] : begin(roster, random.below(3) != 0)) {
        EXPECT_TRUE(switching.insert(device).second) << "two loads at a time";
        EXPECT_GE(step, needed);
        EXPECT_LE(step, newest);
        EXPECT_GT(step, before[device].serving_step);
        EXPECT_TRUE(!fixed || step == before[device].serving_step + 1);
        ++loaded;
      }
    };
    for (int event = 0; event < 60; ++event) {
      const std::uint64_t serving = roster.serving_step();
      const std::size_t device = random.below(3);
      const std::uint64_t choice = random.below(20);
      if (choice < 6) {
        roster.publish(++newest);
      } else if (choice < 19) {
        if (switching.erase(device) == 1) {
          roster.end_load(device);
        }
      } else if (roster.num_in_use() > 1) {
        quarantined += roster.quarantine(device, "broken") ? 1 : 0;
        switching.erase(device);
      }
      EXPECT_GE(roster.serving_step(), serving);
      load_due();
    }
    for (int i = 0; i < 1000 && roster.serving_step() < newest; ++i) {
      for (const std::size_t device : std::exchange(switching, {})) {
        roster.end_load(device);
      }
      load_due();
    }
    EXPECT_EQ(roster.serving_step(), newest) << "seed " << seed;
  }
  EXPECT_GT(quarantined, 100);
  EXPECT_GT(loaded, 1000);
}

}  // namespace
}  // namespace tidemill::test
