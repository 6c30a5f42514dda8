// SPDX-License-Identifier: Apache-2.0
// The router. `RouteTable` chooses devices; the actor passes requests, replies and cancellations
// on. A reply whose ticket is no longer in the table came too late: its request has failed already.
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/router/route_table.hpp"
#include "actors/router/spawn.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using Promise = caf::typed_response_promise<RolloutResult>;

struct RouterState {
  static inline const char* name = "router";
  RouterState() = default;  // not an aggregate: CAF would build it from `self`

  RouterDeps deps;
  RouteTable table;
  std::map<std::uint64_t, Promise> promises;  // by ticket
  bool awaits_join = false;                   // no device serves, and requests wait for one
  std::vector<std::pair<RolloutRequest, Promise>> waiting;  // oldest first
  // Requests to let a device leave, by its index, and how many requests it had then.
  std::multimap<std::size_t, std::pair<caf::typed_response_promise<std::uint64_t>, std::uint64_t>>
      leaves;
};

using Self = RouterActor::stateful_pointer<RouterState>;

// Replies to the requests to let a removed device leave.
void end_leaves(Self self, std::size_t device) {
  auto& state = self->state;
  const auto [first, last] = state.leaves.equal_range(device);
  for (auto leave = first; leave != last; ++leave) {
    leave->second.first.deliver(leave->second.second);
  }
  state.leaves.erase(first, last);
}

// Removes a device, and drops its handle, so that it may end. It may still run, so its requests are
// cancelled: they must not keep it busy.
void remove(Self self, std::size_t device, const std::string& reason) {
  auto& state = self->state;
  if (state.table.removed(device)) {
    return;
  }
  ServingActor& actor = state.deps.devices[device].actor;
  for (const auto& [ticket, id] : state.table.remove(device, reason)) {
    self->send(actor, atom::cancel_v, id);
    const auto promise = state.promises.find(ticket);
    promise->second.deliver(to_caf_error({Errc::kUnavailable, reason}));
    state.promises.erase(promise);
  }
  end_leaves(self, device);
  self->demonitor(actor.address());
  actor = ServingActor();
}

void remove_if_left(Self self, std::size_t device) {
  auto& state = self->state;
  if (state.table.ready_to_leave(device)) {
    remove(self, device, state.deps.devices[device].name + " has left");
  }
}

template <class Reply>
void settle(Self self, std::uint64_t ticket, Reply&& reply) {
  auto& state = self->state;
  if (const auto device = state.table.end(ticket); device.has_value()) {
    const auto promise = state.promises.find(ticket);
    promise->second.deliver(std::forward<Reply>(reply));
    state.promises.erase(promise);
    remove_if_left(self, *device);
  }
}

void pass_on(Self self, RolloutRequest& request, Promise promise) {
  auto& state = self->state;
  const auto route = state.table.begin(request.id);
  if (!route.ok()) {
    promise.deliver(to_caf_error(route.status()));
    return;
  }
  const std::uint64_t ticket = route.value().ticket;
  state.promises.emplace(ticket, std::move(promise));
  const auto handle =
      self->request(state.deps.devices[route.value().device].actor, state.deps.reply_deadline,
                    atom::generate_v, std::move(request));
  handle.then(
      [self, ticket, id = handle.id()](RolloutResult& result) {
        end_deadline(self, id);
        settle(self, ticket, std::move(result));
      },
      [self, ticket, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        settle(self, ticket, error);
      });
}

// While no device serves, requests wait for one that joins. A second request with the id of one
// that a leaving device has goes there at once.
caf::result<RolloutResult> generate(Self self, RolloutRequest& request) {
  auto& state = self->state;
  auto promise = self->make_response_promise<RolloutResult>();
  if (state.awaits_join && !state.table.device_of(request.id).has_value() &&
      state.waiting.size() + state.table.num_pending() < state.deps.max_pending) {
    state.waiting.emplace_back(std::move(request), promise);
  } else {
    pass_on(self, request, promise);
  }
  return promise;
}

