// SPDX-License-Identifier: Apache-2.0
// The gateway actor. An exchange, which is a request and its response, goes through these steps:
//
//   routing      `routes.cpp` has the paths. A handler begins the response.
//   at a port    A port parses the body, renders messages and encodes prompts, or reads and writes
//                files. `worked` ends it, and the step that the work returned follows.
//   generating   The device generates the choices. `tokens` adds to a stream; the replies of the
//                device end the choices, and the last one ends the exchange.
//   asking       The device or the tuning actor replies, which ends the exchange.
//   downloading  The HTTP server sends a part of a file. `sent` has the port read the next one, and
//                the last part ends the exchange.
//
// Each exchange skips the steps that it does not need. If the
// client closes its connection, or a choice fails, the exchange ends, and its other choices are
// cancelled. Replies to them that arrive later are ignored.
#include <utility>
#include <vector>

#include "actors/errors.hpp"
#include "actors/gateway/file_routes.hpp"
#include "actors/gateway/gateway_state.hpp"
#include "actors/gateway/generation.hpp"
#include "actors/gateway/pages/pages.hpp"
#include "actors/gateway/routes.hpp"
#include "actors/tinker/routes.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

using openai::ApiError;

// Ends all exchanges with an error.
void fail_all(GatewaySelf self, const ApiError& error) {
  std::vector<ExchangeId> ids;
  for (const auto& [id, exchange] : self->state.exchanges) {
    ids.push_back(id);
  }
  for (const ExchangeId id : ids) {
    fail(self, id, error);
  }
}

// Refuses a method that no route of the path has.
void refuse_method(GatewaySelf self, ExchangeId id, const std::string& methods) {
  HttpResponse response = openai::to_response({405, "the method must be " + methods});
  response.headers.push_back({"allow", methods});
  respond(self, id, std::move(response));
}

// Returns the error of a path that the server does not have. `missing_key` may be empty.
ApiError nothing_at(std::string_view path, std::string_view missing_key) {
  const std::string why =
      missing_key.empty() ? "" : ": the server was started without " + std::string(missing_key);
  return {404, "there is nothing at " + quote(path) + why};
}

// Passes a request of Tinker's API on. Its exchange is no longer the gateway's.
void on_tinker_request(GatewaySelf self, HttpRequest& request, std::string_view path) {
  if (const auto refused =
          check_any_scope(request, self->state.deps.access, tinker::scopes_of(path))) {
    fail(self, request.exchange, *refused);
    return;
  }
  if (!self->state.deps.tinker) {
    fail(self, request.exchange, nothing_at(path, "serve.checkpoints_path"));
    return;
  }
  const auto exchange = self->state.exchanges.extract(request.exchange);
  self->send(self->state.deps.tinker, atom::request_v, std::move(request),
             exchange.mapped().caller);
}

void on_request(GatewaySelf self, HttpRequest& request) {
  auto& state = self->state;
  const ExchangeId id = request.exchange;
  state.exchanges[id].arrival = state.deps.clock->now();
  state.exchanges[id].caller = caller_of(request, state.deps.access);
  if (const auto refused = check_host_and_origin(request, state.deps.access)) {
    fail(self, id, *refused);
    return;
  }
  if (state.draining) {
    fail(self, id, {503, "the server is shutting down"});
    return;
  }
  if (auto page = pages::respond(request)) {
    respond(self, id, std::move(*page));
    return;
  }
  const std::string_view path = target_path(request.target);
  if (tinker::is_tinker_path(path)) {
    on_tinker_request(self, request, path);
    return;
  }
  const RouteMatch match = find_route(state.deps, request.method, path);
  const auto refused =
      is_open_path(path) ? std::nullopt : check_key(request, state.deps.access, match.scope);
  if (refused.has_value()) {
    fail(self, id, *refused);
  } else if (match.methods.empty()) {
    fail(self, id, nothing_at(path, match.missing_key));
  } else if (match.route == nullptr) {
    refuse_method(self, id, match.methods);
  } else {
    match.route->handle(self, request, match.arguments);
  }
}

void set_limits(GatewayState& state, const GatewayDeps& deps) {
  state.tenancy = tenancy_of(deps.access);
  const GatewayLimits& limits = deps.limits;
  state.pending_choices = {limits.max_choices, state.tenancy};
  state.pending_prompt_bytes = {limits.max_pending_prompt_bytes, state.tenancy};
  state.pending_body_bytes = {limits.max_pending_body_bytes, state.tenancy};
  state.pending_upload_bytes = {limits.max_pending_upload_bytes, state.tenancy};
  state.download_bytes = {limits.max_download_bytes, state.tenancy};
}

GatewayActor::behavior_type gateway(GatewaySelf self, GatewayDeps deps) {
  self->link_to(deps.device);
  self->set_exit_handler([self](const caf::exit_msg& exit) {
    fail_all(self, {500, "the model has failed"});
    self->quit(exit.reason);
  });
  self->state.metrics = deps.metrics;
  set_limits(self->state, deps);
  self->state.to_parse = ParseLanes<ExchangeId>(deps.parse_ports);
  self->state.deps = std::move(deps);
  return {
      [self](atom::tokens, const TokenBatch& batch) { on_tokens(self, batch); },
      [self](atom::request, HttpRequest& request) { on_request(self, request); },
      [self](atom::closed, std::uint64_t exchange) {
        end_exchange(self, exchange);
        if (self->state.deps.tinker) {
          self->send(self->state.deps.tinker, atom::closed_v, exchange);
        }
      },
      [self](atom::worked, std::uint64_t exchange) { on_worked(self, exchange); },
      [self](atom::sent, std::uint64_t exchange) {
        on_file_sent(self, exchange);
        if (self->state.deps.tinker) {
          self->send(self->state.deps.tinker, atom::sent_v, exchange);
        }
      },
      [self](atom::drain) {
        self->state.draining = true;
        self->state.deps.http->stop_accepting();
        if (self->state.deps.tinker) {
          self->send(self->state.deps.tinker, atom::drain_v);
        }
      },
      [self](atom::stop) {
        fail_all(self, {503, "the server has stopped"});
        self->quit();
      },
  };
}

}  // namespace

GatewayActor spawn_gateway(caf::actor_system& system, GatewayDeps deps) {
  return system.spawn(gateway, std::move(deps));
}

}  // namespace tidemill::actors
