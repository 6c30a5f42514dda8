// SPDX-License-Identifier: Apache-2.0
// The device actor. It never calls an engine itself, because loading and capturing weights may take
// seconds: every request becomes a command, and the port runs the commands in the order of arrival.
//
//   idle: no work is at the port. A command, or an iteration that is left to run, submits work.
//   working: the work runs all commands that had arrived, and then one iteration, which advances
//     generation and the training jobs. Until its message arrives, only the work uses the engines,
//     and commands that arrive wait in the inbox. The message delivers the outcomes.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/device/device_work.hpp"
#include "actors/device/spawn.hpp"
#include "actors/errors.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

template <class Value>
using Promises = std::map<Ticket, caf::typed_response_promise<Value>>;

// Runs at the port.
using Command = std::function<void(DeviceWork&)>;

struct DeviceState {
  static inline const char* name = "device";
  DeviceState() = default;  // not an aggregate: CAF would build it from `self`

  std::shared_ptr<DeviceWork> work;
  bool working = false;
  Ticket last_ticket = 0;
  PerReply<Promises> pending;
  std::map<Ticket, caf::strong_actor_ptr> listeners;  // of responses that are streamed
  std::map<Ticket, JobId> busy;                       // jobs with a pending request
  std::vector<Command> inbox;                         // in order of arrival
  DeviceUsage usage;                                  // after the last work
};

using Self = DeviceActor::stateful_pointer<DeviceState>;

