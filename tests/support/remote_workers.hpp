// SPDX-License-Identifier: Apache-2.0
// Workers that reach the stream of a test through a process boundary, or directly.
#pragma once

#include <functional>
#include <memory>
#include <optional>
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

/// Spawns workers in a process of their own. Their stream is a proxy, whose messages are encoded,
/// carried and decoded.
class RemoteWorkers {
public:
  /// Spawns a worker that uses this stream.
  using Make = std::function<caf::actor(const actors::StreamConsumerActor& stream)>;

  RemoteWorkers(caf::actor_system& system, const actors::StreamConsumerActor& stream, Make make)
      : system_(system), peers_(system, 1) {
    peers_.without_heartbeats();
    const SimulatedPeers::Ports ports = peers_.make_ports();
    gate_ = actors::spawn_worker_gate(
        system,
        {"worker-1", ports.owner, stream, [this](const std::string& line) { log_.push_back(line); },
         [this](const Status& why) { gate_end_ = why; }});
    const actors::StreamConsumerActor proxy = actors::spawn_stream_proxy(system, ports.worker);
    proxy_ = caf::actor_cast<caf::actor>(proxy);
    actors::WorkerHostDeps deps;
    deps.port = ports.worker;
    deps.make_worker = [proxy, make = std::move(make), this](
                           const std::string& kind,
                           std::uint32_t number) -> Result<actors::WorkerSpec> {
      if (kind == "missing") {
        return Status(Errc::kNotFound, "no workers of this kind");
      }
      return actors::WorkerSpec{kind + "-" + std::to_string(number),
                                [this, make, proxy] {
                                  started_ = make(proxy);
                                  return started_;
                                },
                                kind};
    };
    deps.on_end = [this](const std::string& why) { host_end_ = why; };
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
    return actors::spawn_remote_worker(system_, gate_,
                                       {kind + "-" + std::to_string(number), kind, number});
  }

  /// Ends the process, as if it were killed.
  void stop() {
    peers_.stop();
    for (const caf::actor& actor : {proxy_, caf::actor_cast<caf::actor>(host_), started_}) {
      if (actor) {
        caf::anon_send_exit(actor, caf::exit_reason::kill);
      }
    }
    proxy_ = started_ = nullptr;
    caf::anon_send_exit(gate_, caf::exit_reason::kill);
  }

  [[nodiscard]] const caf::actor& started() const { return started_; }
  [[nodiscard]] const std::vector<std::string>& log() const { return log_; }
  [[nodiscard]] const std::optional<Status>& gate_end() const { return gate_end_; }
  [[nodiscard]] const std::optional<std::string>& host_end() const { return host_end_; }
  [[nodiscard]] const SimulatedPeers::Ports& ports() const { return ports_; }
  [[nodiscard]] const actors::WorkerHostActor& host() const { return host_; }

private:
  caf::actor_system& system_;
  SimulatedPeers peers_;
  SimulatedPeers::Ports ports_;
  actors::WorkerGateActor gate_;
  actors::WorkerHostActor host_;
  caf::actor proxy_;
  caf::actor started_;  // the last worker
  std::vector<std::string> log_;
  std::optional<Status> gate_end_;
  std::optional<std::string> host_end_;
};

}  // namespace tidemill::test
