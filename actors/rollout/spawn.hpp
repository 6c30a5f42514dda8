// SPDX-License-Identifier: Apache-2.0
// Starting a rollout worker.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/stream/handles.hpp"
#include "base/clock.hpp"
#include "engines/sampling/sampling_options.hpp"

namespace tidemill::actors {

/// ROLLOUT WORKER: leases rows of the task "rollout", has a device continue their prompts, writes
/// the responses back. Stateless: what it held when it dies comes back to the stream.
using RolloutWorkerActor = caf::typed_actor<
    // Time to ask for rows: at the start, or some time after a failure.
    caf::reacts_to<atom::wake>,
    // Time to renew the leases of the rows it holds.
    caf::reacts_to<atom::renew>>;

/// What a rollout worker is made of, and what it does with a prompt.
struct RolloutWorkerDeps {
  StreamConsumerActor stream;
  GeneratingActor device;
  std::string name = "rollout-0";
  std::uint32_t max_in_flight = 64;  // rows
  engines::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::int32_t max_new_tokens = 1;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  Duration lease_wait = std::chrono::seconds(1);
  /// After this long without an answer of the device a row is given back.
  Duration response_deadline = std::chrono::minutes(10);
};

/// Spawns a rollout worker.
[[nodiscard]] RolloutWorkerActor spawn_rollout_worker(caf::actor_system& system,
                                                      RolloutWorkerDeps deps);

}  // namespace tidemill::actors
