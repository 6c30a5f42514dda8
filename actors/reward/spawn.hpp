// SPDX-License-Identifier: Apache-2.0
// Spawns a reward worker.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/stream/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "engines/reward_engine.hpp"

namespace tidemill::actors {

/// REWARD WORKER: leases rows of the task "reward", has an engine score their responses, and writes
/// the rewards back. It is stateless: if it dies, the rows that it held return to the stream. If
/// the engine gives up, or refuses a sample with `kUnavailable`, the worker exits with the engine's
/// error. If no sample can be scored at all, it exits with `kInvalidArgument`, so that it is not
/// restarted: if the engine gives up before it has scored any sample, or if `max_unscored`
/// deliveries in a row end without a reward.
using RewardWorkerActor = caf::typed_actor<
    // Asks for rows. The worker sends this to itself at the start and some time after a failure.
    caf::reacts_to<atom::wake>,
    // Leases no more rows, gives back those that the engine has not got (`Release::kLeft`), and
    // ends once the others are done.
    caf::reacts_to<atom::drain>,
    // Renews the leases of rows that are not scored yet. The worker sends this to itself.
    caf::reacts_to<atom::renew>,
    // A step of the engine has run at the port.
    caf::reacts_to<atom::worked>>;

/// Turns response tokens into text. Called at the port.
using DecodeText = std::function<std::string(const std::vector<std::int32_t>&)>;

/// Dependencies of a reward worker.
struct RewardWorkerDeps {
  std::string name = "reward-0";
  std::uint32_t max_in_flight = 64;  // rows
  std::uint32_t max_unscored = 256;  // deliveries
  Duration lease_wait = kLeaseWait;
  /// How long one step of the engine may wait for an external program.
  Duration patience = std::chrono::milliseconds(200);
  StreamConsumerActor stream;
  std::shared_ptr<engines::RewardEngine> engine;
  DecodeText decode;
  WorkPort* port = nullptr;  // outlives the worker
  /// Receives a line about samples that could not be scored, at most one in ten seconds. May be
  /// empty.
  std::function<void(const std::string&)> log;
};

/// Spawns a reward worker.
[[nodiscard]] RewardWorkerActor spawn_reward_worker(caf::actor_system& system,
                                                    RewardWorkerDeps deps);

}  // namespace tidemill::actors
