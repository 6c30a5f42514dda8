// SPDX-License-Identifier: Apache-2.0
// Spawns an advantage worker.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/stream/handles.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// ADVANTAGE WORKER: leases whole groups of the task "advantage", and turns their rewards into
/// advantages or filters the groups. It is stateless.
using AdvantageWorkerActor = caf::typed_actor<
    // Asks for groups. The worker sends this to itself at the start and some time after a failure.
    caf::reacts_to<atom::wake>,
    // Leases no more groups, leaves those that it still gets, and ends once the stream has replied
    // about those that it has decided about.
    caf::reacts_to<atom::drain>>;

/// The values of a sample that an algorithm reads.
struct GroupMember {
  SampleId id;
  double reward = 0.0;
  std::uint32_t response_tokens = 0;
  bool truncated = false;  // the response reached the length limit
};

/// An algorithm's decision about a group.
struct GroupDecision {
  std::vector<float> advantages;  // one per member; read only if `filtered` is empty
  std::string filtered;           // the reason why the group is not trained, or empty
};

/// Decides about a group with an algorithm. Must be a pure function.
/// Errors: `kInvalidArgument` naming the sample, for example if its reward is not finite.
using DecideGroup = std::function<Result<GroupDecision>(std::span<const GroupMember>)>;

/// Dependencies of an advantage worker.
struct AdvantageWorkerDeps {
  std::string name = "advantage-0";
  std::uint32_t max_groups = 16;  // per lease
  Duration lease_wait = kLeaseWait;
  StreamConsumerActor stream;
  DecideGroup decide;
};

/// Spawns an advantage worker.
[[nodiscard]] AdvantageWorkerActor spawn_advantage_worker(caf::actor_system& system,
                                                          AdvantageWorkerDeps deps);

}  // namespace tidemill::actors
