// SPDX-License-Identifier: Apache-2.0
// Workers that reach the stream of a test through a process boundary, or directly.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>
#include <gtest/gtest.h>

#include "actors/remote/spawn.hpp"
#include "tests/support/simulated_peers.hpp"

namespace tidemill::test {

/// Names the parameter of a suite that runs with workers of the same process (false) and of another
/// one.
inline std::string place_name(const ::testing::TestParamInfo<bool>& place) {
  return place.param ? "InAnotherProcess" : "InTheSameProcess";
}

/// How rows are lent to a process, and how it opens their memory.
struct LentRows {
  actors::RowLending rows = {};
  actors::OpenRowMemory open = {};
};

/// Spawns workers in a process of their own. Their stream is a proxy, whose messages are encoded,
/// carried and decoded.
class RemoteWorkers {
public:
  /// Spawns a worker that uses this stream.
  using Make = std::function<caf::actor(const actors::StreamConsumerActor& stream)>;
  /// Changes the options of the sessions.
  using Configure = std::function<void(SimulatedPeers&)>;

  RemoteWorkers(
      caf::actor_system& system, const actors::StreamConsumerActor& stream, Make make,
      const Configure& configure = [](SimulatedPeers& peers) { peers.without_heartbeats(); },
      LentRows lending = {})
      : system_(system), peers_(system, 1) {
    configure(peers_);
    const SimulatedPeers::Ports ports = peers_.make_ports();
    actors::WorkerGateDeps gate;
    gate.process = "process worker-1";
    gate.port = ports.owner;
    gate.stream = stream;
    gate.log = [this](const std::string& line) { log_.push_back(line); };
    gate.on_end = [this](const Status& why) { gate_ends_.push_back(why); };
    gate.rows = std::move(lending.rows);
    gate_ = actors::spawn_worker_gate(system, std::move(gate));
    proxy_ = actors::spawn_stream_proxy(system, ports.worker, std::move(lending.open));
    actors::WorkerHostDeps deps;
    deps.port = ports.worker;
    deps.make_worker = [proxy = proxy_, make = std::move(make), this](
                           const std::string& kind,
                           std::uint32_t number) -> Result<actors::WorkerSpec> {
      if (kind == "missing") {
        return Status(Errc::kNotFound, "no workers of this kind");
      }
      return actors::WorkerSpec{kind + "-" + std::to_string(number),
                                [this, make, proxy] { return started_.emplace_back(make(proxy)); },
                                kind};
    };
    deps.on_end = [this](const std::string& why) { host_ends_.push_back(why); };
    host_ = actors::spawn_worker_host(system, std::move(deps));
    peers_.open(ports, caf::actor_cast<caf::strong_actor_ptr>(gate_),
                caf::actor_cast<caf::strong_actor_ptr>(host_));
    ports_ = ports;
  }
  RemoteWorkers(const RemoteWorkers&) = delete;
  RemoteWorkers& operator=(const RemoteWorkers&) = delete;
  ~RemoteWorkers() { stop(); }

  /// Has the process start a worker, for which the returned actor stands.
  actors::RemoteWorkerActor start(const std::string& kind, std::uint32_t number) {
    return start({kind + "-" + std::to_string(number), kind, number});
  }
  actors::RemoteWorkerActor start(const actors::StartWorker& worker) {
    return actors::spawn_remote_worker(system_, gate_, worker);
  }

  /// Ends the process, as if it were killed.
  void stop() {
    peers_.stop();
    for (const caf::actor& worker : std::exchange(started_, {})) {
      caf::anon_send_exit(worker, caf::exit_reason::kill);
    }
    caf::anon_send_exit(proxy_, caf::exit_reason::kill);
    caf::anon_send_exit(host_, caf::exit_reason::kill);
    caf::anon_send_exit(gate_, caf::exit_reason::kill);
  }

  /// Returns the workers that the process has started, those that have ended included.
  [[nodiscard]] const std::vector<caf::actor>& started() const { return started_; }
  [[nodiscard]] const std::vector<std::string>& log() const { return log_; }
  /// Returns the calls of `on_end` of the gate and of the host.
  [[nodiscard]] const std::vector<Status>& gate_ends() const { return gate_ends_; }
  [[nodiscard]] const std::vector<std::string>& host_ends() const { return host_ends_; }
  [[nodiscard]] const SimulatedPeers::Ports& ports() const { return ports_; }
  [[nodiscard]] const actors::WorkerGateActor& gate() const { return gate_; }
  [[nodiscard]] const actors::WorkerHostActor& host() const { return host_; }
  /// Returns the stream as the workers see it.
  [[nodiscard]] const actors::StreamConsumerActor& stream() const { return proxy_; }

private:
  caf::actor_system& system_;
  SimulatedPeers peers_;
  SimulatedPeers::Ports ports_;
  actors::WorkerGateActor gate_;
  actors::WorkerHostActor host_;
  actors::StreamConsumerActor proxy_;
  std::vector<caf::actor> started_;
  std::vector<std::string> log_;
  std::vector<Status> gate_ends_;
  std::vector<std::string> host_ends_;
};

}  // namespace tidemill::test
