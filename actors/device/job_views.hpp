// SPDX-License-Identifier: Apache-2.0
// A job of a device as a device of its own: for actors that know only `TrainingActor` and
// `ServingActor`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"

namespace tidemill::actors {

/// The names of adapters that clients can neither see nor request begin with this.
inline constexpr std::string_view kPrivateAdapterPrefix = "\x01job-";

/// Returns whether `name` is that of such an adapter.
[[nodiscard]] inline bool is_private_adapter(std::string_view name) noexcept {
  return name.starts_with(kPrivateAdapterPrefix);
}

/// A job of a device, and the adapter that it trains.
struct JobView {
  DeviceActor device;
  JobId job;
  std::string config;  // of the adapter: the text of an adapter_config.json
  /// The name under which the device serves the adapter for the rollouts of the job. It begins with
  /// `kPrivateAdapterPrefix`.
  std::string rollout_name;
  /// The name under which clients can request the adapter while it is trained. Empty: none.
  std::string public_name;
  std::uint64_t publish_every = 0;  // steps between two versions for clients; 0: none
  std::int64_t created = 0;         // when the job was created: Unix time, seconds
  /// Added to the ids of requests, so that they differ from those of all other users of the device.
  std::uint64_t first_sample = 0;
  std::shared_ptr<const void> owner;  // kept until the views have ended; closes the job
};

/// Returns the request to serve the adapter in `snapshot`, which the job has trained, as `name`.
[[nodiscard]] AdapterRequest load_request(const JobView& view, const std::string& name,
                                          const engines::Snapshot& snapshot);

/// Spawns an actor that trains the job. Each `publish_every` steps, it has the device serve the new
/// weights under `public_name`. If that fails, the training goes on with the served weights as they
/// were. The actor ends if the device does.
[[nodiscard]] TrainingActor spawn_job_training(caf::actor_system& system, JobView view);

/// Spawns an actor that generates with the adapter of the job. `load` has the device serve the
/// snapshot's adapter as `rollout_name`; requests that start later use it, and those in flight keep
/// theirs. Requests have the lowest priority, and the tenant `rollout_name`. A response has the
/// same bits as from a device that serves the adapter as its policy. When the actor ends, it
/// unloads `rollout_name`. It serves no adapters by name. The actor ends if the device does.
[[nodiscard]] ServingActor spawn_job_serving(caf::actor_system& system, JobView view);

}  // namespace tidemill::actors
