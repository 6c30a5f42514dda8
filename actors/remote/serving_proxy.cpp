// SPDX-License-Identifier: Apache-2.0
// The serving proxy. It encodes requests and decodes the replies to them.
//
// Loads and changes of adapters go through a queue, because their tensors have to be lent before
// they are sent. The first of them is in one of these states:
//   waiting  to lend its tensors, because there is no room. `wake`: -> lending.
//   lending  at the port. `worked`: -> sent; or, without room, -> waiting; or it has failed.
//   sent     The reply arrives: it has ended, and the next one is lent. If the device refuses a
//            snapshot that was sent without its base, the snapshot is lent again, with it.
#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <variant>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/remote/peer_reply.hpp"
#include "actors/remote/serving.hpp"
#include "actors/remote/serving_size.hpp"
#include "actors/wire/serving_messages.hpp"
#include "actors/work/release_at.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;
using RolloutPromise = caf::typed_response_promise<RolloutResult>;
using LoadPromise = caf::typed_response_promise<PolicyVersion>;
using AdaptersPromise = caf::typed_response_promise<AdapterList>;

// The pauses between attempts to lend: the first, and the longest.
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kMaxPause = std::chrono::seconds(2);
// A wait for room is no cause for a line before it takes this long.
constexpr Duration kQuietWait = std::chrono::seconds(5);
constexpr Duration kLogPause = std::chrono::minutes(1);

// A message with tensors.
using Content = std::variant<Snapshot, AdapterRequest>;

template <class Visit>
void for_each_tensors(Content& content, Visit visit) {
  if (auto* snapshot = std::get_if<Snapshot>(&content)) {
    visit(snapshot->base);
    visit(snapshot->adapter);
  } else {
    visit(std::get<AdapterRequest>(content).tensors);
  }
}

// Lends the tensors of one message at the port, and takes them back unless the message is sent.
class LendWork {
public:
  LendWork(std::shared_ptr<BufferLender> buffers, Content content)
      : buffers_(std::move(buffers)), content_(std::move(content)) {}
  LendWork(const LendWork&) = delete;
  LendWork& operator=(const LendWork&) = delete;
  ~LendWork() {
    if (!sent_) {
      take_back();
    }
  }

  // Replaces the tensors by those that the reader can resolve.
  void lend() {
    for_each_tensors(content_, [this](TensorMap& tensors) {
      if (!status_.ok()) {
        return;
      }
      auto lent = actors::lend(*buffers_, tensors);
      if (lent.ok()) {
        tensors = std::move(lent).value();
        ++lent_;
      } else {
        status_ = lent.status();
      }
    });
  }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] const Content& content() const { return content_; }
  void set_sent() { sent_ = true; }

private:
  void take_back() {
    for_each_tensors(content_, [this](const TensorMap& tensors) {
      if (lent_ > 0) {
        --lent_;
        actors::take_back(*buffers_, tensors);
      }
    });
  }

  std::shared_ptr<BufferLender> buffers_;
  Content content_;
  Status status_;
  int lent_ = 0;  // so many of its sets of tensors
  bool sent_ = false;
};

// A load or a change of adapters.
struct Change {
  Content content;
  std::variant<LoadPromise, AdaptersPromise> promise;

  void fail(const Status& why) {
    std::visit([&why](auto& to) { to.deliver(to_caf_error(why)); }, promise);
  }
};

struct ServingProxyState {
  static inline const char* name = "serving_proxy";
  ServingProxyState() = default;  // not an aggregate: CAF would build it from `self`

  ServingProxyDeps deps;
  std::map<std::uint64_t, RolloutPromise> generating;  // by call
  std::deque<Change> changes;                          // in order of arrival
  bool busy = false;               // the first change is being lent, or was sent
  bool with_base = false;          // the first change has been sent without its base in vain
  std::uint64_t change_call = 0;   // of the first change; 0: it was not sent
  TimePoint log_at;                // when the next line about a wait may follow
  TimePoint give_up_at;            // when the first change has waited too long for room
  Duration pause = kFirstPause;    // before the next attempt
  std::shared_ptr<LendWork> work;  // of the first change
  std::string loaded_base;         // the digest of the base that was loaded last
  // The last snapshot that was loaded, in shared memory. Other proxies lend the same buffers.
  std::shared_ptr<LendWork> loaded;
};

using Self = ServingProxyActor::stateful_pointer<ServingProxyState>;

// Drops what may hold the last handles to the weights of a model.
template <class Object>
void drop(Self self, Object object) {
  if (self->state.deps.work != nullptr) {
    release_at(*self->state.deps.work, std::move(object));
  }
}

