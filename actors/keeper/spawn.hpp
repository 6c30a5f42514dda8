// SPDX-License-Identifier: Apache-2.0
// Starting the version keeper.
#pragma once

#include <cstdint>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/keeper/handles.hpp"

namespace tidemill::actors {

/// When engines take new weights.
enum class ScheduleKind : std::uint8_t {
  /// As soon as the responses in flight have ended.
  kFree,
  /// Batch k is generated wholly by version k - max_staleness: step s is loaded once every row that
  /// older steps must generate is finished.
  kFixed,
};

/// What the version keeper starts from.
struct KeeperOptions {
  std::uint32_t group_size = 1;
  std::int64_t batch_rows = 1;      // groups per step x group_size
  std::int64_t max_staleness = 0;   // versions
  std::int64_t max_concurrent = 1;  // rows in flight
  std::uint64_t total_steps = 1;    // batches the run will train
  ScheduleKind schedule = ScheduleKind::kFree;
  /// Where a restarted run stands. A fresh one: all zero.
  std::uint32_t incarnation = 0;
  std::uint64_t step = 0;
  std::uint64_t first_group = 0;     // the next group to admit
  std::int64_t finished_rows = 0;    // live rows whose response is finished
  std::int64_t unfinished_rows = 0;  // live rows admitted but not finished
};

/// What a version keeper is made of.
struct KeeperDeps {
  DeviceActor device;
  KeeperOptions options;
};

/// Spawns the version keeper. It ends with the failure as its exit reason when what it is told
/// contradicts its ledger, or when a device refuses new weights.
[[nodiscard]] KeeperActor spawn_keeper(caf::actor_system& system, KeeperDeps deps);

}  // namespace tidemill::actors
