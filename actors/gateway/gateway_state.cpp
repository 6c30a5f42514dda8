// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/gateway_state.hpp"

#include <utility>

namespace tidemill::actors {
namespace {

using openai::ApiError;

// Whether the Content-Type of a request is JSON. A page of another origin can send other types
// without being asked by the browser first.
bool is_json(const HttpRequest& request) {
  const std::string type = lower_case(request.header("content-type").value_or(""));
  constexpr std::string_view kJson = "application/json";
  return type.starts_with(kJson) &&
         (type.size() == kJson.size() || type[kJson.size()] == ';' || type[kJson.size()] == ' ');
}

FairLimit& pending_bytes(GatewayState& state, BodyKind kind) {
  return kind == BodyKind::kUpload ? state.pending_upload_bytes : state.pending_body_bytes;
}

void run_at(GatewaySelf self, WorkPort& port, ExchangeId id) {
  port.run(
      [work = self->state.work.at(id)] {
        if (!work->abandoned) {
          work->next = work->function(work->body);
        }
        work->body = std::string();
        work->function = nullptr;
        return Duration::zero();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v, id));
}

void parse_next(GatewaySelf self, ParseLane lane) {
  self->state.to_parse.start(lane,
                             [self](WorkPort& port, ExchangeId id) { run_at(self, port, id); });
}

// Submits work to a port, unless the bodies of all requests are too large.
void submit(GatewaySelf self, ExchangeId id, BodyKind kind, std::string body,
            PortFunction function) {
  auto& state = self->state;
  const std::string& tenant = state.exchanges.at(id).caller.tenant;
  FairLimit& pending = pending_bytes(state, kind);
  if (!pending.fits(tenant, body.size())) {
    refuse_too_many(self, id);
    return;
  }
  const auto work = std::make_shared<GatewayWork>();
  work->kind = kind;
  work->tenant = tenant;
  work->body_bytes = body.size();
  work->lane = lane_of_json(body);
  work->body = std::move(body);
  work->function = std::move(function);
  pending.take(tenant, work->body_bytes);
  state.work.emplace(id, work);
  if (kind == BodyKind::kUpload) {
    run_at(self, *state.deps.file_port, id);
  } else {
    state.to_parse.push(work->lane, tenant, work->body_bytes, id);
    parse_next(self, work->lane);
  }
}

}  // namespace

void refuse_too_many(GatewaySelf self, ExchangeId id) {
  auto& state = self->state;
  state.metrics->on_refused(state.exchanges.at(id).caller.tenant);
  fail(self, id,
       {429,
        state.tenancy == Tenancy::kOne
            ? "too many requests are pending on the server; try again later"
            : "too many requests are pending for this tenant or on the server; try again later",
        "", "too_many_requests"});
}

bool forget_choice(GatewayState& state, SampleId sample) {
  const auto found = state.choices.find(sample);
  if (found == state.choices.end()) {
    return false;
  }
  const std::string& tenant = state.exchanges.at(found->second.exchange).caller.tenant;
  state.pending_choices.give_back(tenant, 1);
  state.pending_prompt_bytes.give_back(tenant, prompt_bytes(found->second.prompt_tokens));
  state.choices.erase(found);
  return true;
}

void end_exchange(GatewaySelf self, ExchangeId id) {
  auto& state = self->state;
  const auto found = state.exchanges.find(id);
  if (found == state.exchanges.end()) {
    return;
  }
  for (const SampleId choice : found->second.choices) {
    if (forget_choice(state, choice)) {
      self->send(state.deps.device, atom::cancel_v, choice);
    }
  }
  if (const auto work = state.work.find(id); work != state.work.end()) {
    work->second->abandoned = true;  // its body counts until the port has come to it
  }
  state.download_bytes.give_back(found->second.caller.tenant, found->second.download_bytes);
  state.exchanges.erase(found);
}

void respond(GatewaySelf self, ExchangeId id, HttpResponse response) {
  if (response.status >= 400) {
    self->state.metrics->on_error(response.status);
  }
  self->state.deps.http->respond(id, std::move(response));
  end_exchange(self, id);
}

void fail(GatewaySelf self, ExchangeId id, const ApiError& error) {
  auto& state = self->state;
  const auto found = state.exchanges.find(id);
  if (found != state.exchanges.end() && found->second.download.has_value()) {
    state.metrics->on_error(error.status);
    state.deps.http->end(id);  // the body is too short, so the connection is closed
    end_exchange(self, id);
    return;
  }
  if (found != state.exchanges.end() && found->second.streaming) {
    state.metrics->on_error(error.status);
    state.deps.http->write(id, openai::ResponseBuilder::error_events(error));
    state.deps.http->end(id);
    end_exchange(self, id);
    return;
  }
  HttpResponse response = openai::to_response(error);
  if (error.status == 429 || error.status == 503) {
    response.headers.push_back({"retry-after", "1"});
  }
  if (error.status == 507) {
    response.headers.push_back({"x-should-retry", "false"});  // OpenAI's clients read it
  }
  respond(self, id, std::move(response));
}

NextStep respond_with(HttpResponse response) {
  return [response = std::move(response)](GatewaySelf self, ExchangeId id) mutable {
    respond(self, id, std::move(response));
  };
}

NextStep fail_with(ApiError error) {
  return [error = std::move(error)](GatewaySelf self, ExchangeId id) { fail(self, id, error); };
}

void work_on_json(GatewaySelf self, HttpRequest& request, PortFunction function) {
  if (!is_json(request)) {
    fail(self, request.exchange, {415, "the Content-Type must be application/json"});
    return;
  }
  submit(self, request.exchange, BodyKind::kJson, std::move(request.body), std::move(function));
}

void work_on_files(GatewaySelf self, HttpRequest& request, PortFunction function) {
  submit(self, request.exchange, BodyKind::kUpload, std::move(request.body), std::move(function));
}

void work_on_files(GatewaySelf self, ExchangeId id, std::function<NextStep()> function) {
  submit(self, id, BodyKind::kUpload, {},
         [function = std::move(function)](std::string& /*body*/) { return function(); });
}

void on_worked(GatewaySelf self, ExchangeId id) {
  auto& state = self->state;
  const auto found = state.work.find(id);
  const std::shared_ptr<GatewayWork> work = std::move(found->second);
  state.work.erase(found);
  pending_bytes(state, work->kind).give_back(work->tenant, work->body_bytes);
  if (work->kind == BodyKind::kJson) {
    state.to_parse.end(work->lane);
    parse_next(self, work->lane);
  }
  if (state.exchanges.contains(id)) {  // else closed meanwhile
    work->next(self, id);
  }
}

}  // namespace tidemill::actors
