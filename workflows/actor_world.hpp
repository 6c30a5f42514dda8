// SPDX-License-Identifier: Apache-2.0
// The actor system of a process, for mains that do not speak CAF.
#pragma once

#include <memory>

#include <caf/fwd.hpp>

namespace tidemill::workflows {

/// Owns an actor system that knows all message types. Its destructor waits until every actor is
/// gone.
class ActorWorld {
public:
  ActorWorld();
  ActorWorld(const ActorWorld&) = delete;
  ActorWorld& operator=(const ActorWorld&) = delete;
  ~ActorWorld();

  [[nodiscard]] caf::actor_system& system() noexcept;

private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tidemill::workflows
