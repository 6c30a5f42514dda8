// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/worker_processes.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <caf/all.hpp>

#include "actors/remote/spawn.hpp"

namespace tidemill::workflows {
namespace {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

// The processes of one role in one incarnation.
class WorkerProcesses {
public:
  WorkerProcesses(caf::actor_system& system, ProcessHub& hub, WorkerProcessesOptions options,
                  std::uint32_t incarnation, StreamConsumerActor stream)
      : system_(system),
        hub_(hub),
        options_(std::move(options)),
        incarnation_(incarnation),
        stream_(std::move(stream)) {}
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;
  ~WorkerProcesses() {
    for (const auto& [index, process] : processes_) {
      caf::anon_send_exit(process.gate, caf::exit_reason::user_shutdown);
      hub_.stop(process.child);
    }
  }

  // Starts the worker with this number, in the process that has its index.
  caf::actor start(const StartWorker& worker) {
    const std::lock_guard lock(mutex_);
    Process& process = processes_[worker.number % options_.processes];
    if (process.running == nullptr || !*process.running) {
      hub_.stop(process.child);  // the gate may have ended before the process
      process = open(worker.number % options_.processes);
    }
    return caf::actor_cast<caf::actor>(spawn_remote_worker(system_, process.gate, worker));
  }

private:
  struct Process {
    WorkerGateActor gate;
    std::shared_ptr<std::atomic<bool>> running;  // the gate has not ended
    std::uint64_t child = 0;
  };

  Process open(std::uint32_t index) {
    Process process;
    process.running = std::make_shared<std::atomic<bool>>(true);
    const auto port = std::make_shared<PeerPort>(hub_.clock());
    WorkerGateDeps deps;
    deps.process = options_.role + " process " + std::to_string(index);
    deps.port = port;
    deps.stream = stream_;
    deps.log = options_.log;
    deps.on_end = [running = process.running](const Status& /*why*/) { *running = false; };
    process.gate = spawn_worker_gate(system_, std::move(deps));
    const Result<WorkerProcessAddress> address =
        hub_.new_address(options_.role, options_.transport, incarnation_);
    if (!address.ok()) {
      port->close(address.status().message());
      caf::anon_send(process.gate, atom::closed_v, address.status().message());
      return process;
    }
    transport::PeerLinkOptions link;
    link.session.run = address.value().run;
    link.session.incarnation = incarnation_;
    link.session.self = 0;
    link.session.peer = address.value().process;
    port->open(hub_.links(), link, caf::actor_cast<caf::strong_actor_ptr>(process.gate));
    process.child = hub_.start(options_.role, address.value(),
                               [port](const std::string& how) { port->close(how); });
    return process;
  }

  caf::actor_system& system_;
  ProcessHub& hub_;
  const WorkerProcessesOptions options_;
  const std::uint32_t incarnation_;
  const StreamConsumerActor stream_;
  std::mutex mutex_;
  std::map<std::uint32_t, Process> processes_;  // by index
};

}  // namespace

WorkerFactory remote_worker_factory(caf::actor_system& system, ProcessHub& hub,
                                    const WorkerProcessesOptions& options,
                                    std::uint32_t incarnation, const StreamConsumerActor& stream) {
  const auto processes =
      std::make_shared<WorkerProcesses>(system, hub, options, incarnation, stream);
  return {options.role, options.workers, [processes, role = options.role](std::uint32_t number) {
            const StartWorker worker{role + "-" + std::to_string(number), role, number};
            return WorkerSpec{worker.name, [processes, worker] { return processes->start(worker); },
                              role};
          }};
}

}  // namespace tidemill::workflows
