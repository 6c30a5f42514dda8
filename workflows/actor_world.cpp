// SPDX-License-Identifier: Apache-2.0
#include "workflows/actor_world.hpp"

#include <caf/all.hpp>

#include "actors/type_ids.hpp"

namespace tidemill::workflows {
namespace {

caf::actor_system_config& configure(caf::actor_system_config& config) {
  actors::add_message_types(config);
  // Actors only pass messages on: one thread does, and leaves the cores to the device.
  config.set("scheduler.max-threads", 1);
  // It waits for the next message; the default policy looks for work every 50 microseconds, which
  // takes a tenth of the core that it shares with the device.
  config.set("scheduler.policy", caf::atom("sharing"));
  return config;
}

}  // namespace

struct ActorWorld::Parts {
  caf::actor_system_config config;
  caf::actor_system system{configure(config)};
};

ActorWorld::ActorWorld() : parts_(std::make_unique<Parts>()) {}
ActorWorld::~ActorWorld() = default;

caf::actor_system& ActorWorld::system() noexcept {
  return parts_->system;
}

}  // namespace tidemill::workflows
