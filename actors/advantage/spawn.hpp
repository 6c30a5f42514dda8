// SPDX-License-Identifier: Apache-2.0
// Starting an advantage worker.
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

/// ADVANTAGE WORKER: leases whole groups of the task "advantage", turns their rewards into
/// advantages or filters them. Stateless.
using AdvantageWorkerActor = caf::typed_actor<
    // Time to ask for groups: at the start, or some time after a failure.
    caf::reacts_to<atom::wake>>;

/// One sample of a group, as an algorithm sees it.
struct GroupMember {
  SampleId id;
  double reward = 0.0;
  std::uint32_t response_tokens = 0;
  bool truncated = false;  // ended by length
};

/// What an algorithm decides about a group.
struct GroupDecision {
  std::vector<float> advantages;  // one per member
  std::string filtered;           // not empty: the group leaves untrained, and this is why
};

/// The algorithm's part that looks at one group: a pure function.
/// Errors: `kInvalidArgument` naming the sample, e.g. for a reward that is not finite.
using DecideGroup = std::function<Result<GroupDecision>(std::span<const GroupMember>)>;

/// What an advantage worker is made of.
struct AdvantageWorkerDeps {
  std::string name = "advantage-0";
  std::uint32_t max_groups = 16;  // at a time
  Duration lease_wait = std::chrono::seconds(1);
  StreamConsumerActor stream;
  DecideGroup decide;
};

/// Spawns an advantage worker.
[[nodiscard]] AdvantageWorkerActor spawn_advantage_worker(caf::actor_system& system,
                                                          AdvantageWorkerDeps deps);

}  // namespace tidemill::actors