void pass_on_waiting(Self self) {
  self->state.awaits_join = false;
  for (auto& [request, promise] : std::exchange(self->state.waiting, {})) {
    pass_on(self, request, std::move(promise));
  }
}

void cancel(Self self, SampleId id) {
  auto& state = self->state;
  std::erase_if(state.waiting, [id](auto& waits) {
    if (waits.first.id != id) {
      return false;
    }
    RolloutResult cancelled;
    cancelled.id = id;
    cancelled.finish_reason = engines::FinishReason::kCancelled;
    waits.second.deliver(std::move(cancelled));
    return true;
  });
  if (const auto device = state.table.device_of(id); device.has_value()) {
    self->send(state.deps.devices[*device].actor, atom::cancel_v, id);
  }
}

std::optional<std::size_t> find_device(const RouterState& state, const std::string& name) {
  for (std::size_t i = 0; i < state.deps.devices.size(); ++i) {
    if (state.deps.devices[i].name == name) {
      return i;
    }
  }
  return std::nullopt;
}

void join(Self self, const DeviceJoin& request) {
  auto& state = self->state;
  const auto known = find_device(state, request.name);
  if (known.has_value() && !state.table.removed(*known)) {
    return;
  }
  const ServingDevice device{request.name, caf::actor_cast<ServingActor>(request.device)};
  if (known.has_value()) {
    state.table.restore(*known);
    state.deps.devices[*known] = device;
  } else {
    static_cast<void>(state.table.add());
    state.deps.devices.push_back(device);
  }
  self->monitor(device.actor);
  pass_on_waiting(self);
}

caf::result<std::uint64_t> leave(Self self, const std::string& name) {
  auto& state = self->state;
  const auto device = find_device(state, name);
  if (!device.has_value() || state.table.removed(*device)) {
    return std::uint64_t{0};
  }
  const std::uint64_t pending = state.table.num_pending(*device);
  auto promise = self->make_response_promise<std::uint64_t>();
  state.leaves.emplace(*device, std::pair(promise, pending));
  state.table.begin_leave(*device, name + " is leaving");
  remove_if_left(self, *device);
  return promise;
}

caf::error loads_nothing() {
  return to_caf_error(
      {Errc::kUnimplemented, "the router loads neither versions nor adapters: ask a device"});
}

RouterActor::behavior_type router(Self self, RouterDeps deps) {
  self->state.table = RouteTable(deps.devices.size(), deps.max_pending);
  for (const ServingDevice& device : deps.devices) {
    self->monitor(device.actor);
  }
  self->state.deps = std::move(deps);
  self->set_down_handler([self](const caf::down_msg& down) {
    const auto& devices = self->state.deps.devices;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (devices[i].actor && devices[i].actor.address() == down.source) {
        remove(self, i, devices[i].name + " has ended: " + from_caf_error(down.reason).message());
      }
    }
  });
  return {
      [self](atom::generate, RolloutRequest& request) { return generate(self, request); },
      [self](atom::cancel, SampleId id) { cancel(self, id); },
      [](atom::load, const engines::Snapshot&) -> caf::result<PolicyVersion> {
        return loads_nothing();
      },
      [](atom::adapters, const AdapterRequest&) -> caf::result<AdapterList> {
        return loads_nothing();
      },
      [self](atom::join, const DeviceJoin& request) { join(self, request); },
      [self](atom::leave, const std::string& name) { return leave(self, name); },
      [self](atom::quarantine, const QuarantinedDevice& quarantined) {
        if (const auto device = find_device(self->state, quarantined.name); device.has_value()) {
          remove(self, *device, quarantined.name + " is quarantined: " + quarantined.reason);
        }
        self->state.awaits_join = self->state.awaits_join || quarantined.await_join;
      },
  };
}

}  // namespace

RouterActor spawn_router(caf::actor_system& system, RouterDeps deps) {
  return system.spawn(router, std::move(deps));
}

}  // namespace tidemill::actors
