// SPDX-License-Identifier: Apache-2.0
// An actor that serves, reached through a process boundary.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <caf/all.hpp>

#include "actors/remote/serving.hpp"
#include "tests/support/local_buffers.hpp"
#include "tests/support/simulated_peers.hpp"

namespace tidemill::test {

/// What a test may replace.
struct RemoteServingOptions {
  std::string name = "device-1";
  std::shared_ptr<actors::BufferLender> lender = nullptr;      // null: those of `buffers`
  std::shared_ptr<actors::BufferResolver> resolver = nullptr;  // likewise
  actors::WorkPort* lend_port = nullptr;                       // null: the port of the fixture
  bool with_buffers = true;
};

/// Puts an actor that serves into a process of its own. Its requests are encoded, carried and
/// decoded.
class RemoteServing {
public:
  RemoteServing(caf::actor_system& system, const actors::ServingActor& serving,
                actors::WorkPort& port, RemoteServingOptions options = {})
      : peers_(system, 1), ports_(peers_.make_ports()) {
    peers_.without_heartbeats();
    if (options.with_buffers && options.lender == nullptr) {
      options.lender = buffers_;
    }
    if (options.with_buffers && options.resolver == nullptr) {
      options.resolver = buffers_;
    }
    proxy_ = actors::spawn_serving_proxy(
        system, {options.name, ports_.owner, options.lender,
                 options.lend_port != nullptr ? options.lend_port : &port});
    gate_ = actors::spawn_serving_gate(system, {ports_.worker, serving, options.resolver, &port});
    peers_.open(ports_, listener(system), listener(system));
  }
  RemoteServing(const RemoteServing&) = delete;
  RemoteServing& operator=(const RemoteServing&) = delete;
  ~RemoteServing() { stop(); }

  /// Ends the link and the simulation of it.
  void stop() { peers_.stop(); }
  /// Ends the link, as if the other process had died.
  void lose(const std::string& reason) { ports_.owner->close(reason); }

  [[nodiscard]] const actors::ServingActor& serving() const { return proxy_; }
  [[nodiscard]] const actors::ServingGateActor& gate() const { return gate_; }
  [[nodiscard]] const SimulatedPeers::Ports& ports() const { return ports_; }
  [[nodiscard]] const Clock& clock() const { return peers_.clock(); }
  [[nodiscard]] LocalBuffers& buffers() const { return *buffers_; }

private:
  // The other actors of a process at the port, such as the host of its workers.
  static caf::strong_actor_ptr listener(caf::actor_system& system) {
    return caf::actor_cast<caf::strong_actor_ptr>(
        system.spawn([](caf::event_based_actor* self) -> caf::behavior {
          return {[](atom::deliver, const actors::PeerMessagePtr&) {},
                  [self](atom::closed, const std::string&) { self->quit(); }};
        }));
  }

  SimulatedPeers peers_;
  SimulatedPeers::Ports ports_;
  std::shared_ptr<LocalBuffers> buffers_ = std::make_shared<LocalBuffers>();
  actors::ServingActor proxy_;
  actors::ServingGateActor gate_;
};

}  // namespace tidemill::test
