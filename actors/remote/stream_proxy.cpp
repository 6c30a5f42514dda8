// SPDX-License-Identifier: Apache-2.0
// The proxy of a stream in another process: encodes requests, and decodes the replies to them.
// Rows that do not fit into a message are charged with that, here and at the gate.
#include <map>
#include <string>
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

// Acknowledges rows. If they do not fit into one message, they count as failed: their leases would
// only end, so the rows would come back for ever.
caf::result<storage::Settlement> acknowledge(Self self, const AckRequest& request) {
  Buffer body = to_wire(request);
  if (body.size_bytes() <= transport::kMaxBodyBytes) {
    return settle(self, MessageKind::kAck, std::move(body));
  }
  LeaseUpdate failed{.task = request.task, .consumer = request.consumer};
  failed.release = storage::Release::kFailed;
  failed.reason = "an acknowledgement of " + std::to_string(request.rows.size()) + " rows with " +
                  std::to_string(body.size_bytes()) +
                  " bytes is too large for one message (at most " +
                  std::to_string(transport::kMaxBodyBytes) + ")";
  for (const storage::HeldRow& row : request.rows) {
    failed.rows.push_back({row.lease});
  }
  // The reply comes to this actor, which ignores it: it is none to a request of the consumer.
  self->state.port->call(MessageKind::kNack, to_wire(failed), kReplyMargin,
                         caf::actor_cast<caf::strong_actor_ptr>(self));
  return to_caf_error(invalid_argument(failed.reason));
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
      [self](atom::ack, const AckRequest& request) { return acknowledge(self, request); },
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
