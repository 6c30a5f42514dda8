// SPDX-License-Identifier: Apache-2.0
// Worker processes of a simulated run: groups of actors that reach the run over a simulated
// network, and end together.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/remote/spawn.hpp"
#include "base/random.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/simulated_peers.hpp"
#include "workflows/processes/process_hub.hpp"

namespace tidemill::test {

/// A process inside the simulation, as the actors of its role see it.
struct SimulatedProcess {
  actors::StreamConsumerActor stream;
  std::shared_ptr<actors::PeerPort> port;  // not opened yet
  std::shared_ptr<LocalBuffers> buffers;   // resolves what the run lends it; may be null
  /// Lets an actor end with the process. Ends it at once if the process has ended.
  std::function<void(const caf::actor&)> add;
};

/// Starts processes inside the simulation.
class SimulatedProcesses final : public workflows::ProcessHub {
public:
  using MakeWorker =
      std::function<Result<actors::WorkerSpec>(const std::string& kind, std::uint32_t number)>;
  /// Prepares a process of a role, and returns how its workers are made.
  using Prepare =
      std::function<MakeWorker(const std::string& role, const SimulatedProcess& process)>;

  SimulatedProcesses(caf::actor_system& system, std::uint64_t seed,
                     const transport::LoopbackFaults& faults, Prepare prepare)
      : system_(system), peers_(system, seed, faults), prepare_(std::move(prepare)) {}
  ~SimulatedProcesses() override { end(); }

  Result<workflows::WorkerProcessAddress> new_address(const std::string& /*role*/,
                                                      workflows::TransportChoice /*transport*/,
                                                      std::uint32_t incarnation) override {
    workflows::WorkerProcessAddress address;
    address.transport = "loopback";
    address.run = 1;
    address.incarnation = incarnation;
    address.process = ++last_process_;
    return address;
  }

  Result<workflows::LentBuffers> lend_buffers(
      const workflows::WorkerProcessAddress& address) override {
    const auto buffers = std::make_shared<LocalBuffers>();
    buffers_[address.process] = buffers;
    return workflows::LentBuffers{buffers, {}};
  }

  // The cells of all rows are lent, because those of simulated runs are short.
  Result<actors::RowLending> lend_rows(const workflows::WorkerProcessAddress& address) override {
    const auto rows = std::make_shared<LocalBuffers>();
    rows_[address.process] = rows;
    return actors::RowLending{rows, {}, /*min_bytes=*/1};
  }

  std::uint64_t start(const std::string& role, const workflows::WorkerProcessAddress& address,
                      OnExit on_exit) override {
    const std::uint64_t number = ++last_number_;
    if (ended_) {
      on_exit({"the simulation has ended"});
      return number;
    }
    Process& process = processes_[number];
    process.on_exit = std::move(on_exit);
    process.port = std::make_shared<actors::PeerPort>(peers_.clock());
    const auto add = [this, number](const caf::actor& actor) { add_actor(number, actor); };
    const auto stream = actors::spawn_stream_proxy(
        system_, process.port, [rows = rows_[address.process]](const actors::SegmentAddress&) {
          return Result<std::shared_ptr<actors::BufferResolver>>(rows);
        });
    add(caf::actor_cast<caf::actor>(stream));
    actors::WorkerHostDeps deps;
    deps.port = process.port;
    deps.make_worker =
        [add, make = prepare_(role, {stream, process.port, buffers_[address.process], add})](
            const std::string& kind, std::uint32_t index) -> Result<actors::WorkerSpec> {
      TIDEMILL_ASSIGN_OR_RETURN(actors::WorkerSpec spec, make(kind, index));
      spec.spawn = [add, spawn = spec.spawn] {
        const caf::actor worker = spawn();
        add(worker);
        return worker;
      };
      return spec;
    };
    deps.on_end = [](const std::string& /*why*/) {};
    const auto host = actors::spawn_worker_host(system_, std::move(deps));
    add(caf::actor_cast<caf::actor>(host));
    transport::PeerLinkOptions link;
    link.session.run = address.run;
    link.session.incarnation = address.incarnation;
    link.session.self = address.process;
    peers_.open_worker(process.port, link, caf::actor_cast<caf::strong_actor_ptr>(host));
    return number;
  }

  [[nodiscard]] int pid(std::uint64_t /*number*/) const override { return 0; }
  void stop(std::uint64_t number) override { kill(number, "killed by signal 15 (Terminated)"); }

  /// Kills a process that `random` chooses. Returns whether there is one.
  bool kill_one(RandomStream& random) {
    if (processes_.empty()) {
      return false;
    }
    auto process = processes_.begin();
    std::advance(process, random.below(processes_.size()));
    kill(process->first, "killed by signal 9 (Killed)");
    return true;
  }

  /// Ends all processes and the network.
  void end() {
    ended_ = true;
    while (!processes_.empty()) {
      kill(processes_.begin()->first, "the simulation has ended");
    }
    peers_.stop();
  }

  [[nodiscard]] transport::PeerLinks& links() override { return peers_.owner_links(); }
  [[nodiscard]] const Clock& clock() const override { return peers_.clock(); }
  [[nodiscard]] std::uint32_t num_started() const { return last_process_; }

private:
  struct Process {
    OnExit on_exit;
    std::shared_ptr<actors::PeerPort> port;
    std::vector<caf::actor_addr> actors;
  };

  void add_actor(std::uint64_t number, const caf::actor& actor) {
    if (const auto process = processes_.find(number); process != processes_.end()) {
      process->second.actors.push_back(caf::actor_cast<caf::actor_addr>(actor));
    } else {
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    }
  }

  void kill(std::uint64_t number, const std::string& how) {
    const auto found = processes_.find(number);
    if (found == processes_.end()) {
      return;
    }
    const Process process = std::move(found->second);
    processes_.erase(found);
    for (const caf::actor_addr& address : process.actors) {
      if (const auto actor = caf::actor_cast<caf::actor>(address)) {
        caf::anon_send_exit(actor, caf::exit_reason::kill);
      }
    }
    process.port->close(how);
    process.on_exit({how});
  }

  caf::actor_system& system_;
  SimulatedPeers peers_;
  Prepare prepare_;
  bool ended_ = false;
  std::uint32_t last_process_ = 0;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Process> processes_;
  std::map<std::uint32_t, std::shared_ptr<LocalBuffers>> buffers_;  // by process
  std::map<std::uint32_t, std::shared_ptr<LocalBuffers>> rows_;     // by process
};

}  // namespace tidemill::test
