// SPDX-License-Identifier: Apache-2.0
// Processes of a simulation: real ports and links over a network in virtual time, all in one
// process and on one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/atoms.hpp"
#include "actors/remote/peer_port.hpp"
#include "base/clock.hpp"
#include "transport/loopback/loopback_network.hpp"
#include "transport/peer_link.hpp"

namespace tidemill::test {

/// The virtual time of an actor system.
class ActorClock final : public Clock {
public:
  explicit ActorClock(caf::actor_system& system) : system_(system) {}
  [[nodiscard]] TimePoint now() const override { return system_.clock().now(); }

private:
  caf::actor_system& system_;
};

/// One process that owns a run and any number of others, between which a network loses, damages and
/// delays frames. An actor moves the frames, so the scheduler of the actor system decides when.
class SimulatedPeers {
public:
  SimulatedPeers(caf::actor_system& system, std::uint64_t seed,
                 const transport::LoopbackFaults& faults = {})
      : clock_(system), network_(seed, faults, [this] { wake(); }) {
    pump_ = system.spawn([this](caf::event_based_actor* self) {
      return caf::behavior{[this, self](atom::wake) { pump(self); }};
    });
  }
  SimulatedPeers(const SimulatedPeers&) = delete;
  SimulatedPeers& operator=(const SimulatedPeers&) = delete;
  ~SimulatedPeers() { stop(); }

  [[nodiscard]] const Clock& clock() const { return clock_; }

  /// Lets sessions send no heartbeats, so that a test has only the timers of its actors. Call it
  /// before `open`.
  void without_heartbeats() {
    session_.heartbeat = std::chrono::hours(12);
    session_.max_silence = std::chrono::hours(24);
    session_.max_unacknowledged = std::chrono::hours(24);
    session_.max_unreachable = std::chrono::hours(24);
  }

  /// Returns the options of the sessions, to be changed before `open`.
  [[nodiscard]] transport::PeerSessionOptions& session() { return session_; }

  /// Starts a process: makes a port of the owner to it, and its port to the owner.
  struct Ports {
    std::shared_ptr<actors::PeerPort> owner;
    std::shared_ptr<actors::PeerPort> worker;
    std::uint32_t process = 0;
  };
  [[nodiscard]] Ports make_ports() {
    return {std::make_shared<actors::PeerPort>(clock_), std::make_shared<actors::PeerPort>(clock_),
            ++last_process_};
  }
  /// Opens the ports. Each receiver handles the messages of its port.
  void open(const Ports& ports, caf::strong_actor_ptr owner, caf::strong_actor_ptr worker) {
    transport::PeerLinkOptions options;
    options.session = session_;
    options.session.run = 1;
    options.session.peer = ports.process;
    ports.owner->open(owner_, options, std::move(owner));
    open_.push_back(ports.owner);
    options.session.self = ports.process;
    open_worker(ports.worker, options, std::move(worker));
  }
  /// Opens the port of a new process to the owner.
  void open_worker(const std::shared_ptr<actors::PeerPort>& port,
                   transport::PeerLinkOptions options, caf::strong_actor_ptr receiver) {
    Process& process = processes_.emplace_back(*this);
    options.session.peer = 0;
    options.connector = &process.dialer;
    port->open(process.links, options, std::move(receiver));
    open_.push_back(port);
  }
  [[nodiscard]] transport::PeerLinks& owner_links() { return owner_; }
  [[nodiscard]] transport::LoopbackNetwork& network() { return network_; }

  /// Ends the processes. No actor of theirs gets a message afterwards.
  void stop() {
    stopped_ = true;
    for (const auto& port : std::exchange(open_, {})) {
      port->close("the simulation has ended");
    }
    if (pump_) {
      caf::anon_send_exit(std::exchange(pump_, {}), caf::exit_reason::kill);
    }
  }

private:
  struct Dialer final : transport::Connector {
    explicit Dialer(SimulatedPeers& one) : peers(one) {}
    Result<std::unique_ptr<transport::Connection>> connect(Duration /*max_wait*/) override {
      auto [first, second] = peers.network_.connect();
      peers.owner_.accept(std::move(second));
      return std::move(first);
    }
    SimulatedPeers& peers;
  };
  struct Process {
    explicit Process(SimulatedPeers& peers)
        : dialer(peers), links(peers.clock_, [&peers] { peers.wake(); }) {}
    Dialer dialer;
    transport::PeerLinks links;
  };

  void wake() {
    if (!woken_ && !stopped_ && pump_) {
      woken_ = true;
      caf::anon_send(pump_, atom::wake_v);
    }
  }

  void pump(caf::event_based_actor* self) {
    woken_ = false;
    if (stopped_) {
      return;
    }
    network_.advance(clock_.now());
    owner_.advance();
    TimePoint next = std::min(network_.next_event(), owner_.next_event());
    for (Process& process : processes_) {
      process.links.advance();
      next = std::min(next, process.links.next_event());
    }
    next = std::min(next, network_.next_event());
    if (next <= clock_.now()) {
      wake();
    } else if (next != TimePoint::max() && (next < planned_ || planned_ <= clock_.now())) {
      planned_ = next;
      self->delayed_send(self, next - clock_.now(), atom::wake_v);
    }
  }

  ActorClock clock_;
  transport::PeerSessionOptions session_;
  transport::LoopbackNetwork network_;
  transport::PeerLinks owner_{clock_, [this] { wake(); }};
  std::list<Process> processes_;
  std::vector<std::shared_ptr<actors::PeerPort>> open_;
  std::uint32_t last_process_ = 0;
  caf::actor pump_;
  bool woken_ = false;
  bool stopped_ = false;
  TimePoint planned_{};  // when the actor wakes
};

}  // namespace tidemill::test
