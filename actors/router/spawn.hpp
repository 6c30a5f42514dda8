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
  /// The maximum number of pending requests, including requests that wait for a device to join. An
  /// abandoned request counts until its device replies.
  std::size_t max_pending = 1U << 16U;
  /// How long a device may take to reply. Longer than every requester's deadline, so it passes only
  /// if a bug leaves a request open.
  Duration reply_deadline = std::chrono::hours(25);
};

/// Spawns a router. It monitors its devices, and removes those that end.
[[nodiscard]] RouterActor spawn_router(caf::actor_system& system, RouterDeps deps);

}  // namespace tidemill::actors
