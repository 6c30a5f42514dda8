// SPDX-License-Identifier: Apache-2.0
// The actor system of a process, for `main` functions that do not use CAF themselves.
#pragma once

#include <memory>

#include <caf/fwd.hpp>

namespace tidemill::workflows {

/// Owns an actor system in which all message types are registered. The destructor blocks until all
/// actors have terminated. The constructor aborts if the system cannot start `kActorSystemThreads`
/// threads; `check_threads` (process_limits.hpp) tells beforehand.
class ActorSystem {
public:
  ActorSystem();
  ActorSystem(const ActorSystem&) = delete;
  ActorSystem& operator=(const ActorSystem&) = delete;
  ~ActorSystem();

  [[nodiscard]] caf::actor_system& system() noexcept;

private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tidemill::workflows
