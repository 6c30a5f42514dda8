// SPDX-License-Identifier: Apache-2.0
// Spawns the actors with which the process of a run uses the device of another process.
//
//   process of the run                              process of the device
//   remote device -> port       == StartDevice ==>  port -> device host, which opens the device
//   roster -> serving proxy     == Snapshot ==>     serving gate -> device
//   remote workers -> remote device -> gate ======> worker host -> workers, which use the device
//
// A process opens its device when the process of the run asks for it. The device then joins the
// run, for which it loads the weights that the run serves. Only then do workers of the process
// start, so that they generate with weights of the run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/keeper/handles.hpp"
#include "actors/remote/buffer_exchange.hpp"
#include "actors/remote/handles.hpp"
#include "actors/remote/peer_port.hpp"
#include "actors/router/messages.hpp"
#include "actors/wire/serving_messages.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// How long a process may take to start and to open its device.
inline constexpr Duration kDeviceStartDeadline = std::chrono::minutes(10);

/// REMOTE DEVICE: opens the device of another process and has it join the run. The workers that it
/// is asked to start begin once the device has joined. It ends when the process or its device ends
/// or the device is quarantined, with the reason, and the requests that wait then fail. The code is
/// `kUnavailable`, or that of the failure if the process cannot open the device, unless
/// `RemoteDeviceDeps::end_reason` chooses another.
using RemoteDeviceActor = WorkerStarterActor::extend<
    // The process has opened its device, or not.
    caf::reacts_to<atom::deliver, PeerMessagePtr>,
    // Removes the device from the run and then ends. Requires that all of its workers have ended.
    caf::reacts_to<atom::leave>,
    // The device was quarantined. Its process must end, because its workers would otherwise
    // continue to use it.
    caf::reacts_to<atom::quarantine, QuarantinedDevice>>;

/// Dependencies of a remote device.
struct RemoteDeviceDeps {
  std::string name;                // of the device in the run, such as "rollout process 0, start 2"
  std::string process;             // of the process, with which failures of its workers begin
  std::shared_ptr<PeerPort> port;  // of the process
  WorkerGateActor gate;            // of the process
  ServingActor serving;            // the proxy of the device
  RosterActor roster;
  StartDevice start;
  /// Called when the device cannot be used or has ended, with the reason. Not called if this actor
  /// is killed. May be empty.
  std::function<void(const Status&)> on_end;
  /// Called after `on_end`, as in `WorkerGateDeps`.
  std::function<Status(const Status&)> end_reason = {};
};

/// Spawns a remote device, which starts the device of the process.
[[nodiscard]] RemoteDeviceActor spawn_remote_device(caf::actor_system& system,
                                                    RemoteDeviceDeps deps);

/// How long a worker of a process with a device may take to start: the device has to join first.
inline constexpr Duration kDeviceWorkerStartDeadline =
    kDeviceStartDeadline + std::chrono::minutes(15);

/// DEVICE HOST: opens the device of this process when the process of the run asks for it.
using DeviceHostActor = PeerListenerActor::extend<
    // The work port has opened the device.
    caf::reacts_to<atom::worked>>;

/// A device that was opened.
struct OpenedDevice {
  std::shared_ptr<BufferResolver> buffers;  // as in `ServingGateDeps`; may be null
  std::function<ServingActor()> spawn;      // spawns the actor
};

/// Dependencies of a device host.
struct DeviceHostDeps {
  std::shared_ptr<PeerPort> port;  // not opened yet
  /// Opens the device. Called at `work`, at most once.
  std::function<Result<OpenedDevice>(const StartDevice&)> open;
  /// Called with the device before the process of the run learns of it. May be empty.
  std::function<void(const ServingActor&)> on_open;
  WorkPort* work = nullptr;  // opens the device, and resolves tensors; outlives the actors
};

/// Spawns a device host. It lives until its port is closed.
DeviceHostActor spawn_device_host(caf::actor_system& system, DeviceHostDeps deps);

}  // namespace tidemill::actors
