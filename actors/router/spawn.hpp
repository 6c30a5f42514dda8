// SPDX-License-Identifier: Apache-2.0
// Spawns a router.
#pragma once

#include <cstddef>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/router/handles.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// Dependencies and options of a router.
struct RouterDeps {
  std::vector<ServingDevice> devices;  // at least one; their names differ
  /// The maximum number of pending requests, those that wait for a device to join included. Those
  /// that workers have given up count until their devices reply.
  std::size_t max_pending = 1U << 16U;
  /// How long a device may take to reply. It is longer than the deadlines of the requesters, which
  /// therefore pass first, unless an error in the program keeps the request alive.
  Duration reply_deadline = std::chrono::hours(25);
};

/// Spawns a router. It monitors its devices, and removes those that end.
[[nodiscard]] RouterActor spawn_router(caf::actor_system& system, RouterDeps deps);

}  // namespace tidemill::actors
