// SPDX-License-Identifier: Apache-2.0
// Starting a device.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/work/work_port.hpp"
#include "engines/executor/executor.hpp"

namespace tidemill::actors {

/// Makes the loss of one minibatch; it is told the whole minibatch for its global denominators.
using LossFactory = std::function<Result<std::unique_ptr<engines::TokenLoss>>(
    std::span<const engines::TrainSequence>)>;

/// What a device is made of.
struct DeviceDeps {
  /// Keeps the views alive; shared with the work in flight.
  std::shared_ptr<void> runtime;
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainEngine* train = nullptr;  // null: the device only generates
  LossFactory make_loss;
  WorkPort* port = nullptr;  // outlives the device
  engines::ExecutorOptions executor;
};

/// Spawns a device. A failing engine ends it with the failure as its exit reason.
[[nodiscard]] DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps);

}  // namespace tidemill::actors
