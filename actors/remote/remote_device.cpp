// SPDX-License-Identifier: Apache-2.0
// The remote device. States:
//   opening  The process opens its device. The reply arrives: -> joining.
//   joining  The roster has the device load weights. It replies: -> joined.
//   joined   Workers start.
// Requests to start workers wait until the device has joined. Any failure ends the actor.
#include "actors/remote/remote_device.hpp"

#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/peer_reply.hpp"

namespace tidemill::actors {
namespace {

using StartPromise = caf::typed_response_promise<WorkerStatus>;

// How much later than its deadline the roster may reply.
constexpr Duration kLeaveMargin = std::chrono::minutes(1);

struct RemoteDeviceState {
  static inline const char* name = "remote_device";
  RemoteDeviceState() = default;  // not an aggregate: CAF would build it from `self`

  RemoteDeviceDeps deps;
  bool joined = false;
  std::vector<std::pair<StartWorker, StartPromise>> waiting;
};

using Self = RemoteDeviceActor::stateful_pointer<RemoteDeviceState>;

// Ends the actor. `code` is that of its exit and of the requests that wait.
void end(Self self, const Status& reason, Errc code = Errc::kUnavailable) {
  auto& state = self->state;
  const Status ended = reason.ok() ? Status(Errc::kUnavailable, "its device has ended") : reason;
  const bool named = ended.message().starts_with(state.deps.process + ": ");
  Status why(code, named ? ended.message() : ended.with_context(state.deps.process).message());
  if (state.deps.on_end) {
    state.deps.on_end(ended);
  }
  if (state.deps.end_reason) {
    why = state.deps.end_reason(why);
  }
  for (auto& [worker, promise] : std::exchange(state.waiting, {})) {
    promise.deliver(to_caf_error(why));
  }
  self->quit(to_caf_error(why));
}

void on_joined(Self self) {
  auto& state = self->state;
  state.joined = true;
  for (auto& [worker, promise] : std::exchange(state.waiting, {})) {
    promise.delegate(state.deps.gate, atom::start_v, std::move(worker));
  }
}

// The process has opened its device, or not.
void on_opened(Self self, const PeerMessage& reply) {
  if (const Status failure = start_failure(failure_of(reply)); !failure.ok()) {
    end(self, failure, failure.code());
    return;
  }
  auto& deps = self->state.deps;
  // The roster limits how long loading may take.
  self->request(
          deps.roster, caf::infinite, atom::join_v,
          join_request({deps.name, deps.serving}, caf::actor_cast<caf::strong_actor_ptr>(self)))
      .then([self](const DeviceStatus&) { on_joined(self); },
            [self](const caf::error& error) { end(self, from_caf_error(error)); });
}

caf::result<WorkerStatus> start(Self self, StartWorker& worker) {
  auto& state = self->state;
  if (state.joined) {
    return self->delegate(state.deps.gate, atom::start_v, std::move(worker));
  }
  auto promise = self->make_response_promise<WorkerStatus>();
  state.waiting.emplace_back(std::move(worker), promise);
  return promise;
}

void leave(Self self) {
  const auto& state = self->state;
  const auto left = [self](const Status& how) {
    end(self, how.ok() ? Status(Errc::kUnavailable, "it has left the run") : how);
  };
  if (!state.joined) {
    left({});
    return;
  }
  self->request(state.deps.roster, kLeaveDeadline + kLeaveMargin, atom::leave_v, state.deps.name)
      .then([left](const DeviceStatus&) { left({}); },
            [left](const caf::error& error) { left(from_caf_error(error)); });
}

RemoteDeviceActor::behavior_type remote_device(Self self, RemoteDeviceDeps deps) {
  self->state.deps = std::move(deps);
  const auto& state = self->state;
  self->monitor(state.deps.gate);
  self->monitor(state.deps.serving);
  self->set_down_handler(
      [self](const caf::down_msg& down) { end(self, from_caf_error(down.reason)); });
  state.deps.port->call(MessageKind::kStartDevice, to_wire(state.deps.start), kDeviceStartDeadline,
                        caf::actor_cast<caf::strong_actor_ptr>(self));
  return {
      [self](atom::start, StartWorker& worker) { return start(self, worker); },
      [self](atom::drain, const std::string& worker) {
        self->send(self->state.deps.gate, atom::drain_v, worker);
      },
      [self](atom::deliver, const PeerMessagePtr& message) { on_opened(self, *message); },
      [self](atom::leave) { leave(self); },
      [self](atom::quarantine, const QuarantinedDevice& quarantined) {
        end(self, {Errc::kUnavailable, quarantined.reason});
      },
  };
}

}  // namespace

RemoteDeviceActor spawn_remote_device(caf::actor_system& system, RemoteDeviceDeps deps) {
  return system.spawn(remote_device, std::move(deps));
}

}  // namespace tidemill::actors
