// SPDX-License-Identifier: Apache-2.0
// The processes of a role. Each index below their number has a process once a worker needs it.
// States of a process:
//   running   Its workers start. It ends: the next worker that needs the index starts another one.
//             It ends too often in a row before it is ready: it is given up.
//   given up  No worker is placed in it until the number is set again. If no other process of the
//             role is running, its workers fail the run instead.
//   retiring  The number has become smaller. It takes no worker. Its last one ends: it is no longer
//             running, and ends too, which may take a while. Meanwhile the index may have another.
#include "workflows/processes/worker_processes.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/remote_device.hpp"
#include "actors/remote/serving.hpp"
#include "actors/remote/spawn.hpp"

namespace tidemill::workflows {
namespace {

using namespace tidemill::actors;  // NOLINT(google-build-using-namespace): this file connects them

// One start of a process. Callbacks about its end share it.
struct Process {
  std::string name;
  std::uint32_t index = 0;
  WorkerProcessAddress address;
  std::shared_ptr<PeerPort> port;
  WorkerGateActor gate;
  WorkerStarterActor starter;  // the gate, or the device of the process
  RemoteDeviceActor device;    // null: it has none
  std::shared_ptr<WorkerWaits> waits = std::make_shared<WorkerWaits>();
  std::atomic<bool> running = true;  // neither the gate nor the device has ended
  std::atomic<bool> ready = false;   // one of its workers has run
  std::atomic<bool> lost = false;    // it has ended, and was not asked to
  std::atomic<std::uint64_t> child = 0;
  std::uint32_t starts = 0;  // of processes with this index
  std::uint32_t workers = 0;
  std::uint32_t early_ends = 0;  // of those before it, in a row: they have ended before being ready
  bool retiring = false;
  bool given_up = false;
};
using ProcessPtr = std::shared_ptr<Process>;

// How often in a row a process may end before it is ready.
constexpr std::uint32_t kMaxEarlyEnds = 3;

// Returns how often in a row a process has ended before it was ready, this one included.
std::uint32_t early_ends_with(const Process& process) {
  return process.lost && !process.ready ? process.early_ends + 1 : 0;
}

// How long other processes may be unable to reach the run before that ends it.
constexpr Duration kMaxTrouble = std::chrono::seconds(10);

// Returns how the process has ended, in words.
std::string end_text(const Process& process, const ProcessEnd& end) {
  return end.how + (process.ready || !end.started ? "" : " before it was ready") +
         (end.words.empty() ? "" : ": " + end.words);
}

// The processes of one role in one incarnation.
class WorkerProcesses final : public ProcessGroup,
                              public std::enable_shared_from_this<WorkerProcesses> {
public:
  WorkerProcesses(caf::actor_system& system, ProcessHub& hub, WorkerProcessesOptions options,
                  std::uint32_t incarnation, StreamConsumerActor stream)
      : system_(system),
        hub_(hub),
        options_(std::move(options)),
        incarnation_(incarnation),
        stream_(std::move(stream)),
        count_(options_.table != nullptr ? options_.table->processes(options_.role)
                                         : options_.processes) {}
  ~WorkerProcesses() override {
    for (const auto& [index, process] : processes_) {
      end(*process);
    }
  }

  // Starts the worker with this number.
  caf::actor start(const StartWorker& worker) {
    ProcessPtr process;
    {
      const std::lock_guard lock(mutex_);
      const std::uint32_t index = place(worker.number);
      ProcessPtr& current = processes_[index];
      if (current == nullptr || !current->running) {
        Result<ProcessPtr> opened = open(index, current);
        if (!opened.ok()) {
          if (current == nullptr) {
            processes_.erase(index);
          }
          return ended_with(opened.status().with_context(process_name(index)));
        }
        current = std::move(opened).value();
      }
      process = current;
      ++process->workers;
      remove_excess(worker);
    }
    auto stands_for_it = spawn_remote_worker(
        system_, process->starter, worker,
        options_.devices.has_value() ? kDeviceWorkerStartDeadline : kWorkerStartDeadline);
    // Not under the lock: an actor that has ended already calls it at once.
    stands_for_it->attach_functor([weak = weak_from_this(), process] {
      if (const auto self = weak.lock()) {
        self->on_worker_end(process);
      }
    });
    return caf::actor_cast<caf::actor>(stands_for_it);
  }

  std::vector<ProcessReport> report() override {
    std::vector<ProcessReport> all;
    const std::lock_guard lock(mutex_);
    for (const auto& [index, process] : processes_) {
      if (index < count_ || process->workers > 0) {
        all.push_back(report_of(*process));
      }
    }
    return all;
  }

  void scale(std::uint32_t processes, const SupervisorActor& supervisor) override {
    const std::lock_guard lock(mutex_);
    const std::uint32_t before = std::exchange(count_, processes);
    std::uint32_t more = processes > before ? processes - before : 0;
    for (const auto& [index, process] : processes_) {
      if (std::exchange(process->given_up, false)) {
        process->lost = false;  // its failures no longer count
        more += index < std::min(before, processes) ? 1 : 0;
      }
    }
    for (std::uint32_t i = 0; i < more * workers_each(); ++i) {
      caf::anon_send(supervisor, atom::add_v, options_.role);
    }
    for (auto placed = placed_.begin(); placed != placed_.end();) {
      if (placed->second < processes) {
        ++placed;
        continue;
      }
      caf::anon_send(supervisor, atom::drain_v, worker_name(placed->first));
      placed = placed_.erase(placed);
    }
    for (const auto& [index, process] : processes_) {
      process->retiring = index >= processes;
      if (process->retiring && process->running && process->workers == 0) {
        retire(*process);
      }
    }
  }

  [[nodiscard]] std::string worker_name(std::uint32_t number) const {
    return options_.role + "-" + std::to_string(number);
  }
  // Returns the name of the process in which the worker will start.
  [[nodiscard]] std::string process_of(std::uint32_t number) {
    const std::lock_guard lock(mutex_);
    return process_name(place(number));
  }

private:
  [[nodiscard]] std::string process_name(std::uint32_t index) const {
    return options_.role + " process " + std::to_string(index);
  }

  // Returns the index of a worker's process: that of its last start, or the one with the fewest
  // workers.
  std::uint32_t place(std::uint32_t worker) {
    if (const auto placed = placed_.find(worker); placed != placed_.end()) {
      return placed->second;
    }
    std::vector<std::uint32_t> workers(count_, 0);
    for (const auto& [number, index] : placed_) {
      ++workers[index];
    }
    for (const auto& [index, process] : processes_) {
      if (process->given_up && index < count_) {
        workers[index] = std::numeric_limits<std::uint32_t>::max();
      }
    }
    const auto fewest = std::min_element(workers.begin(), workers.end());
    return placed_[worker] = static_cast<std::uint32_t>(fewest - workers.begin());
  }

  // Has the supervisor remove a worker for which the processes have no place: the number was made
  // smaller before the worker was added, or while it waited for its next start.
  void remove_excess(const StartWorker& worker) {
    if (options_.table == nullptr || placed_.size() <= std::size_t{count_} * workers_each()) {
      return;
    }
    if (const SupervisorActor supervisor = options_.table->supervisor()) {
      placed_.erase(worker.number);
      caf::anon_send(supervisor, atom::remove_v, worker.name);
    }
  }

  // Returns whether another process of the role, which stays, is running and `state` holds for it.
  // Requires the lock.
  template <class State>
  bool another_is(const Process& process, State state) {
    return std::ranges::any_of(processes_, [&](const auto& entry) {
      const auto& [index, other] = entry;
      return index != process.index && index < count_ && other->running && state(*other);
    });
  }

  // Leaves a process out of the run, with its workers, which must not be placed again. Returns
  // false if no other process of the role is running.
  bool give_up(Process& process) {
    const std::lock_guard lock(mutex_);
    const SupervisorActor supervisor =
        options_.table != nullptr ? options_.table->supervisor() : SupervisorActor{};
    if (!supervisor || process.index >= count_ ||
        !another_is(process, [](const Process& /*other*/) { return true; })) {
      return false;
    }
    process.given_up = true;
    for (auto placed = placed_.begin(); placed != placed_.end();) {
      if (placed->second != process.index) {
        ++placed;
        continue;
      }
      caf::anon_send(supervisor, atom::remove_v, worker_name(placed->first));
      placed = placed_.erase(placed);
    }
    return true;
  }

  // Returns whether another process of the role has run a worker and still runs.
  bool another_serves(const Process& process) {
    const std::lock_guard lock(mutex_);
    return another_is(process, [](const Process& other) { return other.ready.load(); });
  }

  // Returns the failure with which the workers of a process that is lost end. It would repeat if
  // the process could not reach the run, or if the run needs the process, and that has failed in
  // such a way or has ended too often before it was ready.
  Status end_of_workers(Process& process, const Status& why) {
    const std::uint32_t early_ends = early_ends_with(process);
    const bool may_pass = why.code() == Errc::kUnavailable || why.code() == Errc::kTimeout;
    if (early_ends == 0 || (!may_pass && !another_serves(process))) {
      return why;
    }
    std::string reason = why.message();
    if (const Status trouble = hub_.trouble(Duration::zero()); !trouble.ok()) {
      reason += "; the run cannot accept its processes: " + trouble.message();
      if (!hub_.trouble(kMaxTrouble).ok()) {
        return {Errc::kResourceExhausted, reason};
      }
    }
    if (early_ends < kMaxEarlyEnds) {
      return {Errc::kUnavailable, reason};
    }
    if (const std::string context = process.name + ": "; reason.starts_with(context)) {
      reason.erase(0, context.size());
    }
    reason = process.name + ": has failed to start " + std::to_string(early_ends) +
             " times in a row: " + reason;
    if (!give_up(process)) {
      return {Errc::kResourceExhausted, reason};
    }
    if (options_.log) {
      options_.log(reason + "; the run goes on without this process");
    }
    return {Errc::kUnavailable, reason};
  }

  // Returns what calls `end_of_workers` for the process.
  std::function<Status(const Status&)> end_reason(const ProcessPtr& process) {
    return [weak = weak_from_this(), process](const Status& why) {
      const auto self = weak.lock();
      return self != nullptr ? self->end_of_workers(*process, why) : why;
    };
  }

  [[nodiscard]] std::uint32_t workers_each() const {
    return (options_.workers + options_.processes - 1) / options_.processes;
  }

  void on_worker_end(const ProcessPtr& process) {
    const std::lock_guard lock(mutex_);
    --process->workers;
    if (process->retiring && process->running && process->workers == 0) {
      retire(*process);
    }
  }

  // Ends a process that has no workers left. Its device leaves the run first.
  void retire(Process& process) {
    process.running = false;
    if (process.device) {
      caf::anon_send(process.device, atom::leave_v);
    } else {
      end(process);
    }
  }

  void end(const Process& process) {
    if (process.device) {
      caf::anon_send_exit(process.device, caf::exit_reason::user_shutdown);
    }
    caf::anon_send_exit(process.gate, caf::exit_reason::user_shutdown);
    hub_.stop(process.child);
  }

  [[nodiscard]] ProcessReport report_of(const Process& process) const {
    ProcessReport report;
    report.name = process.name;
    report.role = options_.role;
    report.pid = hub_.pid(process.child);
    report.starts = process.starts;
    report.transport = process.address.transport;
    report.reason = process.address.reason;
    report.cores = process.address.cores;
    report.workers = process.workers;
    report.link = process.port->status();
    report.queued_bytes = process.port->waiting_bytes();
    if (const auto wait = process.waits->longest(); wait.has_value()) {
      report.waiting_workers = wait->workers;
      report.waiting_for = wait->reason.empty() ? "rows" : wait->reason;
      report.waiting = hub_.clock().now() - wait->since;
    }
    return report;
  }

  // Returns an actor that has ended with this failure, in the place of a worker.
  caf::actor ended_with(const Status& why) {
    return system_.spawn([why](caf::event_based_actor* self) { self->quit(to_caf_error(why)); });
  }

  // Opens the process with this index. `before` is the one before it, or null.
  Result<ProcessPtr> open(std::uint32_t index, const ProcessPtr& before) {
    auto process = std::make_shared<Process>();
    process->name = process_name(index);
    process->index = index;
    process->starts = before == nullptr ? 1 : before->starts + 1;
    process->early_ends = before == nullptr ? 0 : early_ends_with(*before);
    process->port = std::make_shared<PeerPort>(
        hub_.clock(), [log = options_.log, name = process->name](const std::string& fact) {
          if (log) {
            log(name + fact);
          }
        });
    WorkerGateDeps deps;
    TIDEMILL_RETURN_IF_ERROR(address(*process, index));
    deps.rows = lend_rows(*process);
    deps.process = process->name;
    deps.port = process->port;
    deps.stream = stream_;
    deps.log = options_.log;
    deps.waits = process->waits;
    deps.on_ready = [process] { process->ready = true; };
    deps.on_end = [&hub = hub_, process](const Status& /*why*/) { on_lost(hub, *process); };
    if (!options_.devices.has_value()) {  // otherwise the workers end with the device
      deps.end_reason = end_reason(process);
    }
    process->gate = spawn_worker_gate(system_, std::move(deps));
    options_.ends->add(process->gate);
    process->starter = process->gate;
    if (const Status started = start_child(process); !started.ok()) {
      caf::anon_send_exit(process->gate, caf::exit_reason::user_shutdown);
      return started;
    }
    return process;
  }

  // The process cannot be used any more. It may still run.
  static void on_lost(ProcessHub& hub, Process& process) {
    if (process.running.exchange(false)) {
      process.lost = true;
    }
    hub.stop(process.child);
  }

  Status address(Process& process, std::uint32_t index) {
    TIDEMILL_ASSIGN_OR_RETURN(process.address,
                              hub_.new_address(options_.role, options_.transport, incarnation_));
    process.address.name = process.name;
    if (index < options_.cores.size()) {
      process.address.cores = options_.cores[index];
    }
    return {};
  }

  // Prepares to lend rows to a process. Without that it gets them in messages.
  RowLending lend_rows(const Process& process) {
    auto rows = hub_.lend_rows(process.address);
    if (!rows.ok() && options_.log) {
      options_.log(process.name + ": rows are sent in messages: " + rows.status().message());
    }
    return rows.ok() ? std::move(rows).value() : RowLending{};
  }

  // Starts the process and opens the port to it.
  Status start_child(const ProcessPtr& process) {
    if (options_.devices.has_value()) {
      TIDEMILL_RETURN_IF_ERROR(add_device(process));
    }
    transport::PeerLinkOptions link;
    link.session.run = process->address.run;
    link.session.incarnation = incarnation_;
    link.session.self = 0;
    link.session.peer = process->address.process;
    process->port->open(hub_.links(), link, caf::actor_cast<caf::strong_actor_ptr>(process->gate));
    process->child = hub_.start(options_.role, process->address, [process](const ProcessEnd& end) {
      process->port->close(end_text(*process, end));
    });
    return {};
  }

  // Lets the process have a device, which joins the run. The roster does not take the name of a
  // device that has failed again, so every start has its own.
  Status add_device(const ProcessPtr& process) {
    TIDEMILL_ASSIGN_OR_RETURN(const LentBuffers buffers, hub_.lend_buffers(process->address));
    RemoteDeviceDeps deps;
    deps.name = process->starts == 1 ? process->name
                                     : process->name + ", start " + std::to_string(process->starts);
    deps.process = process->name;
    deps.port = process->port;
    deps.gate = process->gate;
    ServingProxyDeps proxy;
    proxy.name = deps.name;
    proxy.port = process->port;
    proxy.buffers = buffers.lender;
    proxy.work = options_.devices->work;
    proxy.has_base = true;
    proxy.log = options_.log;
    deps.serving = spawn_serving_proxy(system_, std::move(proxy));
    options_.ends->add(deps.serving);
    deps.roster = options_.devices->roster;
    deps.start = options_.devices->start;
    deps.start.segments = buffers.segments;
    deps.on_end = [&hub = hub_, process](const Status& why) {
      process->port->close(why.message());
      on_lost(hub, *process);
    };
    deps.end_reason = end_reason(process);
    process->device = spawn_remote_device(system_, std::move(deps));
    options_.ends->add(process->device);
    process->starter = process->device;
    return {};
  }

  caf::actor_system& system_;
  ProcessHub& hub_;
  const WorkerProcessesOptions options_;
  const std::uint32_t incarnation_;
  const StreamConsumerActor stream_;
  std::mutex mutex_;  // of all below
  std::uint32_t count_;
  std::map<std::uint32_t, ProcessPtr> processes_;  // by index
  std::map<std::uint32_t, std::uint32_t> placed_;  // indices of processes, by worker
};

}  // namespace

WorkerFactory remote_worker_factory(caf::actor_system& system, ProcessHub& hub,
                                    const WorkerProcessesOptions& options,
                                    std::uint32_t incarnation, const StreamConsumerActor& stream) {
  const auto processes =
      std::make_shared<WorkerProcesses>(system, hub, options, incarnation, stream);
  if (options.table != nullptr) {
    options.table->set_group(options.role, processes);
  }
  return {options.role, options.workers, [processes, role = options.role](std::uint32_t number) {
            const StartWorker worker{processes->worker_name(number), role, number};
            WorkerSpec spec{worker.name, [processes, worker] { return processes->start(worker); },
                            role};
            spec.process = processes->process_of(number);
            return spec;
          }};
}

}  // namespace tidemill::workflows
