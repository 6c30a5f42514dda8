// SPDX-License-Identifier: Apache-2.0
// Starts the worker processes of a run and links to them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/remote/buffer_exchange.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/wire/serving_messages.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "transport/peer_link.hpp"
#include "workflows/placement_options.hpp"
#include "workflows/processes/worker_address.hpp"

namespace tidemill::workflows {

/// How buffers get to a process.
struct LentBuffers {
  std::shared_ptr<actors::BufferLender> lender;
  actors::SegmentAddress segments;  // where the process finds them
};

/// How a process has ended.
struct ProcessEnd {
  std::string how;         // "exit status 3", "killed by signal 9 (Killed)", why it did not start
  std::string words = {};  // what it wrote last, and where to find more; empty: nothing
  bool started = true;
};

/// The worker processes of a run. It must outlive all that uses it.
///
/// Threads: safe to call concurrently.
class ProcessHub {
public:
  /// Called once for each process, from any thread. Must not call the hub.
  using OnExit = std::function<void(const ProcessEnd& end)>;

  ProcessHub() = default;
  ProcessHub(const ProcessHub&) = delete;
  ProcessHub& operator=(const ProcessHub&) = delete;
  virtual ~ProcessHub() = default;

  /// Returns the address at which a new process of `role` reaches the process of the run, which
  /// listens there.
  /// Errors: `kInvalidArgument` if the path of the socket cannot be used; `kNotFound` without its
  /// folder; `kResourceExhausted` without descriptors or threads; `kUnavailable` if the system
  /// refuses.
  [[nodiscard]] virtual Result<WorkerProcessAddress> new_address(const std::string& role,
                                                                 TransportChoice transport,
                                                                 std::uint32_t incarnation) = 0;
  /// Starts the process of `role` that has this address. Returns the number of this start, for
  /// `pid` and `stop`; it is not `WorkerProcessAddress::process`. Does not wait. Calls `on_exit`
  /// from any thread, possibly before `start` returns; also if the process could not be started.
  virtual std::uint64_t start(const std::string& role, const WorkerProcessAddress& address,
                              OnExit on_exit) = 0;
  /// Prepares to lend tensors to the process that has this address, until it has ended.
  /// Errors: those of `SegmentServer::listen` and `SegmentPool::add_reader`.
  [[nodiscard]] virtual Result<LentBuffers> lend_buffers(const WorkerProcessAddress& address) = 0;
  /// Prepares to lend cells of leased rows to the process. Errors: as `lend_buffers`; rows can then
  /// be sent.
  [[nodiscard]] virtual Result<actors::RowLending> lend_rows(
      const WorkerProcessAddress& address) = 0;
  /// Returns the process id of a process that runs, or 0.
  [[nodiscard]] virtual int pid(std::uint64_t number) const = 0;
  /// Ends the process with this number. Does not wait. Unknown numbers are ignored.
  virtual void stop(std::uint64_t number) = 0;

  /// Returns why no process can reach this one, if that has been so for `at_least`, or success.
  [[nodiscard]] virtual Status trouble(Duration /*at_least*/) const { return {}; }

  /// Returns the links of the process of the run, in which ports to the other processes open
  /// theirs. They live as long as the hub.
  [[nodiscard]] virtual transport::PeerLinks& links() = 0;
  /// Returns the clock of the links, for deadlines of ports. It tells the same time as the clock of
  /// the actor system, and lives as long as the hub.
  [[nodiscard]] virtual const Clock& clock() const = 0;
};

}  // namespace tidemill::workflows
