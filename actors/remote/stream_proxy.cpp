// SPDX-License-Identifier: Apache-2.0
// The proxy of a stream in another process: encodes requests, and decodes the replies to them.
// Rows that do not fit into a message are charged with that, here and at the gate.
//
// Large cells of leased rows are lent if the owner of the run has told where. The port then
// resolves them when the rows arrive: that may wait for the other process, so no actor does it.
#include <any>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/lent_rows.hpp"
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
  OpenRowMemory open_rows;
  bool in_place = false;  // the port resolves lent cells
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

// Returns the rows of a reply. The port has decoded them if cells may be lent.
Result<LeaseReply> rows_of(const PeerMessage& reply) {
  TIDEMILL_RETURN_IF_ERROR(check_reply(MessageKind::kLeaseReply, reply));
  const auto* decoded = std::any_cast<Result<LeaseReply>>(&reply.content);
  return decoded != nullptr ? *decoded : read_rows(reply.body, nullptr);
}

template <class Reply>
void fulfill(caf::typed_response_promise<Reply>& promise, Result<Reply> content) {
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
    fulfill(*lease, rows_of(reply));
  } else {
    fulfill(std::get<SettlementPromise>(call->second),
            read_reply<storage::Settlement>(MessageKind::kSettlement, reply));
  }
  self->state.calls.erase(call);
}

// Has the port resolve lent cells from now on.
void open_row_memory(Self self, const PeerMessage& message) {
  auto& state = self->state;
  const auto memory = from_wire<RowMemory>(message.body);
  const OpenRowMemory open = std::exchange(state.open_rows, {});
  if (!memory.ok() || !open) {
    return;
  }
  auto resolver = open(memory.value().segments);
  if (!resolver.ok()) {
    state.port->tell(MessageKind::kLogLine,
                     to_wire(LogLine{"rows are sent in messages: " + resolver.status().message()}));
    return;
  }
  state.port->set_decoder(MessageKind::kLeaseReply,
                          [resolver = std::move(resolver).value()](const Buffer& body) -> std::any {
                            return read_rows(body, resolver.get());
                          });
  state.in_place = true;
}

StreamProxyActor::behavior_type stream_proxy(Self self, std::shared_ptr<PeerPort> port,
                                             OpenRowMemory open_rows) {
  self->state.port = std::move(port);
  self->state.open_rows = std::move(open_rows);
  return {
      [self](atom::lease, LeaseRequest& request) -> caf::result<LeaseReply> {
        request.in_place = self->state.in_place;
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
      [self](atom::deliver, const PeerMessagePtr& message) {
        if (message->call == 0) {
          open_row_memory(self, *message);
        } else {
          on_reply(self, *message);
        }
      },
      [](atom::closed, const std::string& /*reason*/) {},  // calls fail by themselves
  };
}

}  // namespace

StreamConsumerActor spawn_stream_proxy(caf::actor_system& system, std::shared_ptr<PeerPort> port,
                                       OpenRowMemory open_rows) {
  const bool reads_lent_cells = bool(open_rows);
  StreamProxyActor proxy = system.spawn(stream_proxy, port, std::move(open_rows));
  if (reads_lent_cells) {
    port->add_receiver(MessageKind::kRowMemory, MessageKind::kRowMemory,
                       caf::actor_cast<caf::strong_actor_ptr>(proxy));
  }
  return proxy;
}

}  // namespace tidemill::actors
