// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/remote_device.hpp"
#include "actors/remote/serving.hpp"

namespace tidemill::actors {
namespace {

// Opens the device at the port.
struct OpenWork {
  StartDevice start;
  std::optional<Result<OpenedDevice>> opened;
};

struct DeviceHostState {
  static inline const char* name = "device_host";
  DeviceHostState() = default;  // not an aggregate: CAF would build it from `self`

  DeviceHostDeps deps;
  std::shared_ptr<OpenWork> work;  // of the first request
  std::uint64_t number = 0;        // of the first request
};

using Self = DeviceHostActor::stateful_pointer<DeviceHostState>;

void refuse(Self self, std::uint64_t number, const Status& why) {
  self->state.deps.port->reply(number, MessageKind::kFailure, to_wire(why));
}

void on_start(Self self, const PeerMessage& message) {
  auto& state = self->state;
  auto start = from_wire<StartDevice>(message.body);
  if (!start.ok()) {
    refuse(self, message.number, start.status());
    return;
  }
  if (state.work != nullptr) {
    refuse(self, message.number, {Errc::kUnavailable, "the process has a device already"});
    return;
  }
  state.number = message.number;
  state.work = std::make_shared<OpenWork>(OpenWork{std::move(start).value(), {}});
  state.deps.work->run(
      [work = state.work, open = state.deps.open] {
        work->opened = open(work->start);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void on_opened(Self self) {
  auto& state = self->state;
  Result<OpenedDevice>& opened = *state.work->opened;
  if (!opened.ok()) {
    refuse(self, state.number, opened.status());
    return;
  }
  const ServingActor device = opened.value().spawn();
  spawn_serving_gate(self->system(),
                     {state.deps.port, device, opened.value().buffers, state.deps.work});
  opened.value() = {};
  if (state.deps.on_open) {
    state.deps.on_open(device);
  }
  state.deps.port->reply(state.number, MessageKind::kDone, Buffer());
}

DeviceHostActor::behavior_type device_host(Self self, DeviceHostDeps deps) {
  self->state.deps = std::move(deps);
  return {
      [self](atom::deliver, const PeerMessagePtr& message) { on_start(self, *message); },
      [self](atom::closed, const std::string& /*reason*/) { self->quit(); },
      [self](atom::worked) { on_opened(self); },
  };
}

}  // namespace

DeviceHostActor spawn_device_host(caf::actor_system& system, DeviceHostDeps deps) {
  const std::shared_ptr<PeerPort> port = deps.port;
  DeviceHostActor host = system.spawn(device_host, std::move(deps));
  port->add_receiver(MessageKind::kStartDevice, MessageKind::kStartDevice,
                     caf::actor_cast<caf::strong_actor_ptr>(host));
  return host;
}

}  // namespace tidemill::actors
