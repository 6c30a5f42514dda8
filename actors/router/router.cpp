// SPDX-License-Identifier: Apache-2.0
// The router. `RouteTable` chooses devices; the actor passes requests, replies and cancellations
// on. A reply whose ticket is no longer in the table came too late: its request has failed already.
#include <algorithm>
#include <map>
#include <utility>

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
};

using Self = RouterActor::stateful_pointer<RouterState>;

template <class Reply>
void settle(Self self, std::uint64_t ticket, Reply&& reply) {
  auto& state = self->state;
  if (state.table.end(ticket)) {
    const auto promise = state.promises.find(ticket);
    promise->second.deliver(std::forward<Reply>(reply));
    state.promises.erase(promise);
  }
}

caf::result<RolloutResult> generate(Self self, RolloutRequest& request) {
  auto& state = self->state;
  const auto route = state.table.begin(request.id);
  if (!route.ok()) {
    return to_caf_error(route.status());
  }
  const std::uint64_t ticket = route.value().ticket;
  auto promise = self->make_response_promise<RolloutResult>();
  state.promises.emplace(ticket, promise);
  const auto handle =
      self->request(state.deps.devices[route.value().device].actor, state.deps.reply_deadline,
                    atom::generate_v, std::move(request));
  handle.then(
      [self, ticket, id = handle.id()](RolloutResult& result) {
        end_deadline(self, id);
        settle(self, ticket, std::move(result));
      },
      [self, ticket](const caf::error& error) { settle(self, ticket, error); });
  return promise;
}

void cancel(Self self, SampleId id) {
  auto& state = self->state;
  if (const auto device = state.table.device_of(id); device.has_value()) {
    self->send(state.deps.devices[*device].actor, atom::cancel_v, id);
  }
}

// Forgets a device. It may still run, so its requests are cancelled: they must not keep it busy.
void forget(Self self, std::size_t device, const std::string& reason) {
  auto& state = self->state;
  for (const auto& [ticket, id] : state.table.forget(device, reason)) {
    self->send(state.deps.devices[device].actor, atom::cancel_v, id);
    const auto promise = state.promises.find(ticket);
    promise->second.deliver(to_caf_error({Errc::kUnavailable, reason}));
    state.promises.erase(promise);
  }
}

caf::error loads_nothing() {
  return to_caf_error(
      {Errc::kUnimplemented, "the router loads neither versions nor adapters: ask a device"});
}

RouterActor::behavior_type router(Self self, RouterDeps deps) {
  self->state.table = RouteTable(deps.devices.size(), deps.max_held);
  for (const ServingDevice& device : deps.devices) {
    self->monitor(device.actor);
  }
  self->state.deps = std::move(deps);
  self->set_down_handler([self](const caf::down_msg& down) {
    const auto& devices = self->state.deps.devices;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      if (devices[i].actor.address() == down.source) {
        forget(self, i, devices[i].name + " has ended: " + from_caf_error(down.reason).message());
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
      [self](atom::quarantine, const QuarantinedDevice& quarantined) {
        const auto& devices = self->state.deps.devices;
        for (std::size_t i = 0; i < devices.size(); ++i) {
          if (devices[i].name == quarantined.name) {
            forget(self, i, quarantined.name + " is quarantined: " + quarantined.reason);
          }
        }
      },
  };
}

}  // namespace

RouterActor spawn_router(caf::actor_system& system, RouterDeps deps) {
  return system.spawn(router, std::move(deps));
}

}  // namespace tidemill::actors
