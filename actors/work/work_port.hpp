// SPDX-License-Identifier: Apache-2.0
// The port through which actors run blocking work.
//
// Actors never block: they submit file operations, external programs and engine iterations to a
// port. The port runs the work and then sends the actor a message. The work leaves its results in
// an object that it shares with the actor. Only the work accesses that object between the
// submission and the message.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <caf/fwd.hpp>
#include <caf/message.hpp>

#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// Runs the submitted work in the order of submission, one piece at a time.
///
/// Threads: `run` may be called from any thread.
class WorkPort {
public:
  /// A piece of work. It returns the virtual time that it takes: a simulated port sends the message
  /// only after that time, a real port ignores it.
  using Work = std::function<Duration()>;

  WorkPort() = default;
  WorkPort(const WorkPort&) = delete;
  WorkPort& operator=(const WorkPort&) = delete;
  virtual ~WorkPort() = default;

  /// Queues `work`. Sends `done` to `receiver` once the work has run. A null receiver gets no
  /// message, and the work then takes no virtual time.
  virtual void run(Work work, caf::strong_actor_ptr receiver, caf::message done) = 0;
};

/// How much of the processor the thread of a port gets while other threads want it.
enum class PortPriority : std::uint8_t {
  kNormal,
  kBackground,  // a tenth of what a normal thread gets (nice 10)
};

/// Starts a port with one thread of its own. `top` shows the thread as `name`, cut to 15
/// characters. The destructor finishes the queued work.
/// Errors: `kResourceExhausted` if the thread cannot be started.
[[nodiscard]] Result<std::unique_ptr<WorkPort>> make_thread_work_port(
    const std::string& name, PortPriority priority = PortPriority::kNormal);

/// Makes a port for CAF's test scheduler. Work runs at submission. Its message arrives after the
/// virtual time that the work returned plus `latency()`, counted from the end of earlier work.
/// `system` must outlive the port.
[[nodiscard]] std::unique_ptr<WorkPort> make_simulated_work_port(caf::actor_system& system,
                                                                 std::function<Duration()> latency);

}  // namespace tidemill::actors
