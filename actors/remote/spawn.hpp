// SPDX-License-Identifier: Apache-2.0
// Spawns the actors through which two processes reach each other's actors.
//
//   process of a worker                          process of the run
//   worker -> stream proxy -> port  == link ==>  port -> gate -> stream
//             worker host  <- port  <== link ==  port <- gate <- remote worker <- supervisor
//
// A worker holds a `StreamConsumerActor` and does not notice where the stream is. The supervisor
// sees a remote worker as it sees any other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <caf/fwd.hpp>

#include "actors/remote/buffer_exchange.hpp"
#include "actors/remote/handles.hpp"
#include "actors/remote/peer_port.hpp"
#include "actors/stream/handles.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/wire/messages.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::actors {

/// How long a process may take to start a worker, which may include the start of the process.
inline constexpr Duration kWorkerStartDeadline = std::chrono::minutes(5);

/// Records how long each worker of a process has been waiting for rows, and what the stream waits
/// for, for display.
///
/// Threads: safe to call concurrently.
class WorkerWaits {
public:
  struct Wait {
    TimePoint since;            // by the clock of the actor system
    std::string reason;         // what the stream waits for; empty: unknown yet
    std::uint32_t workers = 1;  // that are waiting
  };

  /// Notes that the worker has asked for rows. Ignored if it is already waiting.
  void begin(const std::string& worker, TimePoint now);
  /// Notes what the stream said it is waiting for. Ignored if the worker is not waiting.
  void set_reason(const std::string& worker, const std::string& reason);
  /// Notes that the worker has received rows or has ended.
  void end(const std::string& worker);
  /// Returns the wait that began first, if any, with the number of all workers that are waiting.
  [[nodiscard]] std::optional<Wait> longest() const;

private:
  mutable std::mutex mutex_;
  std::map<std::string, Wait> waits_;  // by worker
};

/// Cells smaller than this are copied into the message, which costs less than a loan. Units: bytes.
inline constexpr std::uint64_t kMinLentBytes = 4096;

/// How the cells of leased rows get to a process without being sent.
struct RowLending {
  /// Lends cells to the process. Null: all cells are sent in messages. Once the process has ended,
  /// the owner of the pool calls `drop_reader`, because messages that were lost still held loans.
  std::shared_ptr<BufferLender> lender = nullptr;
  SegmentAddress segments = {};             // where the process finds them
  std::uint64_t min_bytes = kMinLentBytes;  // of a cell that is lent
};

/// Dependencies of a worker gate.
struct WorkerGateDeps {
  std::string process;             // its name, such as "reward process 0", for messages
  std::shared_ptr<PeerPort> port;  // closed when the gate ends
  StreamConsumerActor stream;
  /// Takes a line of the process for the log of the run. May be empty.
  std::function<void(const std::string&)> log;
  /// Called once by the gate, with the reason, before it ends because the link has ended or the
  /// process has broken the protocol. The port is closed by then. Must not block. Not called if the
  /// gate is killed. May be empty.
  std::function<void(const Status&)> on_end;
  std::shared_ptr<WorkerWaits> waits = nullptr;  // written by the gate; may be null
  /// Called when the first worker of the process runs. May be empty.
  std::function<void()> on_ready = {};
  /// Called after `on_end`. Returns the failure with which the gate ends, from the reason. Empty:
  /// it ends with the reason.
  std::function<Status(const Status&)> end_reason = {};
  RowLending rows = {};
};

/// Spawns a worker gate. The caller then opens the port for it.
[[nodiscard]] WorkerGateActor spawn_worker_gate(caf::actor_system& system, WorkerGateDeps deps);

/// Spawns an actor that stands for the worker `worker` and has `starter` start it. If `starter` has
/// not replied some seconds after `deadline`, the actor ends with `kTimeout`.
[[nodiscard]] RemoteWorkerActor spawn_remote_worker(caf::actor_system& system,
                                                    const WorkerStarterActor& starter,
                                                    StartWorker worker,
                                                    Duration deadline = kWorkerStartDeadline);

/// Connects to the memory in which the process of the run lends rows. Called by a thread of the
/// link, so it must return well within `PeerSessionOptions::max_silence`.
using OpenRowMemory =
    std::function<Result<std::shared_ptr<BufferResolver>>(const SegmentAddress& segments)>;

/// Spawns the proxy of the stream that is at the other end of `port`. `open_rows` is called when
/// the process of the run has told where it lends rows. If it is empty or fails, rows come in
/// messages. The caller opens the port afterwards.
[[nodiscard]] StreamConsumerActor spawn_stream_proxy(caf::actor_system& system,
                                                     std::shared_ptr<PeerPort> port,
                                                     OpenRowMemory open_rows = {});

/// Dependencies of a worker host.
struct WorkerHostDeps {
  std::shared_ptr<PeerPort> port;  // closed when the host ends
  /// Makes the worker of this kind and number. Called by the host. Must not block. If it fails, the
  /// start fails with the same error, except that `kNotFound` becomes `kInvalidArgument`, which
  /// ends the run.
  std::function<Result<WorkerSpec>(const std::string& kind, std::uint32_t number)> make_worker;
  /// Called once by the host, with the reason, when the link has ended or the host was told to end.
  /// Not called if the host is killed. Must not be empty.
  std::function<void(const std::string&)> on_end;
};

/// Spawns a worker host. The caller then opens the port for it.
[[nodiscard]] WorkerHostActor spawn_worker_host(caf::actor_system& system, WorkerHostDeps deps);

}  // namespace tidemill::actors
