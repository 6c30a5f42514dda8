// SPDX-License-Identifier: Apache-2.0
// The proxy of a stream in another process: encodes requests, and decodes the replies to them.
#include <map>
#include <utility>
#include <variant>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/peer_reply.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/stream/worker_leases.hpp"

namespace tidemill::actors {
namespace {

using LeasePromise = caf::typed_response_promise<LeaseReply>;
using SettlementPromise = caf::typed_response_promise<storage::Settlement>;

struct StreamProxyState {
  static inline const char* name = "stream_proxy";
  StreamProxyState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<PeerPort> port;
  std::map<std::uint64_t, std::variant<LeasePromise, SettlementPromise>> calls;
};

using Self = StreamProxyActor::stateful_pointer<StreamProxyState>;

template <class Promise>
Promise call(Self self, MessageKind kind, Buffer body, Duration deadline, Promise promise) {
  const std::uint64_t number = self->state.port->call(kind, std::move(body), deadline,
                                                      caf::actor_cast<caf::strong_actor_ptr>(self));
  self->state.calls.emplace(number, promise);
  return promise;
}

caf::result<storage::Settlement> settle(Self self, MessageKind kind, Buffer body) {
  return call(self, kind, std::move(body), kReplyMargin,
              self->make_response_promise<storage::Settlement>());
}

// Fulfills the promise with the reply, if that is a message of `kind`.
template <class Reply>
void fulfill(caf::typed_response_promise<Reply>& promise, MessageKind kind,
             const PeerMessage& reply) {
  auto content = read_reply<Reply>(kind, reply);
  if (content.ok()) {
    promise.deliver(std::move(content).value());
  } else {
    promise.deliver(to_caf_error(content.status()));
  }
}

void on_reply(Self self, const PeerMessage& reply) {
  const auto call = self->state.calls.find(reply.call);
  if (call == self->state.calls.end()) {
    return;
  }
  if (auto* lease = std::get_if<LeasePromise>(&call->second)) {
    fulfill(*lease, MessageKind::kLeaseReply, reply);
  } else {
    fulfill(std::get<SettlementPromise>(call->second), MessageKind::kSettlement, reply);
  }
  self->state.calls.erase(call);
}

StreamProxyActor::behavior_type stream_proxy(Self self, std::shared_ptr<PeerPort> port) {
  self->state.port = std::move(port);
  return {
      [self](atom::lease, const LeaseRequest& request) -> caf::result<LeaseReply> {
        return call(self, MessageKind::kLease, to_wire(request), request.wait + kReplyMargin,
                    self->make_response_promise<LeaseReply>());
      },
      [self](atom::ack, const AckRequest& request) {
        return settle(self, MessageKind::kAck, to_wire(request));
      },
      [self](atom::nack, const LeaseUpdate& update) {
        return settle(self, MessageKind::kNack, to_wire(update));
      },
      [self](atom::renew, const LeaseUpdate& update) {
        return settle(self, MessageKind::kRenew, to_wire(update));
      },
      [self](atom::retire, const GroupVerdict& verdict) {
        return settle(self, MessageKind::kRetire, to_wire(verdict));
      },
      [self](atom::deliver, const PeerMessagePtr& reply) { on_reply(self, *reply); },
  };
}

}  // namespace

StreamConsumerActor spawn_stream_proxy(caf::actor_system& system, std::shared_ptr<PeerPort> port) {
  return system.spawn(stream_proxy, std::move(port));
}

}  // namespace tidemill::actors
