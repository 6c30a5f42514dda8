// SPDX-License-Identifier: Apache-2.0
// Spawns a device.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/work/work_port.hpp"
#include "engines/executor/executor.hpp"
#include "engines/runtime/model_runtime.hpp"

namespace tidemill::actors {

/// Opens the adapter that a request to load names or contains, as `engines::open_adapter` and
/// `engines::assemble_adapter` do.
using OpenAdapter = std::function<Result<engines::AdapterFiles>(const AdapterRequest& request)>;

/// Opens a training job, as `engines::ModelRuntime::open_job` does.
using OpenJob =
    std::function<Result<std::unique_ptr<engines::TrainingJob>>(const engines::JobOptions&)>;

/// Dependencies of a device.
struct DeviceDeps {
  /// Keeps the engines alive. Shared with the work at the port.
  std::shared_ptr<void> runtime;
  engines::RolloutEngine* rollout = nullptr;
  engines::TrainingJob* train = nullptr;  // job 0; null: there is none
  LossFactory make_loss;                  // of job 0
  WorkPort* port = nullptr;               // outlives the device
  engines::ExecutorOptions executor;
  engines::NamedAdapters* adapters = nullptr;  // null: requests name no adapters
  OpenAdapter open_adapter;                    // runs at the port; needed if `adapters` is set
  OpenJob open_job;                            // runs at the port; empty: no jobs can be opened
  const Clock* clock = nullptr;                // outlives the device; see `engines::Executor`
};

/// Spawns a device. If an engine fails, the device exits with the failure as its exit reason.
[[nodiscard]] DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps);

}  // namespace tidemill::actors
