// SPDX-License-Identifier: Apache-2.0
// Spawns a device.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/work/work_port.hpp"
#include "engines/executor/executor.hpp"
#include "engines/runtime/named_adapters.hpp"

namespace tidemill::actors {

/// Makes the loss of one minibatch. It gets the whole minibatch, from which it takes the loss's
/// global denominators.
using LossFactory = std::function<Result<std::unique_ptr<engines::TokenLoss>>(
    std::span<const engines::TrainSequence>)>;

/// Opens the adapter in a directory, as `engines::open_adapter` does.
using OpenAdapter = std::function<Result<engines::AdapterFiles>(const std::string& path)>;

/// Dependencies of a device.
struct DeviceDeps {
  /// Keeps the engines alive. Shared with the work at the port.
  std::shared_ptr<void> runtime;
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainingJob* train = nullptr;  // null: the device only generates
  LossFactory make_loss;
  WorkPort* port = nullptr;  // outlives the device
  engines::ExecutorOptions executor;
  engines::NamedAdapters* adapters = nullptr;  // null: requests name no adapters
  OpenAdapter open_adapter;                    // runs at the port; needed if `adapters` is set
};

/// Spawns a device. If an engine fails, the device exits with the failure as its exit reason.
[[nodiscard]] DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps);

}  // namespace tidemill::actors
