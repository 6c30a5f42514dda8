// SPDX-License-Identifier: Apache-2.0
// Runs real actors under a scheduler that a seed drives, on one thread and in virtual time.
#pragma once

#include <cstddef>
#include <cstdint>

#include <caf/all.hpp>
#include <caf/detail/test_actor_clock.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include "actors/type_ids.hpp"
#include "base/clock.hpp"
#include "base/random.hpp"

namespace tidemill::test {

/// An actor system on CAF's test scheduler. The seed chooses which runnable actor goes next.
class DeterministicSystem {
public:
  /// At most `max_hurry` passes at once while a message is pending.
  explicit DeterministicSystem(std::uint64_t seed, Duration max_hurry = Duration::max())
      : random_(seed, 1), max_hurry_(max_hurry) {}
  DeterministicSystem(const DeterministicSystem&) = delete;
  DeterministicSystem& operator=(const DeterministicSystem&) = delete;
  // Pending jobs hold actor references; ~actor_system() would wait for them forever.
  ~DeterministicSystem() {
    while (scheduler().has_job()) {
      scheduler().run_once();
    }
  }

  [[nodiscard]] caf::actor_system& system() { return system_; }

  /// Delivers one message to an actor that the seed chooses. If no actor has a message, and at
  /// random times before that, it advances the time to the next timeout instead. Returns false if
  /// there is neither a message nor a timeout.
  bool step() {
    auto& jobs = scheduler().jobs;
    const bool hurry = random_.below(32) == 0;  // a timeout before pending messages
    if (!jobs.empty() && !(hurry && next_timeout_is_near())) {
      const auto chosen = static_cast<std::ptrdiff_t>(random_.below(jobs.size()));
      std::rotate(jobs.begin(), jobs.begin() + chosen, jobs.begin() + chosen + 1);
      scheduler().run_once();
      return true;
    }
    return scheduler().trigger_timeout() || scheduler().has_job();
  }

private:
  static caf::actor_system_config& configure(caf::actor_system_config& config) {
    actors::add_message_types(config);
    config.set("scheduler.policy", caf::atom("testing"));
    return config;
  }
  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler());
  }

  [[nodiscard]] bool next_timeout_is_near() {
    auto& clock = dynamic_cast<caf::detail::test_actor_clock&>(system_.clock());
    const auto& timeouts = clock.schedule();
    return !timeouts.empty() && timeouts.begin()->first - clock.now() <= max_hurry_;
  }

  RandomStream random_;
  Duration max_hurry_;
  caf::actor_system_config config_;
  caf::actor_system system_{configure(config_)};
};

}  // namespace tidemill::test
