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
#include "tests/support/simulated_peers.hpp"
#include "workflows/processes/process_hub.hpp"
#include "workflows/rl/worker_factory.hpp"

namespace tidemill::test {

/// Starts processes inside the simulation.
class SimulatedProcesses final : public workflows::ProcessHub {
public:
  /// Returns the factory of a process's workers.
  using MakeFactory =
      std::function<workflows::WorkerFactory(const actors::StreamConsumerActor& stream)>;

  SimulatedProcesses(caf::actor_system& system, std::uint64_t seed,
                     const transport::LoopbackFaults& faults, MakeFactory make)
      : system_(system), peers_(system, seed, faults), make_(std::move(make)) {}
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

  std::uint64_t start(const std::string& /*role*/, const workflows::WorkerProcessAddress& address,
                      OnExit on_exit) override {
    const std::uint64_t number = ++last_number_;
    if (ended_) {
      on_exit("the simulation has ended");
      return number;
    }
    Process& process = processes_[number];
    process.on_exit = std::move(on_exit);
    process.port = std::make_shared<actors::PeerPort>(peers_.clock());
    const auto stream = actors::spawn_stream_proxy(system_, process.port);
    process.actors.push_back(caf::actor_cast<caf::actor_addr>(stream));
    actors::WorkerHostDeps deps;
    deps.port = process.port;
    deps.make_worker = [this, number, factory = make_(stream)](
                           const std::string& kind,
                           std::uint32_t index) -> Result<actors::WorkerSpec> {
      if (kind != factory.kind) {
        return Status(Errc::kNotFound, "no workers of kind " + kind);
      }
      actors::WorkerSpec spec = factory.make(index);
      spec.spawn = [this, number, spawn = spec.spawn] {
        const caf::actor worker = spawn();
        if (const auto owner = processes_.find(number); owner != processes_.end()) {
          owner->second.actors.push_back(caf::actor_cast<caf::actor_addr>(worker));
        } else {
          caf::anon_send_exit(worker, caf::exit_reason::kill);  // the process has been killed
        }
        return worker;
      };
      return spec;
    };
    deps.on_end = [](const std::string& /*why*/) {};
    const auto host = actors::spawn_worker_host(system_, std::move(deps));
    process.actors.push_back(caf::actor_cast<caf::actor_addr>(host));
    transport::PeerLinkOptions link;
    link.session.run = address.run;
    link.session.incarnation = address.incarnation;
    link.session.self = address.process;
    peers_.open_worker(process.port, link, caf::actor_cast<caf::strong_actor_ptr>(host));
    return number;
  }

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
    process.on_exit(how);
  }

  caf::actor_system& system_;
  SimulatedPeers peers_;
  MakeFactory make_;
  bool ended_ = false;
  std::uint32_t last_process_ = 0;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Process> processes_;
};

}  // namespace tidemill::test
