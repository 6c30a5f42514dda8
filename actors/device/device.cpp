// SPDX-License-Identifier: Apache-2.0
// The device actor. It never calls an engine itself, because loading and capturing weights may take
// seconds: every request becomes a command, and the port runs the commands in the order of arrival.
//
//   idle: no work is at the port. A command, or an iteration that is left to run, submits work.
//   working: the work runs all commands that had arrived, advances the training job, and runs one
//     iteration. Until its message arrives, only the work uses the engines, and commands that
//     arrive wait in the inbox. The message delivers the outcomes.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/device/spawn.hpp"
#include "actors/device/train_run.hpp"
#include "actors/errors.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

// Identifies a request. Promises stay with the actor, and the work names them by their tickets.
using Ticket = std::uint64_t;

// The outcome of a request.
template <class Value>
struct Outcome {
  Ticket ticket = 0;
  Result<Value> result;
};

// Shared with the work at the port, so that it outlives a terminated actor. Only the work calls
// the member functions.
struct PortWork : engines::RolloutSink {
  explicit PortWork(DeviceDeps d)
      : deps(std::move(d)),
        executor(deps.rollout, deps.train, deps.executor),
        incarnation(deps.rollout->serving().incarnation) {}

  void on_rollout(RolloutResult result) override {
    const auto it = generating.find(result.id);
    if (it == generating.end()) {
      return;  // given up
    }
    rollouts.push_back({it->second, std::move(result)});
    streaming.erase(it->second);
    generating.erase(it);
  }

  void on_tokens(const engines::RolloutTokens& tokens) override {
    const auto it = generating.find(tokens.id);
    if (it == generating.end() || !streaming.contains(it->second)) {
      return;
    }
    TokenEvent event;
    event.id = tokens.id;
    event.first = tokens.first;
    event.ids.assign(tokens.ids.begin(), tokens.ids.end());
    event.behavior_logprobs.assign(tokens.behavior_logprobs.begin(),
                                   tokens.behavior_logprobs.end());
    event.versions.assign(tokens.versions.begin(), tokens.versions.end());
    event.top_logprobs.assign(tokens.top_logprobs.begin(), tokens.top_logprobs.end());
    token_events.emplace_back(it->second, std::move(event));
  }

  void stream(Ticket ticket, RolloutRequest request) {
    streaming.insert(ticket);
    submit(ticket, std::move(request));
  }

  void submit(Ticket ticket, RolloutRequest request) {
    const SampleId id = request.id;
    // A second request for a sample follows a lost lease. The first requester has given up.
    if (generating.contains(id)) {
      deps.rollout->cancel(id);
    }
    if (Status status = deps.rollout->submit(std::move(request), *this); status.ok()) {
      generating.emplace(id, ticket);
    } else {
      streaming.erase(ticket);
      rollouts.push_back({ticket, std::move(status)});
    }
  }

  // Ends all requests with `why`.
  void give_up_requests(const Status& why) {
    streaming.clear();
    for (const auto& [id, ticket] : std::exchange(generating, {})) {
      rollouts.push_back({ticket, why});
      deps.rollout->cancel(id);
    }
  }

  // The requests before the first weights of a newer incarnation came from actors of an older one,
  // which have ended. The new weights would have to wait for their responses.
  void load(Ticket ticket, Snapshot snapshot) {
    const PolicyVersion version = snapshot.version;
    Status status = deps.rollout->load(std::move(snapshot), engines::WeightArrival::kFinish);
    if (status.ok() && version.incarnation > incarnation) {
      incarnation = version.incarnation;
      give_up_requests({Errc::kUnavailable, "the request was given up for incarnation " +
                                                std::to_string(incarnation) +
                                                ", whose weights were loaded"});
    }
    loads.push_back({ticket, status.ok() ? Result<PolicyVersion>(version) : std::move(status)});
  }

  void restore(Ticket ticket, const TrainingState& saved) {
    Status status = deps.train->load(saved.weights, saved.optimizer.tensors);
    loads.push_back(
        {ticket, status.ok() ? Result<PolicyVersion>(saved.weights.version) : std::move(status)});
  }

