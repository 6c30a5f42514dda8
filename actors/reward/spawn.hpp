// SPDX-License-Identifier: Apache-2.0
// Starting a reward worker.
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

/// REWARD WORKER: leases rows of the task "reward", has an engine score their answers, writes the
/// rewards back. Stateless: what it held when it dies comes back to the stream. Dies with the
/// engine's error when that gives up; with `kInvalidArgument`, so that it is not started again,
/// when nothing at all can be scored: the engine gives up before its first score, or `max_unscored`
/// deliveries in a row end without one.
using RewardWorkerActor = caf::typed_actor<
    // Time to ask for rows: at the start, or some time after a failure.
    caf::reacts_to<atom::wake>,
    // Time to extend the leases of rows that are not scored yet.
    caf::reacts_to<atom::renew>,
    // The engine has run for a while.
    caf::reacts_to<atom::worked>>;

/// Turns response tokens into text.
using DecodeText = std::function<std::string(const std::vector<std::int32_t>&)>;

/// What a reward worker is made of.
struct RewardWorkerDeps {
  std::string name = "reward-0";
  std::uint32_t max_in_flight = 64;  // rows
  std::uint32_t max_unscored = 256;  // deliveries
  Duration lease_wait = std::chrono::seconds(1);
  /// Longest wait for an outside program in one piece of work.
  Duration patience = std::chrono::milliseconds(200);
  StreamConsumerActor stream;
  std::shared_ptr<engines::RewardEngine> engine;
  DecodeText decode;
  WorkPort* port = nullptr;  // outlives the worker
  /// Told when samples could not be scored, in one line for those of ten seconds; may be empty.
  std::function<void(const std::string&)> log;
};

/// Spawns a reward worker.
[[nodiscard]] RewardWorkerActor spawn_reward_worker(caf::actor_system& system,
                                                    RewardWorkerDeps deps);

}  // namespace tidemill::actors
