// SPDX-License-Identifier: Apache-2.0
// Spawns a rollout worker.
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

/// ROLLOUT WORKER: leases rows of the task "rollout", has a device generate their responses, and
/// writes the responses back. It is stateless: if it dies, the rows that it held return to the
/// stream. If `max_failed` deliveries in a row fail, it exits with `kInvalidArgument`, so that it
/// is not restarted.
using RolloutWorkerActor = caf::typed_actor<
    // Asks for rows. The worker sends this to itself at the start and some time after a failure.
    caf::reacts_to<atom::wake>,
    // Leases no more rows, gives back those that a lease request still brings (`Release::kLeft`),
    // and ends once the rows that it holds are done.
    caf::reacts_to<atom::drain>,
    // Renews the leases of the rows that it holds. The worker sends this to itself.
    caf::reacts_to<atom::renew>>;

/// Dependencies of a rollout worker, and how it generates.
struct RolloutWorkerDeps {
  StreamConsumerActor stream;
  ServingActor serving;
  std::string name = "rollout-0";
  std::uint32_t max_in_flight = 64;  // rows
  std::uint32_t max_failed = 256;    // deliveries
  engines::SamplingOptions sampling;
  std::uint64_t seed = 0;
  std::int32_t max_new_tokens = 1;
  std::vector<std::int32_t> stop_ids;
  std::vector<std::string> stop_strings;
  Duration lease_wait = kLeaseWait;
  /// A row is given back if the device does not reply within this time. It includes the wait for
  /// training, for other rows and, with a fixed order, for a version. `max_new_tokens` bounds the
  /// generation itself: a limit on its time would make results depend on the speed of the machine.
  /// A worker does not outlive its device, so only an error in the program lets this time pass.
  Duration reply_deadline = std::chrono::hours(24);
};

/// Spawns a rollout worker.
[[nodiscard]] RolloutWorkerActor spawn_rollout_worker(caf::actor_system& system,
                                                      RolloutWorkerDeps deps);

}  // namespace tidemill::actors
