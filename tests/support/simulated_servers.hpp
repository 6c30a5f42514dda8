// SPDX-License-Identifier: Apache-2.0
// Devices of a simulated run in processes of their own, which the run reaches over a simulated
// network.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/remote/serving.hpp"
#include "base/random.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/simulated_peers.hpp"
#include "workflows/rl/role_devices.hpp"

namespace tidemill::test {

/// Puts devices that only serve into processes inside the simulation.
class SimulatedServers {
public:
  /// `port` lends and resolves the tensors of weights.
  SimulatedServers(caf::actor_system& system, std::uint64_t seed,
                   const transport::LoopbackFaults& faults, actors::WorkPort& port)
      : system_(system), peers_(system, seed, faults), port_(port) {}
  ~SimulatedServers() { end(); }

  /// Replaces the first `count` devices of an incarnation by proxies, and ends the processes of the
  /// incarnation before.
  workflows::ServingDevices move(workflows::ServingDevices devices, std::uint32_t count) {
    kill_all("its run was started again");
    for (std::size_t i = 0; i < count; ++i) {
      actors::ServingDevice& device = devices.devices.at(i);
      device.actor = start(device);
      devices.core.at(i).actor = caf::actor_cast<caf::actor>(device.actor);
    }
    return devices;
  }

  /// Kills a process that `random` chooses. Returns whether there is one.
  bool kill_one(RandomStream& random) {
    if (processes_.empty()) {
      return false;
    }
    auto process = processes_.begin();
    std::advance(process, random.below(processes_.size()));
    kill(*process, "killed by signal 9 (Killed)");
    processes_.erase(process);
    return true;
  }

  /// Ends all processes and the network.
  void end() {
    kill_all("the simulation has ended");
    peers_.stop();
  }

  /// Returns the devices, which may have ended.
  [[nodiscard]] std::vector<caf::actor_addr> devices() const {
    std::vector<caf::actor_addr> all;
    for (const Process& process : processes_) {
      all.push_back(process.device);
    }
    return all;
  }
  [[nodiscard]] std::uint32_t num_started() const { return num_started_; }

private:
  struct Process {
    SimulatedPeers::Ports ports;
    caf::actor_addr device;
    caf::actor_addr gate;
  };

  actors::ServingActor start(const actors::ServingDevice& device) {
    ++num_started_;
    Process& process = processes_.emplace_back();
    process.ports = peers_.make_ports();
    process.device = device.actor.address();
    const auto buffers = std::make_shared<LocalBuffers>();
    auto proxy =
        actors::spawn_serving_proxy(system_, {device.name, process.ports.owner, buffers, &port_});
    const auto gate =
        actors::spawn_serving_gate(system_, {process.ports.worker, device.actor, buffers, &port_});
    process.gate = gate.address();
    peers_.open(process.ports, listener(), listener());
    return proxy;
  }

  // The other actors at a port, which the processes do not have.
  caf::strong_actor_ptr listener() {
    return caf::actor_cast<caf::strong_actor_ptr>(
        system_.spawn([](caf::event_based_actor* self) -> caf::behavior {
          return {[](atom::deliver, const actors::PeerMessagePtr&) {},
                  [self](atom::closed, const std::string&) { self->quit(); }};
        }));
  }

  static void kill(const Process& process, const std::string& how) {
    for (const caf::actor_addr& address : {process.device, process.gate}) {
      if (const auto actor = caf::actor_cast<caf::actor>(address)) {
        caf::anon_send_exit(actor, caf::exit_reason::kill);
      }
    }
    process.ports.worker->close(how);
    process.ports.owner->close(how);
  }
  void kill_all(const std::string& how) {
    for (const Process& process : std::exchange(processes_, {})) {
      kill(process, how);
    }
  }

  caf::actor_system& system_;
  SimulatedPeers peers_;
  actors::WorkPort& port_;
  std::list<Process> processes_;
  std::uint32_t num_started_ = 0;
};

}  // namespace tidemill::test
