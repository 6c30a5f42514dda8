// SPDX-License-Identifier: Apache-2.0
#include "workflows/actor_system.hpp"

#include <thread>

#include <caf/all.hpp>

#include "actors/deadline_clock.hpp"
#include "actors/type_ids.hpp"

namespace tidemill::workflows {
namespace {

caf::actor_system_config& configure(caf::actor_system_config& config) {
  actors::add_message_types(config);
  // Actors only pass messages, so one thread is enough and leaves the cores to the device.
  config.set("scheduler.max-threads", 1);
  // The thread sleeps until the next message. CAF's default scheduler polls for work every 50
  // microseconds, which costs a tenth of the core that the thread shares with the device.
  actors::use_deadline_clock(config);
  return config;
}

}  // namespace

struct ActorSystem::Parts {
  caf::actor_system_config config;
  caf::actor_system system{configure(config)};
};

// If CAF cannot start one of its threads, its constructor throws while other threads of it run, and
// unwinding the constructor then crashes or waits forever. An exception that leaves the function of
// a thread ends the program without unwinding, so `std::terminate` can name the cause.
ActorSystem::ActorSystem() {
  std::thread([this] { parts_ = std::make_unique<Parts>(); }).join();
}
ActorSystem::~ActorSystem() = default;

caf::actor_system& ActorSystem::system() noexcept {
  return parts_->system;
}

}  // namespace tidemill::workflows