  void change_adapters(Ticket ticket, const AdapterRequest& request) {
    Status status = change_adapters(request);
    adapter_lists.push_back({ticket, status.ok()
                                         ? Result<AdapterList>(AdapterList{deps.adapters->loaded()})
                                         : std::move(status)});
  }

  [[nodiscard]] Status change_adapters(const AdapterRequest& request) const {
    switch (request.action) {
      case AdapterAction::kList: return {};
      case AdapterAction::kUnload: return deps.adapters->unload(request.name);
      case AdapterAction::kLoad: break;
    }
    TIDEMILL_ASSIGN_OR_RETURN(engines::AdapterFiles files, deps.open_adapter(request.path));
    return deps.adapters->load({request.name, request.version, std::move(files)});
  }

  // Iterations make the copy.
  void capture(Ticket ticket) {
    if (Status status = deps.train->capture(); status.ok()) {
      capturing = ticket;
    } else {
      captures.push_back({ticket, std::move(status)});
    }
  }

  // Advances the training request, if there is one, and then runs one iteration.
  Duration iterate() {
    Duration spent{0};
    Status train_status = train.has_value() ? train->advance() : Status{};
    if (train_status.ok() && executor.has_work()) {
      auto report = executor.iterate();
      if (report.ok()) {
        spent = report.value().virtual_duration;
        count(report.value());
      } else {
        // A failure of training ends the request and not the device.
        const bool requested = train.has_value() || capturing.has_value();
        (executor.trained() && requested ? train_status : engine_status) = report.status();
      }
    }
    if (capturing.has_value()) {
      settle_capture(train_status);
    } else {
      settle_training(std::move(train_status));
    }
    more = train.has_value() || executor.has_work();
    if (!deps.rollout->has_work()) {
      usage.running = 0;
      usage.kv_use = 0.0;
      usage.waiting = generating.size();  // for a version that is not served yet
    }
    return spent;
  }

  void count(const engines::StepReport& report) {
    if (!executor.trained()) {
      usage.running = static_cast<std::uint64_t>(report.running);
      usage.waiting = static_cast<std::uint64_t>(report.waiting);
      usage.kv_use = report.kv_use;
    }
    usage.preemptions += static_cast<std::uint64_t>(report.preemptions);
    usage.prefill_tokens += static_cast<std::uint64_t>(report.prefill_tokens);
    usage.decode_tokens += static_cast<std::uint64_t>(report.decode_tokens);
    usage.cached_tokens += static_cast<std::uint64_t>(report.cached_tokens);
    usage.train_tokens += static_cast<std::uint64_t>(report.train_tokens);
  }

  // `status` is that of the last iteration.
  void settle_capture(const Status& status) {
    if (!status.ok()) {
      captures.push_back({*capturing, status});
      capturing.reset();
    } else if (!deps.train->has_work()) {
      captures.push_back({*capturing, OptimizerState{deps.train->take_optimizer_state()}});
      capturing.reset();
    }
  }
  void settle_training(Status status) {
    if (!status.ok()) {
      trained = std::move(status);
      train.reset();
    } else if (train.has_value() && train->finished()) {
      trained = train->take_outcome();
      train.reset();
    }
  }

  DeviceDeps deps;
  engines::Executor executor;
  std::optional<TrainRun> train;
  std::optional<Ticket> capturing;  // never while `train` is set
  std::map<SampleId, Ticket> generating;
  std::set<Ticket> streaming;     // those of `generating` whose tokens are sent
  std::uint32_t incarnation = 0;  // of the newest weights that generate, or will
  DeviceUsage usage;
  // For the actor, which reads and clears them when the message of the work arrives.
  std::vector<std::pair<Ticket, TokenEvent>> token_events;
  std::vector<Outcome<RolloutResult>> rollouts;
  std::vector<Outcome<PolicyVersion>> loads;  // and restores
  std::vector<Outcome<AdapterList>> adapter_lists;
  std::vector<Outcome<OptimizerState>> captures;
  std::optional<Result<TrainOutcome>> trained;  // a failed job is its reply
  Status engine_status;                         // a failure ends the device
  bool more = false;                            // there is a next iteration
};

