// SPDX-License-Identifier: Apache-2.0
// Spawns the version keeper.
#pragma once

#include <cstdint>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/keeper/handles.hpp"

namespace tidemill::actors {

/// When the device loads new weights.
enum class GenerationOrder : std::uint8_t {
  /// As soon as the responses in flight have ended.
  kFree,
  /// Version k - max_staleness generates all of batch k: the weights of step s are loaded once
  /// every row that older steps must generate is finished.
  kFixed,
};

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
  std::uint64_t first_group = 0;     // the next group to admit
  std::int64_t finished_rows = 0;    // live rows whose response is finished
  std::int64_t unfinished_rows = 0;  // live rows admitted but not finished
};

/// Dependencies of the version keeper.
struct KeeperDeps {
  DeviceActor device;
  KeeperOptions options;
};

/// Spawns the version keeper. It exits with the failure as its exit reason if a message contradicts
/// its ledger, or if the device does not load new weights.
[[nodiscard]] KeeperActor spawn_keeper(caf::actor_system& system, KeeperDeps deps);

}  // namespace tidemill::actors
