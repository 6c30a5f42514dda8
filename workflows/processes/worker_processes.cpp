// SPDX-License-Identifier: Apache-2.0
#include "workflows/processes/worker_processes.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <caf/all.hpp>

#include "actors/remote/remote_device.hpp"
#include "actors/remote/serving.hpp"
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
      end(process);
    }
  }

  // Starts the worker with this number, in the process that has its index.
  caf::actor start(const StartWorker& worker) {
    const std::lock_guard lock(mutex_);
    const std::uint32_t index = worker.number % options_.processes;
    Process& process = processes_[index];
    if (process.running == nullptr || !*process.running) {
      hub_.stop(process.child);  // the gate may have ended before the process
      process = open(index, process.starts + 1);
    }
    return caf::actor_cast<caf::actor>(spawn_remote_worker(
        system_, process.starter, worker,
        options_.devices.has_value() ? kDeviceWorkerStartDeadline : kWorkerStartDeadline));
  }

private:
  struct Process {
    WorkerGateActor gate;
    WorkerStarterActor starter;                  // the gate, or the device of the process
    std::shared_ptr<std::atomic<bool>> running;  // the gate has not ended
    std::uint64_t child = 0;
    std::uint32_t starts = 0;  // of processes with this index
  };

  void end(const Process& process) {
    caf::anon_send_exit(process.starter, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(process.gate, caf::exit_reason::user_shutdown);
    hub_.stop(process.child);
  }

  Process open(std::uint32_t index, std::uint32_t starts) {
    Process process;
    process.starts = starts;
    process.running = std::make_shared<std::atomic<bool>>(true);
    const auto port = std::make_shared<PeerPort>(hub_.clock());
    WorkerGateDeps deps;
    deps.process = options_.role + " process " + std::to_string(index);
    deps.port = port;
    deps.stream = stream_;
    deps.log = options_.log;
    deps.on_end = [running = process.running](const Status& /*why*/) { *running = false; };
    const std::string name = deps.process;
    process.gate = spawn_worker_gate(system_, std::move(deps));
    process.starter = process.gate;
    if (const Status started = start_child(process, index, name, port); !started.ok()) {
      port->close(started.message());
      caf::anon_send(process.gate, atom::closed_v, started.message());
    }
    return process;
  }

  // Starts the process and opens the port to it.
  Status start_child(Process& process, std::uint32_t index, const std::string& name,
                     const std::shared_ptr<PeerPort>& port) {
    TIDEMILL_ASSIGN_OR_RETURN(WorkerProcessAddress address,
                              hub_.new_address(options_.role, options_.transport, incarnation_));
    if (index < options_.cores.size()) {
      address.cores = options_.cores[index];
    }
    if (options_.devices.has_value()) {
      TIDEMILL_RETURN_IF_ERROR(add_device(process, name, address, port));
    }
    transport::PeerLinkOptions link;
    link.session.run = address.run;
    link.session.incarnation = incarnation_;
    link.session.self = 0;
    link.session.peer = address.process;
    port->open(hub_.links(), link, caf::actor_cast<caf::strong_actor_ptr>(process.gate));
    process.child =
        hub_.start(options_.role, address, [port](const std::string& how) { port->close(how); });
    return {};
  }

  // Lets the process have a device, which joins the run. The roster does not take the name of a
  // device that has failed again, so every start has its own.
  Status add_device(Process& process, const std::string& name, const WorkerProcessAddress& address,
                    const std::shared_ptr<PeerPort>& port) {
    TIDEMILL_ASSIGN_OR_RETURN(const LentBuffers buffers, hub_.lend_buffers(address));
    RemoteDeviceDeps deps;
    deps.name = process.starts == 1 ? name : name + ", start " + std::to_string(process.starts);
    deps.port = port;
    deps.gate = process.gate;
    ServingProxyDeps proxy;
    proxy.name = deps.name;
    proxy.port = port;
    proxy.buffers = buffers.lender;
    proxy.work = options_.devices->work;
    proxy.has_base = true;
    deps.serving = spawn_serving_proxy(system_, std::move(proxy));
    options_.devices->ends->add(deps.serving);
    deps.roster = options_.devices->roster;
    deps.start = options_.devices->start;
    deps.start.segments = buffers.segments;
    deps.on_end = [running = process.running, port](const Status& why) {
      *running = false;
      port->close(why.message());
    };
    process.starter = spawn_remote_device(system_, std::move(deps));
    return {};
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