template <class Value>
using Promises = std::map<Ticket, caf::typed_response_promise<Value>>;

// Runs at the port.
using Command = std::function<void(PortWork&)>;

struct DeviceState {
  static inline const char* name = "device";
  DeviceState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<PortWork> port_work;
  bool working = false;
  Ticket last_ticket = 0;
  Promises<RolloutResult> pending_rollouts;
  std::map<Ticket, caf::strong_actor_ptr> listeners;  // of those that are streamed
  Promises<PolicyVersion> pending_loads;              // and restores
  Promises<AdapterList> pending_adapters;
  Promises<OptimizerState> pending_captures;
  std::optional<caf::typed_response_promise<TrainOutcome>> pending_train;
  std::vector<Command> inbox;  // in order of arrival
  DeviceUsage usage;           // after the last work
};

using Self = DeviceActor::stateful_pointer<DeviceState>;

// Submits the commands in the inbox and the next iteration to the port.
void run_next(Self self) {
  auto& state = self->state;
  if (state.working || (state.inbox.empty() && !state.port_work->more)) {
    return;
  }
  state.working = true;
  state.port_work->deps.port->run(
      [shared = state.port_work, commands = std::exchange(state.inbox, {})] {
        for (const Command& command : commands) {
          command(*shared);
        }
        return shared->iterate();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void add_command(Self self, Command command) {
  self->state.inbox.push_back(std::move(command));
  run_next(self);
}

// Adds a command that replies with a `Value`. `run(port_work, ticket)` must leave one outcome.
template <class Value, class Run>
caf::typed_response_promise<Value> add_request(Self self, Promises<Value>& promises, Run run) {
  auto promise = self->make_response_promise<Value>();
  const Ticket ticket = ++self->state.last_ticket;
  promises.emplace(ticket, promise);
  add_command(self, [ticket, run = std::move(run)](PortWork& port_work) mutable {
    run(port_work, ticket);
  });
  return promise;
}

template <class Value>
void deliver(Promises<Value>& promises, std::vector<Outcome<Value>>& outcomes) {
  for (Outcome<Value>& outcome : std::exchange(outcomes, {})) {
    const auto it = promises.find(outcome.ticket);
    if (outcome.result.ok()) {
      it->second.deliver(std::move(outcome.result).value());
    } else {
      it->second.deliver(to_caf_error(outcome.result.status()));
    }
    promises.erase(it);
  }
}

// Sends the tokens of the last iteration, one message to each receiver.
void send_tokens(Self self) {
  auto& state = self->state;
  std::vector<std::pair<caf::strong_actor_ptr, TokenBatch>> batches;
  for (auto& [ticket, event] : std::exchange(state.port_work->token_events, {})) {
    const auto listener = state.listeners.find(ticket);
    if (listener == state.listeners.end()) {
      continue;
    }
    const auto batch = std::find_if(batches.begin(), batches.end(),
                                    [&](const auto& one) { return one.first == listener->second; });
    if (batch != batches.end()) {
      batch->second.events.push_back(std::move(event));
    } else {
      batches.emplace_back(listener->second, TokenBatch{{std::move(event)}});
    }
  }
  for (auto& [listener, batch] : batches) {
    self->send(caf::actor_cast<TokenListenerActor>(listener), atom::tokens_v, std::move(batch));
  }
}

void settle_training(Self self) {
  auto& state = self->state;
  if (auto trained = std::exchange(state.port_work->trained, std::nullopt)) {
    if (trained->ok()) {
      state.pending_train->deliver(std::move(*trained).value());
    } else {
      state.pending_train->deliver(to_caf_error(trained->status()));
    }
    state.pending_train.reset();
  }
}

void on_worked(Self self) {
  auto& state = self->state;
  PortWork& port_work = *state.port_work;
  state.working = false;
  state.usage = port_work.usage;
  send_tokens(self);
  for (const Outcome<RolloutResult>& outcome : port_work.rollouts) {
    state.listeners.erase(outcome.ticket);
  }
  deliver(state.pending_rollouts, port_work.rollouts);
  deliver(state.pending_loads, port_work.loads);
  deliver(state.pending_adapters, port_work.adapter_lists);
  deliver(state.pending_captures, port_work.captures);
  if (!port_work.engine_status.ok()) {
    self->quit(to_caf_error(port_work.engine_status));
    return;
  }
  settle_training(self);
  run_next(self);
}

// Returns whether the device can start a training request now.
bool may_train(const DeviceState& state) {
  return !state.pending_train.has_value() && state.pending_captures.empty() &&
         state.port_work->deps.train != nullptr;
}

caf::error training_unavailable() {
  return to_caf_error(
      {Errc::kUnavailable, "the device is training or capturing, or has no training job"});
}

DeviceActor::behavior_type device(Self self, DeviceDeps deps) {
  self->state.port_work = std::make_shared<PortWork>(std::move(deps));
  return {
      [self](atom::generate, RolloutRequest& request) {
        return add_request(
            self, self->state.pending_rollouts,
            [request = std::move(request)](PortWork& port_work, Ticket ticket) mutable {
              port_work.submit(ticket, std::move(request));
            });
      },
      [self](atom::stream, RolloutRequest& request) {
        caf::strong_actor_ptr listener = self->current_sender();
        auto promise =
            add_request(self, self->state.pending_rollouts,
                        [request = std::move(request)](PortWork& port_work, Ticket ticket) mutable {
                          port_work.stream(ticket, std::move(request));
                        });
        self->state.listeners.emplace(self->state.last_ticket, std::move(listener));
        return promise;
      },
      [self](atom::status) { return self->state.usage; },
      [self](atom::cancel, SampleId id) {
        add_command(self, [id](PortWork& port_work) { port_work.deps.rollout->cancel(id); });
      },
      [self](atom::load, Snapshot& snapshot) {
        return add_request(
            self, self->state.pending_loads,
            [snapshot = std::move(snapshot)](PortWork& port_work, Ticket ticket) mutable {
              port_work.load(ticket, std::move(snapshot));
            });
      },
      [self](atom::adapters, AdapterRequest& request) -> caf::result<AdapterList> {
        auto& state = self->state;
        if (state.port_work->deps.adapters == nullptr) {
          return to_caf_error({Errc::kUnimplemented, "the device serves no adapters by name"});
        }
        return add_request(self, state.pending_adapters,
                           [request = std::move(request)](PortWork& port_work, Ticket ticket) {
                             port_work.change_adapters(ticket, request);
                           });
      },
      [self](atom::train, TrainRequest& job) -> caf::result<TrainOutcome> {
        auto& state = self->state;
        if (!may_train(state)) {
          return training_unavailable();
        }
        auto promise = self->make_response_promise<TrainOutcome>();
        state.pending_train = promise;
        add_command(self, [job = std::move(job)](PortWork& port_work) mutable {
          port_work.train.emplace(*port_work.deps.train, port_work.deps.make_loss, std::move(job));
        });
        return promise;
      },
      [self](atom::capture) -> caf::result<OptimizerState> {
        auto& state = self->state;
        if (!may_train(state)) {
          return training_unavailable();
        }
        return add_request(self, state.pending_captures,
                           [](PortWork& port_work, Ticket ticket) { port_work.capture(ticket); });
      },
      [self](atom::restore, TrainingState& saved) -> caf::result<PolicyVersion> {
        auto& state = self->state;
        if (!may_train(state)) {
          return training_unavailable();
        }
        return add_request(self, state.pending_loads,
                           [saved = std::move(saved)](PortWork& port_work, Ticket ticket) {
                             port_work.restore(ticket, saved);
                           });
      },
      [self](atom::worked) { on_worked(self); },
  };
}

}  // namespace

DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps) {
  return system.spawn(device, std::move(deps));
}

}  // namespace tidemill::actors
