// SPDX-License-Identifier: Apache-2.0
// Waits for the ends of actors with a monotonic clock.
//
// A blocking actor of CAF 0.17 waits with the clock of the day: while a `receive` with a timeout
// waits and that clock is set back, the timeout is late by as much.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include <caf/error.hpp>

#include "base/clock.hpp"
#include "base/status.hpp"

namespace tidemill::workflows {

/// Tells when an actor has ended, and why. Does not keep the actor alive.
///
/// Threads: safe to use concurrently.
class ActorEnd {
public:
  /// Watches `actor`, a handle, which may have ended already.
  template <class Handle>
  explicit ActorEnd(const Handle& actor) {
    actor->attach_functor([shared = shared_](const caf::error& why) { shared->end(why); });
  }

  /// Waits until the actor ends, at most for `limit`. Returns whether it has ended.
  [[nodiscard]] bool wait_for(Duration limit) const;
  /// Returns why the actor has ended, or `OK` if it has ended normally or not yet.
  [[nodiscard]] Status reason() const;

private:
  struct Shared {
    void end(const caf::error& why);

    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> reason;  // once the actor has ended
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

/// Tells when all of several actors have ended. Does not keep them alive.
///
/// Threads: safe to use concurrently.
class ActorEnds {
public:
  /// Watches `actor`, a handle, too.
  template <class Handle>
  void add(const Handle& actor) {
    shared_->add(1);
    actor->attach_functor([shared = shared_](const caf::error& /*why*/) { shared->add(-1); });
  }

  /// Waits until all actors have ended, at most for `limit`. Returns whether they have.
  [[nodiscard]] bool wait_for(Duration limit) const;

private:
  struct Shared {
    void add(int more);

    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t running = 0;  // actors
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace tidemill::workflows
