// SPDX-License-Identifier: Apache-2.0
// Tests which device actors/router/route_table.hpp chooses.
#include "actors/router/route_table.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace tidemill::test {
namespace {

using actors::Route;
using actors::RouteTable;

TEST(RouteTable, ChoosesTheFirstDeviceWithTheFewestRequests) {
  RouteTable table(3, 100);
  std::vector<Route> routes;
  for (std::uint64_t id = 0; id < 7; ++id) {
    routes.push_back(table.begin({id}).value());
    EXPECT_EQ(routes.back().device, id % 3);
  }
  EXPECT_TRUE(table.end(routes[1].ticket));
  EXPECT_TRUE(table.end(routes[4].ticket));
  EXPECT_FALSE(table.end(routes[4].ticket)) << "it has ended";
  EXPECT_EQ(table.num_pending(1), 0U);
  EXPECT_EQ(table.begin({10}).value().device, 1U);
  EXPECT_EQ(table.begin({11}).value().device, 1U);
  EXPECT_EQ(table.num_pending(), 7U);
}

TEST(RouteTable, ASecondRequestForASampleGoesToTheDeviceOfTheFirst) {
  RouteTable table(2, 100);
  const Route first = table.begin({7}).value();
  const Route second = table.begin({7}).value();
  EXPECT_EQ(second.device, first.device);
  EXPECT_NE(second.ticket, first.ticket);
  EXPECT_EQ(table.num_pending(first.device), 2U);
  EXPECT_TRUE(table.end(first.ticket));
  EXPECT_EQ(table.device_of({7}), second.device) << "the second is still in flight";
  EXPECT_TRUE(table.end(second.ticket));
  EXPECT_EQ(table.device_of({7}), std::nullopt);
}

TEST(RouteTable, ARemovedDeviceGivesUpItsRequestsAndGetsNoOthers) {
  RouteTable table(2, 100);
  const Route kept = table.begin({1}).value();
  const Route lost = table.begin({2}).value();
  const auto given_up = table.remove(1, "device-1 has ended");
  EXPECT_EQ(given_up, (std::vector<std::pair<std::uint64_t, SampleId>>{{lost.ticket, {2}}}));
  EXPECT_TRUE(table.remove(1, "again").empty());
  EXPECT_FALSE(table.end(lost.ticket)) << "its reply comes too late";
  EXPECT_EQ(table.begin({2}).value().device, 0U);
  EXPECT_EQ(table.remove(0, "device is quarantined: digest").size(), 2U);
  EXPECT_EQ(table.num_pending(), 0U);
  const auto none = table.begin({3});
  EXPECT_EQ(none.status().code(), Errc::kUnavailable);
  EXPECT_EQ(none.status().message(), "no device serves: device is quarantined: digest");
  EXPECT_FALSE(table.end(kept.ticket));
}

TEST(RouteTable, HoldsAtMostSoManyRequests) {
  RouteTable table(2, 3);
  const Route first = table.begin({0}).value();
  EXPECT_TRUE(table.begin({1}).ok());
  EXPECT_TRUE(table.begin({2}).ok());
  const auto refused = table.begin({3});
  EXPECT_EQ(refused.status().code(), Errc::kUnavailable);
  EXPECT_EQ(refused.status().message(), "the router has 3 pending requests, the maximum");
  EXPECT_TRUE(table.end(first.ticket));
  EXPECT_TRUE(table.begin({3}).ok());
}

TEST(RouteTable, ALeavingDeviceEndsItsRequestsAndMayComeBack) {
  RouteTable table(1, 100);
  EXPECT_EQ(table.add(), 1U);
  const Route kept = table.begin({1}).value();
  const Route other = table.begin({2}).value();
  EXPECT_EQ(other.device, 1U);
  table.begin_leave(1, "device-1 is leaving");
  EXPECT_FALSE(table.ready_to_leave(1));
  EXPECT_EQ(table.begin({3}).value().device, 0U);
  EXPECT_EQ(table.begin({2}).value().device, 1U) << "it ends the first request for this id";
  EXPECT_EQ(table.end(other.ticket), 1U);
  EXPECT_FALSE(table.ready_to_leave(1));
  EXPECT_EQ(table.end(4), 1U);
  EXPECT_TRUE(table.ready_to_leave(1));
  table.restore(1);
  EXPECT_TRUE(table.ready_to_leave(1)) << "it is not removed yet";
  EXPECT_TRUE(table.remove(1, "device-1 has left").empty());
  table.begin_leave(1, "again");
  EXPECT_FALSE(table.ready_to_leave(1)) << "it is removed";
  EXPECT_EQ(table.begin({5}).value().device, 0U);
  table.restore(1);
  EXPECT_EQ(table.begin({6}).value().device, 1U);
  EXPECT_EQ(table.end(kept.ticket), 0U);
}

// Every request ends exactly once, and the counts are those of a model.
TEST(RouteTable, RandomHistoriesMatchAModel) {
  std::size_t lost = 0;
  std::size_t refused = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RandomStream random(seed, 6);
    RouteTable table(3, 20);
    std::map<std::uint64_t, std::size_t> held;  // ticket -> device
    std::vector<bool> serves(3, true);
    for (int event = 0; event < 120; ++event) {
      const std::uint64_t choice = random.below(40);
      if (choice < 22) {
        const auto route = table.begin({random.below(30)});
        if (route.ok()) {
          EXPECT_TRUE(serves[route.value().device]);
          EXPECT_TRUE(held.emplace(route.value().ticket, route.value().device).second);
        } else {
          ++refused;
          EXPECT_TRUE(held.size() == 20 || serves == std::vector<bool>(3, false));
        }
      } else if (choice < 39 && !held.empty()) {
        const auto ended =
            std::next(held.begin(), static_cast<std::ptrdiff_t>(random.below(held.size())));
        EXPECT_TRUE(table.end(ended->first));
        held.erase(ended);
      } else {
        const std::size_t device = random.below(3);
        serves[device] = false;
        for (const auto& [ticket, id] : table.remove(device, "ended")) {
          ++lost;
          EXPECT_EQ(held.at(ticket), device);
          held.erase(ticket);
        }
      }
      EXPECT_EQ(table.num_pending(), held.size());
      for (std::size_t device = 0; device < 3; ++device) {
        std::size_t expected = 0;
        for (const auto& [ticket, of] : held) {
          expected += of == device ? 1 : 0;
        }
        EXPECT_EQ(table.num_pending(device), expected);
      }
    }
  }
  EXPECT_GT(lost, 100U);
  EXPECT_GT(refused, 100U);
}

}  // namespace
}  // namespace tidemill::test
