// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <map>
#include <utility>
#include <variant>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/remote/serving.hpp"
#include "actors/remote/serving_size.hpp"
#include "actors/wire/serving_messages.hpp"
#include "actors/work/release_at.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

// A message whose tensors are resolved at the port.
struct ResolveWork {
  std::uint64_t number = 0;  // of the message
  std::variant<Snapshot, AdapterRequest> content;
  Status status;

  // Resolves all tensors, also if some of them fail: only this returns their loans.
  void resolve(BufferResolver& buffers) {
    const auto add = [&](TensorMap& tensors) {
      const Status resolved = actors::resolve(buffers, tensors);
      status = status.ok() ? resolved : status;
    };
    if (auto* snapshot = std::get_if<Snapshot>(&content)) {
      add(snapshot->base);
      add(snapshot->adapter);
    } else {
      add(std::get<AdapterRequest>(content).tensors);
    }
  }
};

struct ServingGateState {
  static inline const char* name = "serving_gate";
  ServingGateState() = default;  // not an aggregate: CAF would build it from `self`

  ServingGateDeps deps;
  std::map<std::uint64_t, SampleId> generating;        // by number of the message
  std::deque<std::shared_ptr<ResolveWork>> resolving;  // at the port, in order
};

using Self = ServingGateActor::stateful_pointer<ServingGateState>;

void reply_failure(Self self, std::uint64_t number, const Status& failure) {
  self->state.deps.port->reply(number, MessageKind::kFailure, to_wire(failure));
}

// Requests something of the actor that serves, and replies with the result as a message of `kind`.
template <class Reply, class Verb, class Request>
void pass_on(Self self, std::uint64_t number, MessageKind kind, Verb verb, Request request) {
  const auto handle =
      self->request(self->state.deps.serving, kRemoteChangeDeadline, verb, std::move(request));
  handle.then(
      [self, number, kind, id = handle.id()](const Reply& reply) {
        end_deadline(self, id);
        self->state.deps.port->reply(number, kind, to_wire(reply));
      },
      [self, number, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        reply_failure(self, number, from_caf_error(error));
      });
}

// -- generation -----------------------------------------------------------------------------------

void reply_result(Self self, std::uint64_t number, const RolloutResult& result) {
  std::uint64_t bytes = least_wire_bytes(result);
  Buffer body = bytes > transport::kMaxBodyBytes ? Buffer() : to_wire(result);
  bytes = std::max<std::uint64_t>(bytes, body.size_bytes());
  if (bytes > transport::kMaxBodyBytes) {
    reply_failure(
        self, number,
        invalid_argument("request " + std::to_string(result.id.value) + ": its result of " +
                         std::to_string(bytes) + " bytes does not fit into one message"));
    return;
  }
  self->state.deps.port->reply(number, MessageKind::kRolloutResult, std::move(body));
}

void generate(Self self, std::uint64_t number, RolloutRequest request) {
  auto& state = self->state;
  state.generating.emplace(number, request.id);
  const auto handle = self->request(state.deps.serving, state.deps.reply_deadline, atom::generate_v,
                                    std::move(request));
  handle.then(
      [self, number, id = handle.id()](const RolloutResult& result) {
        end_deadline(self, id);
        self->state.generating.erase(number);
        reply_result(self, number, result);
      },
      [self, number, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        self->state.generating.erase(number);
        reply_failure(self, number, from_caf_error(error));
      });
}

// -- messages with tensors ------------------------------------------------------------------------

bool has_tensors(const Snapshot& snapshot) {
  return !snapshot.base.empty() || !snapshot.adapter.empty();
}
bool has_tensors(const AdapterRequest& request) {
  return !request.tensors.empty();
}

void pass_on(Self self, std::uint64_t number, Snapshot snapshot) {
  pass_on<PolicyVersion>(self, number, MessageKind::kLoaded, atom::load_v, std::move(snapshot));
}
void pass_on(Self self, std::uint64_t number, AdapterRequest request) {
  pass_on<AdapterList>(self, number, MessageKind::kAdapterList, atom::adapters_v,
                       std::move(request));
}

template <class Request>
void resolve(Self self, std::uint64_t number, Request request) {
  auto& state = self->state;
  if (!has_tensors(request)) {
    pass_on(self, number, std::move(request));
    return;
  }
  if (state.deps.buffers == nullptr) {
    reply_failure(self, number, {Errc::kUnimplemented, "the process takes no tensors"});
    return;
  }
  state.resolving.push_back(
      std::make_shared<ResolveWork>(ResolveWork{number, std::move(request), {}}));
  state.deps.work->run(
      [work = state.resolving.back(), buffers = state.deps.buffers] {
        work->resolve(*buffers);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void on_resolved(Self self) {
  auto& state = self->state;
  const std::shared_ptr<ResolveWork> work = std::move(state.resolving.front());
  state.resolving.pop_front();
  if (work->status.ok()) {
    std::visit([&](auto& content) { pass_on(self, work->number, std::move(content)); },
               work->content);
  } else {
    reply_failure(self, work->number, work->status);
    release_at(*state.deps.work, std::move(work->content));
  }
}

// -- the link -------------------------------------------------------------------------------------

// Decodes a request and processes it with `then`, or replies that it is none.
template <class Request, class Then>
void read_request(Self self, const PeerMessage& message, Then then) {
  auto request = from_wire<Request>(message.body);
  if (request.ok()) {
    then(self, message.number, std::move(request).value());
  } else {
    reply_failure(self, message.number, request.status());
  }
}

void on_message(Self self, const PeerMessage& message) {
  switch (message.kind) {
    case MessageKind::kGenerate: return read_request<RolloutRequest>(self, message, generate);
    case MessageKind::kLoad: return read_request<Snapshot>(self, message, resolve<Snapshot>);
    case MessageKind::kAdapters:
      return read_request<AdapterRequest>(self, message, resolve<AdapterRequest>);
    case MessageKind::kCancel:
      if (const auto id = from_wire<SampleId>(message.body); id.ok()) {
        self->send(self->state.deps.serving, atom::cancel_v, id.value());
      }
      return;
    default: return;  // no request
  }
}

// The requesters are gone. What they have requested must not keep the device busy.
void on_closed(Self self) {
  for (const auto& [number, id] : self->state.generating) {
    self->send(self->state.deps.serving, atom::cancel_v, id);
  }
  self->quit();
}

ServingGateActor::behavior_type serving_gate(Self self, ServingGateDeps deps) {
  self->state.deps = std::move(deps);
  self->monitor(self->state.deps.serving);
  self->set_down_handler([self](const caf::down_msg& down) { self->quit(down.reason); });
  self->attach_functor([port = self->state.deps.port](const caf::error& error) {
    const Status reason = from_caf_error(error);
    port->tell(MessageKind::kServingEnded,
               to_wire(reason.ok() ? Status(Errc::kUnavailable, "it has ended") : reason));
  });
  return {
      [self](atom::deliver, const PeerMessagePtr& message) { on_message(self, *message); },
      [self](atom::closed, const std::string& /*reason*/) { on_closed(self); },
      [self](atom::worked) { on_resolved(self); },
  };
}

}  // namespace

ServingGateActor spawn_serving_gate(caf::actor_system& system, ServingGateDeps deps) {
  const std::shared_ptr<PeerPort> port = deps.port;
  ServingGateActor gate = system.spawn(serving_gate, std::move(deps));
  port->add_receiver(MessageKind::kGenerate, MessageKind::kAdapterList,
                     caf::actor_cast<caf::strong_actor_ptr>(gate));
  return gate;
}

}  // namespace tidemill::actors
