// SPDX-License-Identifier: Apache-2.0
// The worker processes of a run on this host, and the threads that take their place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "actors/remote/segment_buffers.hpp"
#include "base/buffer_allocator.hpp"
#include "base/clock.hpp"
#include "base/result.hpp"
#include "transport/connection.hpp"
#include "transport/peer_link.hpp"
#include "transport/segments/segment_pool.hpp"
#include "transport/segments/segment_server.hpp"
#include "workflows/processes/child_processes.hpp"
#include "workflows/processes/connection_trouble.hpp"
#include "workflows/processes/process_hub.hpp"
#include "workflows/processes/process_log.hpp"
#include "workflows/processes/worker_program.hpp"
#include "workflows/processes/worker_threads.hpp"

namespace tidemill::workflows {

/// The shared memory for cells of leased rows, unless an option says otherwise. Units: bytes.
inline constexpr std::int64_t kRowMemoryBytes = std::int64_t{64} << 20U;

/// Runs the role's workers on the calling thread, as a worker process at `address` would. Returns
/// when `stop` asks for it, or with the reason when the link to the run has ended.
using WorkInThread = std::function<Status(
    const std::string& role, const WorkerProcessAddress& address, const std::stop_token& stop)>;

/// What worker processes of this host need.
struct LocalProcessesOptions {
  /// Of the run. Gets a folder for sockets, and `processes.log` (process_log.hpp), which takes what
  /// the processes write to stdout and stderr.
  std::filesystem::path directory;
  WorkerProgram program;
  WorkInThread work_in_thread;  // for the transport "loopback"
  /// Receives one line for each role, which names its transport and the reason.
  std::function<void(const std::string&)> inform;
  /// Takes a warning for the user.
  std::function<void(const std::string&)> warn;
  /// The most shared memory that weights may take, and how much of it is kept when it is free.
  /// Units: bytes.
  std::int64_t max_weight_bytes = 0;
  std::int64_t kept_weight_bytes = 0;
  /// The most shared memory that cells of leased rows may take. Units: bytes.
  std::int64_t max_row_bytes = kRowMemoryBytes;
};

/// Shared memory of which buffers are lent to the processes of a run.
///
/// Threads: one call at a time, except that the pool is safe to use concurrently.
class LentMemory {
public:
  /// `name` is that of the socket at which processes get the memory. `on_trouble` is as in
  /// `SegmentServerOptions`.
  LentMemory(std::string name, const transport::SegmentPoolOptions& options,
             std::function<void(const Status&)> on_trouble)
      : name_(std::move(name)),
        on_trouble_(std::move(on_trouble)),
        pool_(options),
        copies_(std::make_shared<actors::SegmentCopies>(pool_)) {}

  /// Allows a process to read, with a new token. The first call opens the socket in the folder of
  /// the run.
  /// Errors: those of `SegmentServer::listen` and `SegmentPool::add_reader`.
  [[nodiscard]] Result<LentBuffers> add_reader(const std::filesystem::path& run,
                                               std::uint32_t process);
  void close() { server_.reset(); }
  [[nodiscard]] transport::SegmentPool& pool() noexcept { return pool_; }

private:
  const std::string name_;
  const std::function<void(const Status&)> on_trouble_;
  transport::SegmentPool pool_;
  const std::shared_ptr<actors::SegmentCopies> copies_;
  std::unique_ptr<transport::SegmentServer> server_;  // null: nothing was lent yet
};

/// Child processes or threads, and the addresses at which they reach this process. The destructor
/// ends them and waits until they are gone.
class LocalProcesses final : public ProcessHub {
public:
  explicit LocalProcesses(LocalProcessesOptions options);
  ~LocalProcesses() override;

  [[nodiscard]] Result<WorkerProcessAddress> new_address(const std::string& role,
                                                         TransportChoice transport,
                                                         std::uint32_t incarnation) override;
  std::uint64_t start(const std::string& role, const WorkerProcessAddress& address,
                      OnExit on_exit) override;
  [[nodiscard]] Result<LentBuffers> lend_buffers(const WorkerProcessAddress& address) override;
  [[nodiscard]] Result<actors::RowLending> lend_rows(const WorkerProcessAddress& address) override;
  [[nodiscard]] int pid(std::uint64_t number) const override;
  void stop(std::uint64_t number) override;
  [[nodiscard]] Status trouble(Duration at_least) const override {
    return trouble_.lasting(at_least);
  }
  [[nodiscard]] transport::PeerLinks& links() override { return thread_.links(); }
  [[nodiscard]] const Clock& clock() const override { return clock_; }

  /// Returns the memory from which buffers are lent without a copy.
  [[nodiscard]] BufferAllocator& weight_memory() noexcept { return weights_.pool(); }

private:
  [[nodiscard]] Result<std::unique_ptr<transport::Acceptor>> listen(const std::string& transport,
                                                                    const std::string& socket);
  std::uint64_t start_thread(const std::string& role, const WorkerProcessAddress& address,
                             OnExit on_exit);
  void take_back_memory(std::uint32_t process);

  const LocalProcessesOptions options_;
  const std::uint64_t run_;
  LentMemory weights_;
  LentMemory rows_;
  SystemClock clock_;
  ConnectionTrouble trouble_;
  transport::PeerLinkThread thread_;
  ProcessLog log_;    // used by the thread of `children_`
  std::mutex mutex_;  // of the servers of the memory, and of the next three
  std::uint32_t last_process_ = 0;
  std::map<std::string, std::unique_ptr<transport::Acceptor>> acceptors_;  // by transport
  std::map<std::string, std::string> informed_;  // transports of which the user knows, by role
  // Destroyed first, because they call what uses the rest.
  ChildProcesses children_;
  WorkerThreads threads_;
};

/// Returns a connector to the process of the run. Errors: `kInvalidArgument` for an unknown
/// transport.
[[nodiscard]] Result<std::unique_ptr<transport::Connector>> connector_to(
    const WorkerProcessAddress& address);

}  // namespace tidemill::workflows
