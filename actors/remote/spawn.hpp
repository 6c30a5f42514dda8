// SPDX-License-Identifier: Apache-2.0
// Spawns the actors through which two processes reach each other's actors.
//
//   process of a worker                          process of the stream (the owner of the run)
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

/// Since when the workers of a process wait for rows, and why, for people.
///
/// Threads: safe to call concurrently.
class WorkerWaits {
public:
  struct Wait {
    TimePoint since;     // as the clock of the actor system tells it
    std::string reason;  // what the stream waits for; empty: unknown yet
  };

  /// The worker asks for rows. `now` counts only if it does not wait already.
  void begin(const std::string& worker, TimePoint now);
  /// The worker has got none.
  void set_reason(const std::string& worker, const std::string& reason);
  /// The worker has got rows, or has ended.
  void end(const std::string& worker);
  /// Returns the wait that began first, if any.
  [[nodiscard]] std::optional<Wait> longest() const;

private:
  mutable std::mutex mutex_;
  std::map<std::string, Wait> waits_;  // by worker
};

/// Cells of fewer bytes are sent in messages: for them, a loan costs more than copies.
inline constexpr std::uint64_t kMinLentBytes = 4096;

/// How the cells of leased rows get to a process without being sent.
struct RowLending {
  /// Lends cells to the process. Null: rows are sent in messages. If the link ends, the owner of
  /// the pool has to drop the reader, because messages that were on their way have loans.
  std::shared_ptr<BufferLender> lender = nullptr;
  SegmentAddress segments = {};  // where the process finds them
  std::uint64_t min_bytes = kMinLentBytes;
};

/// Dependencies of a worker gate.
struct WorkerGateDeps {
  std::string process;             // its name, such as "reward process 0", for messages
  std::shared_ptr<PeerPort> port;  // closed when the gate ends
  StreamConsumerActor stream;
  /// Takes a line of the process for the log of the run. May be empty.
  std::function<void(const std::string&)> log;
  /// Called when the gate has ended because the process is lost or breaks the rules, with the
  /// reason. Not called if the gate is killed. May be empty.
  std::function<void(const Status&)> on_end;
  std::shared_ptr<WorkerWaits> waits = nullptr;  // written by the gate; may be null
  std::function<void()> on_ready = {};           // called when its first worker runs; may be empty
  /// Called after `on_end`. Returns the failure with which the gate ends, from the reason. Empty:
  /// it ends with the reason.
  std::function<Status(const Status&)> end_reason = {};
  RowLending rows = {};
};

/// Spawns a worker gate. The caller then opens the port for it.
[[nodiscard]] WorkerGateActor spawn_worker_gate(caf::actor_system& system, WorkerGateDeps deps);

/// Spawns an actor that stands for the worker `worker`, which `starter` starts within `deadline`.
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
  /// Returns the worker of this kind and number.
  std::function<Result<WorkerSpec>(const std::string& kind, std::uint32_t number)> make_worker;
  /// Called when the link has ended, with the reason.
  std::function<void(const std::string&)> on_end;
};

/// Spawns a worker host. The caller then opens the port for it.
[[nodiscard]] WorkerHostActor spawn_worker_host(caf::actor_system& system, WorkerHostDeps deps);

}  // namespace tidemill::actors