// Submits the commands in the inbox and the next iteration to the port.
void run_next(Self self) {
  auto& state = self->state;
  if (state.working || (state.inbox.empty() && !state.work->more)) {
    return;
  }
  state.working = true;
  state.work->allow_long_iterations();
  state.work->port().run(
      [shared = state.work, commands = std::exchange(state.inbox, {})] {
        for (const Command& command : commands) {
          command(*shared);
        }
        return shared->iterate();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
}

void add_command(Self self, Command command) {
  self->state.inbox.push_back(std::move(command));
  self->state.work->interrupt();
  run_next(self);
}

// Adds a command that replies with a `Value`. `run(work, ticket)` must leave one outcome.
template <class Value, class Run>
caf::typed_response_promise<Value> add_request(Self self, Run run) {
  auto promise = self->make_response_promise<Value>();
  const Ticket ticket = ++self->state.last_ticket;
  std::get<Promises<Value>>(self->state.pending).emplace(ticket, promise);
  add_command(self,
              [ticket, run = std::move(run)](DeviceWork& work) mutable { run(work, ticket); });
  return promise;
}

// As `add_request`, for a request to a job. Jobs have one request at a time.
template <class Value, class Run>
caf::result<Value> add_job_request(Self self, JobId id, Run run) {
  auto& state = self->state;
  const bool busy = std::any_of(state.busy.begin(), state.busy.end(),
                                [id](const auto& entry) { return entry.second == id; });
  if (busy || (id == JobId{} && !state.work->trains())) {
    return to_caf_error({Errc::kUnavailable, busy ? "the job has a pending request"
                                                  : "the device has no training job"});
  }
  state.busy.emplace(state.last_ticket + 1, id);
  return add_request<Value>(self, std::move(run));
}

template <class Value>
void deliver(DeviceState& state, Promises<Value>& promises) {
  for (Outcome<Value>& outcome : state.work->outcomes.take<Value>()) {
    const auto it = promises.find(outcome.ticket);
    state.listeners.erase(outcome.ticket);
    state.busy.erase(outcome.ticket);
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
  for (auto& [ticket, event] : std::exchange(state.work->token_events, {})) {
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

void on_worked(Self self) {
  auto& state = self->state;
  state.working = false;
  state.usage = state.work->usage;
  send_tokens(self);
  std::apply([&state](auto&... promises) { (deliver(state, promises), ...); }, state.pending);
  if (!state.work->engine_status.ok()) {
    self->quit(to_caf_error(state.work->engine_status));
    return;
  }
  run_next(self);
}

caf::result<AdapterList> change_adapters(Self self, AdapterRequest& request) {
  if (!self->state.work->serves_adapters()) {
    return to_caf_error({Errc::kUnimplemented, "the device serves no adapters by name"});
  }
  return add_request<AdapterList>(self,
                                  [request = std::move(request)](DeviceWork& work, Ticket ticket) {
                                    work.change_adapters(ticket, request);
                                  });
}

caf::result<JobId> open(Self self, std::shared_ptr<const JobOpening> opening) {
  if (!self->state.work->opens_jobs()) {
    return to_caf_error({Errc::kUnimplemented, "the device opens no training jobs"});
  }
  return add_request<JobId>(
      self, [opening = std::move(opening)](DeviceWork& work, Ticket ticket) mutable {
        work.open(ticket, *opening);
        opening.reset();
      });
}

caf::result<TrainOutcome> train(Self self, JobId id, TrainRequest& request) {
  return add_job_request<TrainOutcome>(
      self, id, [id, request = std::move(request)](DeviceWork& work, Ticket ticket) mutable {
        work.train(ticket, id, std::move(request));
      });
}

caf::result<OptimizerState> capture(Self self, JobId id) {
  return add_job_request<OptimizerState>(
      self, id, [id](DeviceWork& work, Ticket ticket) { work.capture(ticket, id); });
}

caf::result<PolicyVersion> restore(Self self, JobId id, TrainingState& saved) {
  return add_job_request<PolicyVersion>(
      self, id, [id, saved = std::move(saved)](DeviceWork& work, Ticket ticket) {
        work.restore(ticket, id, saved);
      });
}

DeviceActor::behavior_type device(Self self, DeviceDeps deps) {
  self->state.work = std::make_shared<DeviceWork>(std::move(deps));
  return {
      [self](atom::generate, RolloutRequest& request) {
        return add_request<RolloutResult>(
            self, [request = std::move(request)](DeviceWork& work, Ticket ticket) mutable {
              work.submit(ticket, std::move(request));
            });
      },
      [self](atom::stream, RolloutRequest& request) {
        self->state.listeners.emplace(self->state.last_ticket + 1, self->current_sender());
        return add_request<RolloutResult>(
            self, [request = std::move(request)](DeviceWork& work, Ticket ticket) mutable {
              work.stream(ticket, std::move(request));
            });
      },
      [self](atom::status) { return self->state.usage; },
      [self](atom::cancel, SampleId id) {
        add_command(self, [id](DeviceWork& work) { work.cancel(id); });
      },
      [self](atom::load, Snapshot& snapshot) {
        return add_request<PolicyVersion>(
            self, [snapshot = std::move(snapshot)](DeviceWork& work, Ticket ticket) mutable {
              work.load(ticket, std::move(snapshot));
            });
      },
      [self](atom::adapters, AdapterRequest& request) { return change_adapters(self, request); },
      [self](atom::train, TrainRequest& request) { return train(self, JobId{}, request); },
      [self](atom::capture) { return capture(self, JobId{}); },
      [self](atom::restore, TrainingState& saved) { return restore(self, JobId{}, saved); },
      [self](atom::open, std::shared_ptr<const JobOpening>& opening) {
        return open(self, std::move(opening));
      },
      [self](atom::close, JobId id) {
        add_command(self, [id](DeviceWork& work) { work.close(id); });
      },
      [self](atom::pass, JobId id, std::shared_ptr<const PassRequest>& request) {
        return add_job_request<PassOutcome>(
            self, id, [id, request = std::move(request)](DeviceWork& work, Ticket ticket) {
              work.pass(ticket, id, request);
            });
      },
      [self](atom::step, JobId id, std::shared_ptr<const engines::OptimStep>& step) {
        return add_job_request<engines::UpdateReport>(
            self, id, [id, step = std::move(step)](DeviceWork& work, Ticket ticket) {
              work.step(ticket, id, step);
            });
      },
      [self](atom::save, JobId id, PolicyVersion version) {
        return add_job_request<Snapshot>(self, id, [id, version](DeviceWork& work, Ticket ticket) {
          work.save(ticket, id, version);
        });
      },
      [self](atom::train, JobId id, TrainRequest& request) { return train(self, id, request); },
      [self](atom::capture, JobId id) { return capture(self, id); },
      [self](atom::restore, JobId id, TrainingState& saved) { return restore(self, id, saved); },
      [self](atom::worked) { on_worked(self); },
  };
}

}  // namespace

DeviceActor spawn_device(caf::actor_system& system, DeviceDeps deps) {
  return system.spawn(device, std::move(deps));
}

}  // namespace tidemill::actors