// Ends the proxy. Requests fail, because the actor that serves cannot reply any more.
void end(Self self, const Status& reason) {
  auto& state = self->state;
  const Status why = reason.with_context(state.deps.name);
  const Status lost(Errc::kUnavailable, why.message());
  for (auto& [call, promise] : std::exchange(state.generating, {})) {
    promise.deliver(to_caf_error(lost));
  }
  for (Change& change : std::exchange(state.changes, {})) {
    change.fail(lost);
  }
  drop(self, std::pair(std::move(state.work), std::move(state.loaded)));
  self->quit(to_caf_error(reason));  // others know it by its name
}

// -- loads and changes of adapters ----------------------------------------------------------------

void start_next(Self self);

// Ends the first change, whose promise has been delivered.
void finish_change(Self self) {
  auto& state = self->state;
  drop(self, std::pair(std::move(state.changes.front().content), std::move(state.work)));
  state.changes.pop_front();
  state.busy = false;
  state.with_base = false;
  state.change_call = 0;
  start_next(self);
}

void fail_change(Self self, const Status& why) {
  self->state.changes.front().fail(why);
  finish_change(self);
}

// Sends the first change, whose tensors have been lent.
void send_change(Self self, const Content& content) {
  auto& state = self->state;
  const auto* snapshot = std::get_if<Snapshot>(&content);
  Buffer body =
      snapshot != nullptr ? to_wire(*snapshot) : to_wire(std::get<AdapterRequest>(content));
  if (body.size_bytes() > transport::kMaxBodyBytes) {
    fail_change(self, invalid_argument(state.deps.name + ": " + std::to_string(body.size_bytes()) +
                                       " bytes that name tensors do not fit into one message"));
    return;
  }
  if (state.work != nullptr) {
    state.work->set_sent();
  }
  state.change_call = state.deps.port->call(
      snapshot != nullptr ? MessageKind::kLoad : MessageKind::kAdapters, std::move(body),
      kRemoteChangeDeadline, caf::actor_cast<caf::strong_actor_ptr>(self));
}

bool may_have_base(const ServingProxyState& state, const Snapshot& snapshot) {
  return !snapshot.base_digest.empty() && (snapshot.base_digest == state.loaded_base ||
                                           (state.deps.has_base && state.loaded_base.empty()));
}

// Returns the first change as it is to be sent: without the base, if the device has it already.
Content content_to_send(const ServingProxyState& state) {
  Content content = state.changes.front().content;
  if (auto* snapshot = std::get_if<Snapshot>(&content);
      snapshot != nullptr && !state.with_base && may_have_base(state, *snapshot)) {
    snapshot->base.clear();
  }
  return content;
}

