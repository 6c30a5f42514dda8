// SPDX-License-Identifier: Apache-2.0
// Spawns the version keeper.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/keeper/device_roster.hpp"
#include "actors/keeper/handles.hpp"
#include "actors/router/handles.hpp"

namespace tidemill::actors {

/// Options of the version keeper, and the state that it starts from.
struct KeeperOptions {
  std::uint32_t group_size = 1;
  std::int64_t batch_rows = 1;      // groups per step x group_size
  std::int64_t max_staleness = 0;   // versions
  std::int64_t max_concurrent = 1;  // rows in flight
  std::uint64_t total_steps = 1;    // batches the run will train
  GenerationOrder generation_order = GenerationOrder::kFree;
  /// The state that a restarted run continues from. All zero for a new run.
  std::uint32_t incarnation = 0;
  std::uint64_t step = 0;
  std::uint64_t next_group = 0;      // the next group to admit
  std::int64_t finished_rows = 0;    // live rows whose response is finished
  std::int64_t unfinished_rows = 0;  // live rows admitted but not finished
};

/// Dependencies of the version keeper.
struct KeeperDeps {
  std::vector<ServingDevice> devices;  // at least one; all serve the step that the options name
  RouterActor router;  // null: none. Told which devices join, leave or are quarantined
  KeeperOptions options;
  /// Takes one line for each device that is quarantined while others are left. May be empty.
  std::function<void(const std::string&)> log;
  /// The weights that the devices serve, for those that join.
  engines::Snapshot weights;
  /// The name of the device that trains, which cannot leave: it would hold the weights that it
  /// served last until the run ends. Empty: none.
  std::string training_device = {};
  /// Takes one line for each device that joins or leaves. May be empty.
  std::function<void(const std::string&)> inform = {};
};

/// Spawns the version keeper. A device that ends, or that does not load new weights, is
/// quarantined. If no other device serves or joins, the keeper exits with the failure as its exit
/// reason, even if a device is still leaving. It does the same if a message contradicts its ledger.
[[nodiscard]] KeeperActor spawn_keeper(caf::actor_system& system, KeeperDeps deps);

}  // namespace tidemill::actors
