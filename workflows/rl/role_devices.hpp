// SPDX-License-Identifier: Apache-2.0
// The devices that a role starts, as the other roles and the supervisor see them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/device/spawn.hpp"
#include "actors/supervisor/spawn.hpp"

namespace tidemill::workflows {

/// What a model's runtime offers to a device that serves. The runtime outlives the device.
struct ServingEngines {
  engines::RolloutEngine* rollout = nullptr;
  engines::NamedAdapters* adapters = nullptr;  // null: requests name no adapters
  actors::OpenAdapter open_adapter;
};

/// The devices that a role offers to other roles, which see them only as `ServingActor`.
struct ServingDevices {
  std::vector<actors::ServingDevice> devices;
  std::vector<actors::CorePart> core;  // the same devices, for the supervisor
};

/// Returns the dependencies of a device that serves with `engines` and runs its work at `port`.
/// `runtime` keeps the engines alive.
[[nodiscard]] actors::DeviceDeps serving_deps(const ServingEngines& engines,
                                              std::shared_ptr<void> runtime,
                                              actors::WorkPort* port);

}  // namespace tidemill::workflows