void lend(Self self) {
  auto& state = self->state;
  Content content = content_to_send(state);
  bool has_tensors = false;
  for_each_tensors(
      content, [&](const TensorMap& tensors) { has_tensors = has_tensors || !tensors.empty(); });
  if (!has_tensors) {
    send_change(self, content);
  } else if (state.deps.buffers == nullptr) {
    fail_change(
        self, {Errc::kUnimplemented, state.deps.name + ": no tensors can be sent to its process"});
  } else {
    state.work = std::make_shared<LendWork>(state.deps.buffers, std::move(content));
    state.deps.work->run(
        [work = state.work] {
          work->lend();
          return Duration{0};
        },
        caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
  }
}

void start_next(Self self) {
  auto& state = self->state;
  if (state.busy || state.changes.empty()) {
    return;
  }
  state.busy = true;
  state.give_up_at = self->clock().now() + kMaxLendWait;
  state.pause = kFirstPause;
  lend(self);
}

// Says that the first change waits for room, if it has waited for a while.
void log_wait(Self self, const Status& why) {
  auto& state = self->state;
  const TimePoint now = self->clock().now();
  if (state.deps.log && state.give_up_at - now < kMaxLendWait - kQuietWait && now >= state.log_at) {
    state.log_at = now + kLogPause;
    state.deps.log(state.deps.name + " waits for weights: " + why.message() + "; trying again");
  }
}

// The tensors of the first change have been lent, or not.
void on_lent(Self self) {
  auto& state = self->state;
  const Status& status = state.work->status();
  if (status.ok()) {
    send_change(self, state.work->content());
  } else if (status.code() == Errc::kResourceExhausted &&
             self->clock().now() + state.pause < state.give_up_at) {
    log_wait(self, status);
    drop(self, std::move(state.work));
    self->delayed_send(self, state.pause, atom::wake_v);
    state.pause = std::min(2 * state.pause, kMaxPause);
  } else {
    fail_change(self, status.with_context(state.deps.name));
  }
}

// Whether the device might accept the snapshot with its base: the failure may be that it lacks it.
bool may_lack_base(const ServingProxyState& state, const Status& failure) {
  const auto* snapshot = std::get_if<Snapshot>(&state.changes.front().content);
  return snapshot != nullptr && !state.with_base && !snapshot->base.empty() &&
         may_have_base(state, *snapshot) &&
         (failure.code() == Errc::kInvalidArgument || failure.code() == Errc::kNotFound ||
          failure.code() == Errc::kCorruptData);
}

void on_loaded(Self self, const PeerMessage& reply) {
  auto& state = self->state;
  auto version = read_reply<PolicyVersion>(MessageKind::kLoaded, reply);
  if (!version.ok()) {
    if (may_lack_base(state, version.status())) {
      state.with_base = true;
      state.change_call = 0;
      drop(self, std::move(state.work));
      lend(self);
    } else {
      fail_change(self, version.status());
    }
    return;
  }
  Change& change = state.changes.front();
  state.loaded_base = std::get<Snapshot>(change.content).base_digest;
  if (state.work != nullptr) {
    std::swap(state.loaded, state.work);
  }
  std::get<LoadPromise>(change.promise).deliver(version.value());
  finish_change(self);
}

void on_change_ended(Self self, const PeerMessage& reply) {
  Change& change = self->state.changes.front();
  if (std::holds_alternative<LoadPromise>(change.promise)) {
    on_loaded(self, reply);
    return;
  }
  auto list = read_reply<AdapterList>(MessageKind::kAdapterList, reply);
  if (list.ok()) {
    std::get<AdaptersPromise>(change.promise).deliver(std::move(list).value());
    finish_change(self);
  } else {
    fail_change(self, list.status());
  }
}

template <class Promise, class Request>
Promise add_change(Self self, Promise promise, Request& request) {
  self->state.changes.push_back({std::move(request), promise});
  start_next(self);
  return promise;
}

// -- generation -----------------------------------------------------------------------------------

caf::result<RolloutResult> generate(Self self, const RolloutRequest& request) {
  auto& state = self->state;
  const std::string location =
      state.deps.name + ": request " + std::to_string(request.id.value) + ": ";
  if (request.constraint.is_set) {
    return to_caf_error(
        {Errc::kUnimplemented, location + "a constraint cannot be sent to another process"});
  }
  std::uint64_t bytes = least_wire_bytes(request);
  Buffer body = bytes > transport::kMaxBodyBytes ? Buffer() : to_wire(request);
  bytes = std::max<std::uint64_t>(bytes, body.size_bytes());
  if (bytes > transport::kMaxBodyBytes) {
    return to_caf_error(
        invalid_argument(location + std::to_string(bytes) + " bytes do not fit into one message"));
  }
  auto promise = self->make_response_promise<RolloutResult>();
  const std::uint64_t call =
      state.deps.port->call(MessageKind::kGenerate, std::move(body), state.deps.reply_deadline,
                            caf::actor_cast<caf::strong_actor_ptr>(self));
  state.generating.emplace(call, promise);
  return promise;
}

void on_reply(Self self, const PeerMessage& reply) {
  auto& state = self->state;
  if (reply.call == state.change_call) {
    on_change_ended(self, reply);
    return;
  }
  const auto call = state.generating.find(reply.call);
  if (call == state.generating.end()) {
    return;
  }
  RolloutPromise promise = std::move(call->second);
  state.generating.erase(call);
  auto result = read_reply<RolloutResult>(MessageKind::kRolloutResult, reply);
  if (result.ok()) {
    promise.deliver(std::move(result).value());
  } else {
    promise.deliver(to_caf_error(result.status()));
  }
}

// The actor that serves has ended.
void on_serving_ended(Self self, const PeerMessage& message) {
  const auto why = from_wire<Failure>(message.body);
  end(self, why.ok() ? why.value().status : why.status());
}

ServingProxyActor::behavior_type serving_proxy(Self self, ServingProxyDeps deps) {
  self->state.deps = std::move(deps);
  return {
      [self](atom::generate, const RolloutRequest& request) { return generate(self, request); },
      [self](atom::cancel, SampleId id) {
        self->state.deps.port->tell(MessageKind::kCancel, to_wire(id));
      },
      [self](atom::load, Snapshot& snapshot) {
        return add_change(self, self->make_response_promise<PolicyVersion>(), snapshot);
      },
      [self](atom::adapters, AdapterRequest& request) {
        return add_change(self, self->make_response_promise<AdapterList>(), request);
      },
      [self](atom::deliver, const PeerMessagePtr& message) {
        if (message->call != 0) {
          on_reply(self, *message);
        } else {
          on_serving_ended(self, *message);
        }
      },
      [self](atom::closed, const std::string& reason) {
        end(self, {Errc::kUnavailable, reason});
      },
      [self](atom::worked) { on_lent(self); },
      [self](atom::wake) { lend(self); },
  };
}

}  // namespace

ServingActor spawn_serving_proxy(caf::actor_system& system, ServingProxyDeps deps) {
  const std::shared_ptr<PeerPort> port = deps.port;
  const ServingProxyActor proxy = system.spawn(serving_proxy, std::move(deps));
  port->add_receiver(MessageKind::kServingEnded, MessageKind::kServingEnded,
                     caf::actor_cast<caf::strong_actor_ptr>(proxy));
  return proxy;
}

}  // namespace tidemill::actors
