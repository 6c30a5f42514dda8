// SPDX-License-Identifier: Apache-2.0
// The proxy of a stream in another process: encodes requests, and decodes the replies to them.
// Rows that do not fit into a message are charged with that, here and at the gate.
//
// Large cells of leased rows are lent if the process of the run has told where. The port connects
// to that memory and resolves cells when messages arrive: both may wait for the process of the run,
// so no actor does it. Rows whose cells cannot be resolved are given back, and later ones are sent.
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
using OpenedRowMemory = Result<std::shared_ptr<BufferResolver>>;

struct PendingLeaseCall {
  LeasePromise promise;
  storage::TaskId task;
  std::string consumer;
};

struct StreamProxyState {
  static inline const char* name = "stream_proxy";
  StreamProxyState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<PeerPort> port;
  bool in_place = false;  // the port resolves lent cells
  std::map<std::uint64_t, std::variant<PendingLeaseCall, SettlementPromise>> calls;
};

using Self = StreamProxyActor::stateful_pointer<StreamProxyState>;

std::uint64_t call(Self self, MessageKind kind, Buffer body, Duration deadline) {
  return self->state.port->call(kind, std::move(body), deadline,
                                caf::actor_cast<caf::strong_actor_ptr>(self));
}

caf::result<LeaseReply> lease(Self self, LeaseRequest& request) {
  auto promise = self->make_response_promise<LeaseReply>();
  request.in_place = self->state.in_place;
  const std::uint64_t number =
      call(self, MessageKind::kLease, to_wire(request), request.wait + kReplyMargin);
  self->state.calls.emplace(number,
                            PendingLeaseCall{promise, request.task, std::move(request.consumer)});
  return promise;
}

caf::result<storage::Settlement> settle(Self self, MessageKind kind, Buffer body) {
  auto promise = self->make_response_promise<storage::Settlement>();
  self->state.calls.emplace(call(self, kind, std::move(body), kReplyMargin), promise);
  return promise;
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
  call(self, MessageKind::kNack, to_wire(failed), kReplyMargin);
  return to_caf_error(invalid_argument(failed.reason));
}

// Returns the rows of a reply. The port has decoded them if cells may be lent.
Result<ReadRows> rows_of(const PeerMessage& reply) {
  TIDEMILL_RETURN_IF_ERROR(check_reply(MessageKind::kLeaseReply, reply));
  const auto* decoded = std::any_cast<Result<ReadRows>>(&reply.content);
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

void log_that_rows_are_sent(Self self, const Status& why) {
  self->state.port->tell(MessageKind::kLogLine,
                         to_wire(LogLine{"rows are sent in messages: " + why.message()}));
}

// Gives rows back whose cells could not be resolved. Others might not be resolved either.
void leave_unreadable(Self self, const PendingLeaseCall& lease, const ReadRows& rows) {
  LeaseUpdate left{.task = lease.task, .consumer = lease.consumer};
  left.release = storage::Release::kLeft;
  left.reason = rows.resolved.message();
  for (const storage::LeasedRow& row : rows.reply.rows) {
    left.rows.push_back({row.lease});
  }
  call(self, MessageKind::kNack, to_wire(left), kReplyMargin);  // the reply is ignored
  if (std::exchange(self->state.in_place, false)) {
    log_that_rows_are_sent(self, rows.resolved);
  }
}

void on_rows(Self self, PendingLeaseCall& lease, Result<ReadRows> rows) {
  const Status failure = rows.ok() ? rows.value().resolved : rows.status();
  if (failure.ok()) {
    lease.promise.deliver(std::move(rows.value().reply));
    return;
  }
  if (rows.ok()) {
    leave_unreadable(self, lease, rows.value());
  }
  lease.promise.deliver(to_caf_error(failure));
}

void on_reply(Self self, const PeerMessage& reply) {
  const auto call = self->state.calls.find(reply.call);
  if (call == self->state.calls.end()) {
    return;
  }
  if (auto* lease = std::get_if<PendingLeaseCall>(&call->second)) {
    on_rows(self, *lease, rows_of(reply));
  } else {
    fulfill(std::get<SettlementPromise>(call->second),
            read_reply<storage::Settlement>(MessageKind::kSettlement, reply));
  }
  self->state.calls.erase(call);
}

// The port has connected to the memory of rows, or not. It resolves lent cells from now on.
void on_row_memory(Self self, const PeerMessage& message) {
  auto& state = self->state;
  const auto* opened = std::any_cast<OpenedRowMemory>(&message.content);
  if (opened == nullptr || state.in_place) {
    return;
  }
  if (!opened->ok()) {
    log_that_rows_are_sent(self, opened->status());
    return;
  }
  state.port->set_decoder(MessageKind::kLeaseReply,
                          [resolver = opened->value()](const Buffer& body) -> std::any {
                            return read_rows(body, resolver.get());
                          });
  state.in_place = true;
}

StreamProxyActor::behavior_type stream_proxy(Self self, std::shared_ptr<PeerPort> port) {
  self->state.port = std::move(port);
  return {
      [self](atom::lease, LeaseRequest& request) { return lease(self, request); },
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
          on_row_memory(self, *message);
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
  StreamProxyActor proxy = system.spawn(stream_proxy, port);
  if (open_rows) {
    port->set_decoder(
        MessageKind::kRowMemory, [open = std::move(open_rows)](const Buffer& body) -> std::any {
          const auto memory = from_wire<RowMemory>(body);
          return memory.ok() ? open(memory.value().segments) : OpenedRowMemory(memory.status());
        });
    port->add_receiver(MessageKind::kRowMemory, MessageKind::kRowMemory,
                       caf::actor_cast<caf::strong_actor_ptr>(proxy));
  }
  return proxy;
}

}  // namespace tidemill::actors
