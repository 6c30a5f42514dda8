// SPDX-License-Identifier: Apache-2.0
// The door through which actors hand blocking work to somebody who may block.
//
// No actor blocks: files, programs and engine iterations go through a port. The port runs the work
// and then sends the given message; what the work produced waits in an object that work and actor
// share, and that nobody else touches between submission and message.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>
#include <caf/message.hpp>

#include "base/clock.hpp"

namespace tidemill::actors {

/// Runs work in the order of submission, one piece at a time.
///
/// Threads: `run` may be called from any thread.
class WorkPort {
public:
  /// What to do. The answer is the virtual time it stands for: a simulated port lets that much pass
  /// before the completion message, a real one ignores it.
  using Work = std::function<Duration()>;

  WorkPort() = default;
  WorkPort(const WorkPort&) = delete;
  WorkPort& operator=(const WorkPort&) = delete;
  virtual ~WorkPort() = default;

  /// Queues `work`; sends `done` to `receiver` once it has run.
  virtual void run(Work work, caf::strong_actor_ptr receiver, caf::message done) = 0;
};

/// Starts a port with one thread of its own, called `name` in `top`. Its destructor finishes what
/// was queued.
[[nodiscard]] std::unique_ptr<WorkPort> make_thread_work_port(const std::string& name);

/// Makes a port for CAF's test scheduler: work runs at submission, its message arrives after the
/// virtual time that the work returned plus `latency()`. `system` must outlive the port.
[[nodiscard]] std::unique_ptr<WorkPort> make_simulated_work_port(caf::actor_system& system,
                                                                 std::function<Duration()> latency);

}  // namespace tidemill::actors
