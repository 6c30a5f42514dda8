// SPDX-License-Identifier: Apache-2.0
// The actor that serves Tinker's API. `Service` has its state; the actor brings it what ports and
// the device have done.
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/gateway/tenant_turns.hpp"
#include "actors/tinker/device_backend.hpp"
#include "actors/tinker/downloads.hpp"
#include "actors/tinker/routes.hpp"
#include "actors/tinker/spawn.hpp"

namespace tidemill::actors {
namespace {

constexpr auto kTickTime = std::chrono::seconds(1);
constexpr int kMaxAtIoPort = 2;  // one that runs, and the next one

// A request that is parsed, or waits for that.
struct TinkerParseWork {
  HttpRequest request;  // freed by the work
  Caller caller;
  ParseLane lane = ParseLane::kSmall;
  std::size_t bytes = 0;                // of the body
  std::atomic<bool> abandoned = false;  // the client has closed its connection
  std::optional<tinker::Call> call;     // written by the work
};

// Work for the port that reads and writes checkpoints.
struct IoWork {
  std::function<void()> work;
  std::function<void()> done;
};

struct TinkerState {
  static inline const char* name = "tinker";
  TinkerState() = default;  // not an aggregate: CAF would build it from `self`

  TinkerDeps deps;
  std::unique_ptr<tinker::TuningBackend> backend;
  std::unique_ptr<tinker::Service> service;
  std::map<std::uint64_t, std::function<void()>> working;  // what follows work at a port
  TenantTurns<IoWork> io_waiting;
  int io_at_port = 0;
  std::optional<tinker::Downloads> downloads;
  std::map<ExchangeId, std::shared_ptr<TinkerParseWork>> parsing;
  ParseLanes<std::shared_ptr<TinkerParseWork>> to_parse;
  std::uint64_t last_work = 0;
  FairLimit parsing_bytes;  // of the bodies that are not parsed yet
};

using Self = TinkerActor::stateful_pointer<TinkerState>;

// Runs `work` at `port`, and then `done` in the actor.
void run_at(Self self, WorkPort& port, std::function<void()> work, std::function<void()> done) {
  const std::uint64_t id = ++self->state.last_work;
  self->state.working.emplace(id, std::move(done));
  port.run(
      [work = std::move(work)] {
        work();
        return Duration::zero();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v, id));
}

// Starts work that waits for the port of checkpoints, in turns of tenants.
void start_io(Self self) {
  auto& state = self->state;
  while (state.io_at_port < kMaxAtIoPort && !state.io_waiting.empty()) {
    ++state.io_at_port;
    IoWork next = state.io_waiting.pop();
    run_at(self, *state.deps.io_port, std::move(next.work), [self, done = std::move(next.done)] {
      --self->state.io_at_port;
      start_io(self);
      done();
    });
  }
}

// Responds, and counts an error. The status 408 of a future that is not ready is none.
void respond(const TinkerDeps& deps, ExchangeId exchange, HttpResponse response) {
  constexpr std::uint32_t kNotReady = 408;
  if (deps.metrics != nullptr && response.status >= 400 && response.status != kNotReady) {
    deps.metrics->on_error(response.status);
  }
  deps.http->respond(exchange, std::move(response));
}

void on_worked(Self self, std::uint64_t id) {
  const auto found = self->state.working.find(id);
  if (found != self->state.working.end()) {
    const auto done = std::move(found->second);
    self->state.working.erase(found);
    done();
  }
}

// Requests of one model may be parsed in another order than they have arrived in, because their
// lanes differ. `Service` runs them in the order of their numbers.
void parse_next(Self self, ParseLane lane) {
  self->state.to_parse.start(
      lane, [self](WorkPort& port, const std::shared_ptr<TinkerParseWork>& work) {
        run_at(
            self, port,
            [work, model = self->state.deps.model_limits] {
              if (!work->abandoned) {
                work->call = tinker::parse_call(work->request, model);
              }
              work->request = HttpRequest();
            },
            [self, work, exchange = work->request.exchange] {
              auto& state = self->state;
              state.parsing.erase(exchange);
              state.parsing_bytes.give_back(work->caller.tenant, work->bytes);
              state.to_parse.end(work->lane);
              parse_next(self, work->lane);
              if (work->call && !work->abandoned) {
                state.service->handle(exchange, std::move(*work->call), work->caller);
              }
            });
      });
}

// A compressed body may become a large one.
ParseLane lane_of(const HttpRequest& request) {
  return request.header("content-encoding").has_value() ? ParseLane::kLarge
                                                        : lane_of_size(request.body.size());
}

void on_tinker_request(Self self, HttpRequest& request, const Caller& caller) {
  auto& state = self->state;
  const ExchangeId exchange = request.exchange;
  const std::size_t bytes = request.body.size();
  if (!state.parsing_bytes.fits(caller.tenant, bytes)) {
    HttpResponse response =
        openai::to_response({429, "too many requests are pending on the server; try again later"});
    response.headers.push_back({"retry-after", "1"});
    respond(state.deps, exchange, std::move(response));
    return;
  }
  state.parsing_bytes.take(caller.tenant, bytes);
  const auto work = std::make_shared<TinkerParseWork>();
  work->lane = lane_of(request);
  work->request = std::move(request);
  work->caller = caller;
  work->bytes = bytes;
  state.parsing.emplace(exchange, work);
  state.to_parse.push(work->lane, caller.tenant, bytes, work);
  parse_next(self, work->lane);
}

void on_closed(Self self, ExchangeId exchange) {
  if (const auto found = self->state.parsing.find(exchange); found != self->state.parsing.end()) {
    found->second->abandoned = true;
  }
  self->state.downloads->forget(exchange);
  self->state.service->forget(exchange);
}

void tick(Self self) {
  self->state.service->tick();
  self->delayed_send(self, kTickTime, atom::wake_v);
}

TinkerActor::behavior_type tinker_actor(Self self, TinkerDeps deps) {
  self->link_to(deps.device);
  auto& state = self->state;
  state.deps = std::move(deps);
  state.parsing_bytes = FairLimit(state.deps.max_parsing_bytes, state.deps.tenancy);
  state.to_parse = ParseLanes<std::shared_ptr<TinkerParseWork>>(state.deps.parse_ports);
  const auto run_io = [self](const std::string& tenant, std::function<void()> work,
                             std::function<void()> done) {
    self->state.io_waiting.push(tenant, {std::move(work), std::move(done)});
    start_io(self);
  };
  state.downloads.emplace(*state.deps.http, run_io,
                          FairLimit(state.deps.max_download_bytes, state.deps.tenancy));
  state.backend = std::make_unique<tinker::DeviceBackend<Self>>(
      self, state.deps.device, state.deps.make_job_options, run_io, state.deps.base.name);
  tinker::ServiceDeps service;
  service.backend = state.backend.get();
  service.model_bytes = state.deps.model_bytes;
  service.snapshot_bytes = state.deps.snapshot_bytes;
  service.store = state.deps.store;
  service.run_work = run_io;
  service.run_encoding = [self](std::function<void()> work, std::function<void()> done) {
    constexpr auto kLane = static_cast<std::size_t>(ParseLane::kLarge);
    run_at(self, *self->state.deps.parse_ports[kLane], std::move(work), std::move(done));
  };
  service.send_file = [self](ExchangeId exchange, const std::string& tenant,
                             std::function<Result<tinker::OpenedFile>()> open,
                             std::function<void(const Status&)> failed) {
    return self->state.downloads->start(exchange, tenant, std::move(open), std::move(failed));
  };
  service.respond = [self](ExchangeId exchange, HttpResponse response) {
    respond(self->state.deps, exchange, std::move(response));
  };
  if (state.deps.metrics != nullptr) {
    service.on_sample = [metrics = state.deps.metrics](const engines::RolloutResult& result,
                                                       std::size_t prompt_tokens, Duration since,
                                                       const std::string& tenant) {
      metrics->on_response(result, prompt_tokens, since, tenant);
    };
  }
  service.warn = state.deps.warn;
  service.now = [clock = state.deps.clock] { return clock->now(); };
  service.unix_time = state.deps.unix_time;
  service.random = state.deps.random;
  service.base = state.deps.base;
  service.limits = state.deps.limits;
  service.tenancy = state.deps.tenancy;
  state.service = std::make_unique<tinker::Service>(std::move(service));
  state.service->start();
  tick(self);
  return {
      [self](atom::request, HttpRequest& request, const Caller& caller) {
        on_tinker_request(self, request, caller);
      },
      [self](atom::closed, std::uint64_t exchange) { on_closed(self, exchange); },
      [self](atom::sent, std::uint64_t exchange) { self->state.downloads->on_sent(exchange); },
      [self](atom::worked, std::uint64_t work) { on_worked(self, work); },
      [self](atom::wake) { tick(self); },
      [self](atom::drain) { self->state.service->end_polls(); },
  };
}

}  // namespace

TinkerActor spawn_tinker(caf::actor_system& system, TinkerDeps deps) {
  return system.spawn(tinker_actor, std::move(deps));
}

}  // namespace tidemill::actors
