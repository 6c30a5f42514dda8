// SPDX-License-Identifier: Apache-2.0
// The gate of another process: passes the requests of its workers on to the stream, and replies
// with the results. A process may speak for its own workers only.
#include <map>
#include <span>
#include <utility>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/remote/lent_rows.hpp"
#include "actors/remote/peer_reply.hpp"
#include "actors/remote/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/stream/worker_leases.hpp"

namespace tidemill::actors {
namespace {

using StartPromise = caf::typed_response_promise<WorkerStatus>;

struct WorkerGateState {
  static inline const char* name = "worker_gate";
  WorkerGateState() = default;  // not an aggregate: CAF would build it from `self`

  struct Worker {
    caf::strong_actor_ptr stands_for_it;
    std::uint64_t start = 0;
  };
  struct Start {
    StartPromise promise;
    WorkerStatus worker;
    std::uint64_t start = 0;
  };

  WorkerGateDeps deps;
  std::uint64_t last_start = 0;
  std::map<std::string, Worker> workers;  // by name
  std::map<std::uint64_t, Start> starts;  // that have no reply, by call
};

using Self = WorkerGateActor::stateful_pointer<WorkerGateState>;

// Ends the gate: the process breaks the rules, or cannot be reached.
void end(Self self, const Status& why) {
  auto& state = self->state;
  Status reason(Errc::kUnavailable, why.with_context(state.deps.process).message());
  state.deps.port->close(reason.message());
  if (const auto on_end = std::exchange(state.deps.on_end, {})) {
    on_end(reason);
  }
  if (state.deps.end_reason) {
    reason = state.deps.end_reason(reason);
  }
  for (auto& [call, start] : std::exchange(state.starts, {})) {
    start.promise.deliver(to_caf_error(reason));
  }
  self->quit(to_caf_error(reason));
}

template <class Reply>
void reply(Self self, std::uint64_t number, MessageKind kind, const Reply& content) {
  self->state.deps.port->reply(number, kind, to_wire(content));
}

bool takes_groups(storage::TaskId task) {
  const auto tasks = sample_stream_options({}).tasks;
  return task.value < tasks.size() && tasks[task.value].unit == storage::DeliveryUnit::kGroup;
}

// Returns how many of the rows to keep: about half of them, but no part of a group if `groups`.
// Returns all if they are one unit.
std::size_t half_of(const std::vector<storage::LeasedRow>& rows, bool groups) {
  const auto is_cut = [&](std::size_t keep) {
    return keep == rows.size() || !groups || rows[keep].row.group != rows[keep - 1].row.group;
  };
  for (std::size_t keep = rows.size() / 2; keep > 0; --keep) {
    if (is_cut(keep)) {
      return keep;
    }
  }
  std::size_t keep = 1;  // the first group is more than half, or there is one row
  while (!is_cut(keep)) {
    ++keep;
  }
  return keep;
}

void give_back(Self self, const LeaseRequest& request, std::span<const storage::LeasedRow> rows,
               storage::Release release, const std::string& reason) {
  LeaseUpdate back{.task = request.task, .consumer = request.consumer};
  back.release = release;
  back.reason = reason;
  for (const storage::LeasedRow& row : rows) {
    back.rows.push_back({row.lease});
  }
  if (!rows.empty()) {
    self->request(self->state.deps.stream, kReplyMargin, atom::nack_v, std::move(back))
        .then([](const storage::Settlement&) {}, [](const caf::error&) {});
  }
}

// Replies with the rows that fit into one message, and gives the others back. The first row, or
// group if the task takes groups, counts as failed if it does not fit alone.
void reply_with_rows(Self self, std::uint64_t number, const LeaseRequest& request,
                     const LeaseReply& leased) {
  const RowLending& lending = self->state.deps.rows;
  LeaseReply reply = leased;
  LentCells lent(request.in_place ? lending.lender.get() : nullptr);
  lent.lend(reply.rows, lending.min_bytes);
  Buffer body = to_wire(reply);
  std::size_t failed = 0;  // rows, from the first
  while (body.size_bytes() > transport::kMaxBodyBytes && !reply.rows.empty()) {
    std::size_t keep = half_of(reply.rows, takes_groups(request.task));
    if (keep == reply.rows.size()) {
      failed = std::exchange(keep, 0);
      reply.waiting_for = std::string(failed == 1 ? "a row" : "a group") + " of " +
                          std::to_string(body.size_bytes()) + " bytes is too large for one message";
    }
    lent.keep_first(keep);
    reply.rows.resize(keep);
    reply.whole = false;
    body = to_wire(reply);
  }
  self->state.deps.port->reply(number, MessageKind::kLeaseReply, std::move(body));
  lent.set_sent();
  const std::span<const storage::LeasedRow> rows(leased.rows);
  give_back(self, request, rows.first(failed), storage::Release::kFailed, reply.waiting_for);
  give_back(self, request, rows.subspan(failed + reply.rows.size()), storage::Release::kLeft,
            "too many rows for one message");
}

// Replies that the process does not run `what`.
void refuse(Self self, std::uint64_t number, const std::string& what) {
  reply(self, number, MessageKind::kFailure,
        Status(Errc::kNotFound, self->state.deps.process + ": runs no " + what));
}

// Decodes a request, and checks that its consumer is a worker of the process. If not, ends the gate
// or replies, and returns nothing.
template <class Request>
std::optional<Request> read_request(Self self, const PeerMessage& message) {
  auto request = from_wire<Request>(message.body);
  if (!request.ok()) {
    end(self, request.status());
    return std::nullopt;
  }
  if (!self->state.workers.contains(request.value().consumer)) {
    refuse(self, message.number, "worker " + request.value().consumer);
    return std::nullopt;
  }
  return std::move(request).value();
}

// The worker has got rows, or learned what the stream waits for.
void note_wait(Self self, const std::string& worker, const LeaseReply& rows) {
  const auto& waits = self->state.deps.waits;
  if (waits != nullptr && rows.rows.empty()) {
    waits->set_reason(worker, rows.waiting_for);
  } else if (waits != nullptr) {
    waits->end(worker);
  }
}

void lease(Self self, const PeerMessage& message) {
  auto request = read_request<LeaseRequest>(self, message);
  if (!request.has_value()) {
    return;
  }
  const std::uint64_t number = message.number;
  if (const auto& waits = self->state.deps.waits) {
    waits->begin(request->consumer, self->clock().now());
  }
  const auto handle =
      self->request(self->state.deps.stream, request->wait + kReplyMargin, atom::lease_v, *request);
  handle.then(
      [self, number, request = *request, id = handle.id()](const LeaseReply& rows) {
        end_deadline(self, id);
        note_wait(self, request.consumer, rows);
        reply_with_rows(self, number, request, rows);
      },
      [self, number, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        reply(self, number, MessageKind::kFailure, from_caf_error(error));
      });
}

// Passes on a request to which the stream replies with a settlement.
template <class Verb, class Request>
void settle(Self self, Verb verb, std::uint64_t number, Request request) {
  const auto handle =
      self->request(self->state.deps.stream, kReplyMargin, verb, std::move(request));
  handle.then(
      [self, number, id = handle.id()](const storage::Settlement& settlement) {
        end_deadline(self, id);
        reply(self, number, MessageKind::kSettlement, settlement);
      },
      [self, number, id = handle.id()](const caf::error& error) {
        end_deadline(self, id);
        reply(self, number, MessageKind::kFailure, from_caf_error(error));
      });
}

template <class Request, class Verb>
void settle_request(Self self, Verb verb, const PeerMessage& message) {
  if (auto request = read_request<Request>(self, message); request.has_value()) {
    settle(self, verb, message.number, std::move(*request));
  }
}

// A verdict names no consumer, so any worker of the process may have sent it.
void retire(Self self, const PeerMessage& message) {
  auto verdict = from_wire<GroupVerdict>(message.body);
  if (!verdict.ok()) {
    end(self, verdict.status());
  } else if (self->state.workers.empty()) {
    refuse(self, message.number, "worker");
  } else {
    settle(self, atom::retire_v, message.number, std::move(verdict).value());
  }
}

void log(Self self, const PeerMessage& message) {
  const auto line = from_wire<LogLine>(message.body);
  if (!line.ok()) {
    end(self, line.status());
  } else if (self->state.deps.log) {
    self->state.deps.log(line.value().text);
  }
}

void on_worker_ended(Self self, const PeerMessage& message) {
  const auto ended = from_wire<WorkerEnded>(message.body);
  if (!ended.ok()) {
    end(self, ended.status());
    return;
  }
  auto& workers = self->state.workers;
  const auto worker = workers.find(ended.value().name);
  if (worker == workers.end() || worker->second.start != ended.value().start) {
    return;  // it was stopped
  }
  const caf::strong_actor_ptr stands_for_it = worker->second.stands_for_it;
  if (const auto& waits = self->state.deps.waits) {
    waits->end(worker->first);
  }
  workers.erase(worker);
  self->demonitor(caf::actor_cast<caf::actor_addr>(stands_for_it));
  if (ended.value().reason.ok()) {
    caf::anon_send(caf::actor_cast<RemoteWorkerActor>(stands_for_it), atom::stop_v);
  } else {
    self->send_exit(caf::actor_cast<caf::actor_addr>(stands_for_it),
                    to_caf_error(ended.value().reason));
  }
}

// Ends a worker whose remote worker has ended.
void stop(Self self, std::map<std::string, WorkerGateState::Worker>::iterator worker) {
  self->demonitor(caf::actor_cast<caf::actor_addr>(worker->second.stands_for_it));
  self->state.deps.port->tell(MessageKind::kStopWorker,
                              to_wire(StartedWorker{worker->first, worker->second.start}));
  if (const auto& waits = self->state.deps.waits) {
    waits->end(worker->first);
  }
  self->state.workers.erase(worker);
}

void on_request(Self self, const PeerMessage& message) {
  switch (message.kind) {
    case MessageKind::kLease: return lease(self, message);
    case MessageKind::kAck: return settle_request<AckRequest>(self, atom::ack_v, message);
    case MessageKind::kNack: return settle_request<LeaseUpdate>(self, atom::nack_v, message);
    case MessageKind::kRenew: return settle_request<LeaseUpdate>(self, atom::renew_v, message);
    case MessageKind::kRetire: return retire(self, message);
    case MessageKind::kWorkerEnded: return on_worker_ended(self, message);
    case MessageKind::kLogLine: return log(self, message);
    default:
      end(self, corrupt_data("a message of kind " + std::to_string(static_cast<int>(message.kind)) +
                             ", which no worker sends"));
  }
}

// The reply to a start, or its failure.
void on_start_ended(Self self, const PeerMessage& reply) {
  const auto start = self->state.starts.find(reply.call);
  if (start == self->state.starts.end()) {
    return;
  }
  if (reply.failure.code() == Errc::kUnavailable) {
    end(self, reply.failure);  // the link has ended, and no worker starts any more
    return;
  }
  WorkerGateState::Start started = std::move(start->second);
  self->state.starts.erase(start);
  const Status failure = start_failure(failure_of(reply)).with_context(self->state.deps.process);
  if (failure.ok()) {
    if (const auto on_ready = std::exchange(self->state.deps.on_ready, {})) {
      on_ready();
    }
    started.promise.deliver(started.worker);
    return;
  }
  auto& workers = self->state.workers;
  if (const auto worker = workers.find(started.worker.name);
      worker != workers.end() && worker->second.start == started.start) {
    stop(self, worker);  // the reply may be lost, and not the start
  }
  started.promise.deliver(to_caf_error(failure));
}

caf::result<WorkerStatus> start(Self self, StartWorker worker) {
  auto& state = self->state;
  if (const auto before = state.workers.find(worker.name); before != state.workers.end()) {
    // Its remote worker has most likely ended, and the gate does not know yet.
    self->send_exit(caf::actor_cast<caf::actor_addr>(before->second.stands_for_it),
                    to_caf_error({Errc::kUnavailable, worker.name + " was started again"}));
    stop(self, before);
  }
  worker.start = ++state.last_start;
  const caf::strong_actor_ptr sender = self->current_sender();
  self->monitor(caf::actor_cast<caf::actor_addr>(sender));
  state.workers[worker.name] = {sender, worker.start};
  auto promise = self->make_response_promise<WorkerStatus>();
  const std::uint64_t call =
      state.deps.port->call(MessageKind::kStartWorker, to_wire(worker), kWorkerStartDeadline,
                            caf::actor_cast<caf::strong_actor_ptr>(self));
  state.starts[call] = {promise, WorkerStatus{worker.name, worker.kind}, worker.start};
  return promise;
}

void on_down(Self self, const caf::down_msg& down) {
  auto& workers = self->state.workers;
  for (auto worker = workers.begin(); worker != workers.end(); ++worker) {
    if (caf::actor_cast<caf::actor_addr>(worker->second.stands_for_it) == down.source) {
      stop(self, worker);
      return;
    }
  }
}

void drain(Self self, const std::string& name) {
  if (const auto worker = self->state.workers.find(name); worker != self->state.workers.end()) {
    self->state.deps.port->tell(MessageKind::kDrainWorker,
                                to_wire(StartedWorker{name, worker->second.start}));
  }
}

WorkerGateActor::behavior_type worker_gate(Self self, WorkerGateDeps deps) {
  self->state.deps = std::move(deps);
  self->set_down_handler([self](const caf::down_msg& down) { on_down(self, down); });
  self->attach_functor([port = self->state.deps.port] { port->close("its gate has ended"); });
  if (const RowLending& rows = self->state.deps.rows; rows.lender != nullptr) {
    self->state.deps.port->tell(MessageKind::kRowMemory, to_wire(RowMemory{rows.segments}));
  }
  return {
      [self](atom::deliver, const PeerMessagePtr& message) {
        if (message->call != 0) {
          on_start_ended(self, *message);
        } else {
          on_request(self, *message);
        }
      },
      [self](atom::closed, const std::string& reason) {
        end(self, {Errc::kUnavailable, reason});
      },
      [self](atom::start, const StartWorker& worker) { return start(self, worker); },
      [self](atom::drain, const std::string& worker) { drain(self, worker); },
  };
}

}  // namespace

WorkerGateActor spawn_worker_gate(caf::actor_system& system, WorkerGateDeps deps) {
  return system.spawn(worker_gate, std::move(deps));
}

}  // namespace tidemill::actors
