// SPDX-License-Identifier: Apache-2.0
// Tests the states of actors/keeper/device_roster.hpp, and that a random history of loads and
// failures keeps its invariants.
#include "actors/keeper/device_roster.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::test {
namespace {

using actors::DeviceRoster;
using actors::DeviceState;
using actors::DueLoad;
using actors::GenerationOrder;

using Loads = std::vector<std::pair<std::size_t, std::uint64_t>>;  // device, step

// Remembers the last load of each device.
class TestRoster : public DeviceRoster {
public:
  using DeviceRoster::DeviceRoster;
  Loads begin(bool may_load = true) {
    Loads loads;
    for (const DueLoad& due : begin_loads([&](std::uint64_t) { return may_load; })) {
      loads.emplace_back(due.device, due.step);
      last_[due.device] = due;
    }
    return loads;
  }
  [[nodiscard]] const DueLoad& last(std::size_t device) const { return last_.at(device); }
  bool end(std::size_t device) { return end_load(last(device)); }

private:
  std::map<std::size_t, DueLoad> last_;
};

TEST(DeviceRoster, StartsWithAllDevicesServing) {
  TestRoster roster(GenerationOrder::kFree, 4, {"a", "b"});
  EXPECT_EQ(roster.num_serving(), 2U);
  EXPECT_EQ(roster.serving_step(), 4U);
  EXPECT_EQ(roster.oldest_needed(), 4U) << "a device that joins would need it";
  EXPECT_EQ(roster.begin(), Loads{});
}

TEST(DeviceRoster, AFreeDeviceSkipsToTheNewestVersion) {
  TestRoster roster(GenerationOrder::kFree, 0, {"a", "b"});
  roster.publish(1);
  EXPECT_EQ(roster.begin(false), (Loads{{0, 1}, {1, 1}})) << "only a fixed order asks";
  roster.publish(2);
  EXPECT_EQ(roster.begin(), Loads{}) << "both are switching";
  roster.publish(3);
  roster.end(0);
  EXPECT_EQ(roster.begin(), (Loads{{0, 3}}));
  EXPECT_EQ(roster.serving_step(), 0U);
  EXPECT_EQ(roster.oldest_needed(), 3U);
  roster.end(1);
  EXPECT_EQ(roster.begin(), (Loads{{1, 3}}));
  EXPECT_EQ(roster.oldest_needed(), 3U) << "a device that joins would need it";
  EXPECT_EQ(roster.serving_step(), 1U);
}

TEST(DeviceRoster, AFixedOrderLoadsEveryVersionOnAllDevicesTogether) {
  TestRoster roster(GenerationOrder::kFixed, 0, {"a", "b"});
  roster.publish(1);
  roster.publish(2);
  EXPECT_EQ(roster.begin(false), Loads{});
  EXPECT_EQ(roster.oldest_needed(), 0U) << "a device that joins would need it";
  EXPECT_EQ(roster.begin(), (Loads{{0, 1}, {1, 1}}));
  roster.end(1);
  EXPECT_EQ(roster.begin(), Loads{}) << "the first device is still switching";
  EXPECT_EQ(roster.oldest_needed(), 1U);
  roster.end(0);
  EXPECT_EQ(roster.begin(), (Loads{{0, 2}, {1, 2}}));
}

TEST(DeviceRoster, NothingWaitsForAQuarantinedDevice) {
  TestRoster roster(GenerationOrder::kFixed, 0, {"a", "b"});
  roster.publish(1);
  roster.begin();
  roster.end(0);
  EXPECT_TRUE(roster.quarantine(1, "refused"));
  EXPECT_FALSE(roster.quarantine(1, "ended"));
  EXPECT_EQ(roster.devices()[1].quarantine_reason, "refused");
  EXPECT_EQ(roster.serving_step(), 1U);
  roster.end(1);  // too late
  EXPECT_EQ(roster.devices()[1].serving_step, 0U);
  roster.publish(2);
  EXPECT_EQ(roster.begin(), (Loads{{0, 2}}));
}

TEST(DeviceRoster, WithoutADeviceTheServingStepStays) {
  TestRoster roster(GenerationOrder::kFree, 2, {"a"});
  roster.publish(3);
  roster.begin();
  EXPECT_TRUE(roster.quarantine(0, ""));
  EXPECT_EQ(roster.num_serving(), 0U);
  EXPECT_FALSE(roster.devices()[0].quarantine_reason.empty());
  EXPECT_EQ(roster.serving_step(), 2U);
  EXPECT_EQ(roster.begin(), Loads{});
}

TEST(DeviceRoster, WithoutADeviceInUseAFixedOrderContinuesWithTheVersionThatHasBegun) {
  TestRoster roster(GenerationOrder::kFixed, 4, {"a"});
  roster.publish(5);
  roster.publish(6);
  EXPECT_EQ(roster.begin(), (Loads{{0, 5}}));
  ASSERT_TRUE(roster.join("b").ok());
  EXPECT_TRUE(roster.quarantine(0, "refused"));
  EXPECT_EQ(roster.num_serving(), 0U);
  EXPECT_EQ(roster.num_joining(), 1U);
  EXPECT_EQ(roster.serving_step(), 4U);
  EXPECT_EQ(roster.oldest_needed(), 5U);
  EXPECT_EQ(roster.begin(), (Loads{{1, 5}}));
  EXPECT_TRUE(roster.end(1));
  EXPECT_EQ(roster.serving_step(), 5U);
  EXPECT_EQ(roster.begin(), (Loads{{1, 6}}));
}

TEST(DeviceRoster, AFreeDeviceJoinsWithTheNewestVersion) {
  TestRoster roster(GenerationOrder::kFree, 0, {"a"});
  roster.publish(1);
  roster.publish(2);
  EXPECT_EQ(roster.begin(), (Loads{{0, 2}}));
  EXPECT_EQ(roster.join("b").value(), 1U);
  EXPECT_EQ(roster.num_serving(), 1U) << "it has no weights yet";
  EXPECT_EQ(roster.begin(), (Loads{{1, 2}}));
  EXPECT_EQ(roster.begin(), Loads{});
  roster.publish(3);
  EXPECT_FALSE(roster.end(0)) << "it has joined before";
  EXPECT_EQ(roster.serving_step(), 2U);
  EXPECT_EQ(roster.status(1).state, DeviceState::kJoining);
  EXPECT_TRUE(roster.end(1));
  EXPECT_EQ(roster.status(1).state, DeviceState::kServing);
  EXPECT_EQ(roster.begin(), (Loads{{0, 3}, {1, 3}}));
}

TEST(DeviceRoster, AFixedOrderWaitsForADeviceThatJoins) {
  TestRoster roster(GenerationOrder::kFixed, 4, {"a"});
  roster.publish(5);
  roster.publish(6);
  EXPECT_EQ(roster.begin(false), Loads{});
  ASSERT_TRUE(roster.join("b").ok());
  EXPECT_EQ(roster.begin(false), (Loads{{1, 4}})) << "the version that the others serve";
  EXPECT_EQ(roster.begin(), Loads{}) << "the others wait";
  roster.end(1);
  EXPECT_EQ(roster.begin(), (Loads{{0, 5}, {1, 5}}));
  ASSERT_TRUE(roster.join("c").ok());
  EXPECT_EQ(roster.begin(), (Loads{{2, 5}})) << "the version that the others switch to";
  roster.end(0);
  roster.end(1);
  EXPECT_EQ(roster.serving_step(), 5U);
  EXPECT_EQ(roster.begin(), Loads{});
  EXPECT_TRUE(roster.quarantine(2, "refused"));
  EXPECT_EQ(roster.begin(), (Loads{{0, 6}, {1, 6}})) << "nothing waits for a quarantined device";
}

TEST(DeviceRoster, InAFixedOrderAVersionThatIsDueWaitsOnlyForFirstLoadsThatHaveBegun) {
  TestRoster roster(GenerationOrder::kFixed, 4, {"a"});
  roster.publish(5);
  ASSERT_TRUE(roster.join("b").ok());
  EXPECT_EQ(roster.begin(false), (Loads{{1, 4}}));
  ASSERT_TRUE(roster.join("c").ok());
  EXPECT_EQ(roster.begin(false), (Loads{{2, 4}})) << "no version is due";
  ASSERT_TRUE(roster.join("d").ok());
  EXPECT_EQ(roster.begin(), Loads{}) << "version 5 is due";
  roster.end(1);
  EXPECT_EQ(roster.begin(), Loads{});
  EXPECT_TRUE(roster.quarantine(2, "refused"));
  EXPECT_EQ(roster.begin(), (Loads{{0, 5}, {1, 5}, {3, 5}}));
  ASSERT_TRUE(roster.join("e").ok());
  EXPECT_EQ(roster.begin(), (Loads{{4, 5}})) << "the devices are switching to version 5";
}

TEST(DeviceRoster, ADeviceThatLeavesGetsVersionsUntilItHasLeft) {
  TestRoster roster(GenerationOrder::kFixed, 0, {"a", "b"});
  EXPECT_EQ(roster.leave("b").value(), 1U);
  EXPECT_EQ(roster.num_serving(), 1U);
  roster.publish(1);
  EXPECT_EQ(roster.begin(), (Loads{{0, 1}, {1, 1}})) << "its requests may wait for the version";
  roster.end(0);
  EXPECT_EQ(roster.serving_step(), 0U);
  EXPECT_TRUE(roster.end_leave(1));
  EXPECT_FALSE(roster.end_leave(1));
  EXPECT_EQ(roster.serving_step(), 1U);
  roster.publish(2);
  EXPECT_EQ(roster.begin(), (Loads{{0, 2}}));
  const DueLoad given_up = roster.last(1);
  EXPECT_FALSE(roster.awaits(given_up));
  EXPECT_FALSE(roster.end_load(given_up));
  EXPECT_EQ(roster.status(1).state, DeviceState::kLeft);
  EXPECT_EQ(roster.status(1).loading_step, 0U);
  EXPECT_FALSE(roster.quarantine(1, "ended")) << "it may end";
  EXPECT_EQ(roster.join("b").value(), 1U);
  EXPECT_EQ(roster.begin(), (Loads{{1, 2}}));
  EXPECT_FALSE(roster.awaits(given_up));
  EXPECT_FALSE(roster.end_load(given_up)) << "a load of the time before it left";
  EXPECT_TRUE(roster.awaits(roster.last(1)));
  EXPECT_TRUE(roster.end(1));
  EXPECT_EQ(roster.num_serving(), 2U);
}

TEST(DeviceRoster, RefusesDevicesThatCannotJoinOrLeave) {
  TestRoster roster(GenerationOrder::kFree, 0, {"a"});
  EXPECT_EQ(roster.join("").status().code(), Errc::kInvalidArgument);
  EXPECT_EQ(roster.join("a").status().message(), "a: a device of this name is in the run");
  EXPECT_EQ(roster.leave("z").status().code(), Errc::kNotFound);
  EXPECT_EQ(roster.leave("a").status().code(), Errc::kInvalidArgument) << "no other one serves";
  ASSERT_TRUE(roster.join("b").ok());
  EXPECT_EQ(roster.leave("b").status().message(), "b is joining");
  EXPECT_EQ(roster.leave("a").status().code(), Errc::kInvalidArgument) << "b does not serve yet";
  roster.begin();
  roster.end(1);
  EXPECT_TRUE(roster.leave("a").ok());
  EXPECT_EQ(roster.leave("a").status().message(), "a is leaving");
  roster.end_leave(0);
  EXPECT_EQ(roster.leave("a").status().code(), Errc::kNotFound);
  EXPECT_TRUE(roster.quarantine(1, "broken"));
  EXPECT_EQ(roster.join("b").status().message(), "b is quarantined: broken");
  for (std::size_t i = 2; i < actors::kMaxDevices; ++i) {
    ASSERT_TRUE(roster.join("device-" + std::to_string(i)).ok());
  }
  EXPECT_EQ(roster.join("one more").status().code(), Errc::kResourceExhausted);
  EXPECT_TRUE(roster.join("a").ok()) << "it has been in the run before";
}

// Versions never go back, except that a device joins a free order with an older one. No device
// loads two at a time, only needed versions are loaded, and a roster whose loads all end serves the
// newest version.
TEST(DeviceRoster, RandomHistoriesKeepTheInvariants) {
  int quarantined = 0;
  int loaded = 0;
  int joined = 0;
  int left = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed, 5);
    const bool fixed = random.below(2) == 0;
    TestRoster roster(fixed ? GenerationOrder::kFixed : GenerationOrder::kFree, 0, {"a", "b", "c"});
    std::set<std::size_t> switching;
    std::uint64_t newest = 0;
    const auto load_due = [&] {
      const std::uint64_t needed = roster.oldest_needed();
      const auto before = roster.devices();
      for (const auto& [device, step] : roster.begin(random.below(3) != 0)) {
        EXPECT_TRUE(switching.insert(device).second) << "two loads at a time";
        EXPECT_GE(step, needed);
        EXPECT_LE(step, newest);
        if (before[device].state == DeviceState::kJoining) {
          EXPECT_TRUE(fixed || step == newest);
          EXPECT_TRUE(!fixed || step == roster.serving_step() || step == roster.serving_step() + 1);
        } else {
          EXPECT_GT(step, before[device].serving_step);
          EXPECT_TRUE(!fixed || step == before[device].serving_step + 1);
        }
        ++loaded;
      }
    };
    for (int event = 0; event < 60; ++event) {
      const std::uint64_t serving = roster.serving_step();
      const std::size_t device = random.below(roster.devices().size());
      const std::string name = roster.status(device).name;
      const std::uint64_t choice = random.below(24);
      bool has_joined = false;
      if (choice < 6) {
        roster.publish(++newest);
      } else if (choice < 19) {
        if (switching.erase(device) == 1) {
          has_joined = roster.end(device);
          joined += has_joined ? 1 : 0;
        }
      } else if (choice < 21) {
        static_cast<void>(roster.join(random.below(2) == 0 ? name : "d" + std::to_string(event)));
      } else if (choice < 23) {
        static_cast<void>(roster.leave(name));
        if (random.below(2) == 0 && roster.end_leave(device)) {
          switching.erase(device);
          ++left;
        }
      } else if (roster.num_serving() > 1) {
        quarantined += roster.quarantine(device, "broken") ? 1 : 0;
        switching.erase(device);
      }
      if (fixed || !has_joined) {
        EXPECT_GE(roster.serving_step(), serving);
      }
      load_due();
    }
    for (int i = 0; i < 1000 && roster.serving_step() < newest; ++i) {
      for (const std::size_t device : std::exchange(switching, {})) {
        roster.end(device);
      }
      load_due();
    }
    EXPECT_EQ(roster.serving_step(), newest) << "seed " << seed;
  }
  EXPECT_GT(quarantined, 100);
  EXPECT_GT(loaded, 1000);
  EXPECT_GT(joined, 100);
  EXPECT_GT(left, 100);
}

}  // namespace
}  // namespace tidemill::test
