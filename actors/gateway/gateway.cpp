// SPDX-License-Identifier: Apache-2.0
// The gateway actor. An exchange, which is a request and its response, goes through these steps:
//
//   parsing     The port parses the body, renders messages and encodes prompts. `worked` ends it.
//   generating  The device generates the choices. `tokens` adds to a stream; the replies of the
//               device end the choices, and the last one ends the exchange.
//
// Requests without a body to parse are answered at once, or when the device has replied. If the
// client closes its connection, or a choice fails, the exchange ends, and its other choices are
// cancelled. Replies to them that arrive later are ignored.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include <caf/all.hpp>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/gateway/gateway_metrics.hpp"
#include "actors/gateway/openai/model_list.hpp"
#include "actors/gateway/openai/response_builder.hpp"
#include "actors/gateway/spawn.hpp"
#include "actors/tinker/routes.hpp"
#include "base/random.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

using engines::RolloutRequest;
using engines::RolloutResult;
using openai::ApiError;
using openai::GenerationCall;
using openai::GenerationForm;
using openai::ResponseBuilder;

// How long a response may take, waiting included. Clients have shorter deadlines of their own.
constexpr auto kResponseTime = std::chrono::seconds(24 * 60 * 60);
constexpr auto kAdapterTime = std::chrono::minutes(5);

// What the port makes of a request.
using Parsed = std::variant<GenerationCall, HttpResponse, AdapterRequest, ApiError>;
using Parse = Parsed (*)(const std::string& body, const ServedModel& model, const std::string& now);

// A request at the port.
struct ParseWork {
  std::string body;                     // freed by the work
  std::atomic<bool> abandoned = false;  // the exchange has ended
  std::optional<Parsed> parsed;         // written by the work
  std::size_t body_bytes = 0;
};

struct Exchange {
  TimePoint arrival{};
  std::optional<ResponseBuilder> response;  // while generating
  std::vector<SampleId> choices;            // their ids
  bool streaming = false;                   // the head of the response has been sent
};

// A choice that is generated.
struct Choice {
  ExchangeId exchange = 0;
  std::size_t index = 0;
  std::size_t prompt_tokens = 0;
  TimePoint last_token{};  // or, before the first token, the arrival of the request
  bool has_token = false;
};

struct GatewayState {
  static inline const char* name = "gateway";
  GatewayState() = default;  // not an aggregate: CAF would build it from `self`

  GatewayDeps deps;
  std::map<ExchangeId, Exchange> exchanges;
  std::map<ExchangeId, std::shared_ptr<ParseWork>> parsing;
  std::map<SampleId, Choice> choices;
  std::unique_ptr<GatewayMetrics> metrics;
  std::uint64_t last_sample = 0;
  std::size_t pending_body_bytes = 0;  // of all exchanges
  bool draining = false;
};

using Self = GatewayActor::stateful_pointer<GatewayState>;

// -- the end of an exchange -----------------------------------------------------------------------

// Forgets an exchange and cancels what is generated for it.
void end_exchange(Self self, ExchangeId id) {
  auto& state = self->state;
  const auto found = state.exchanges.find(id);
  if (found == state.exchanges.end()) {
    return;
  }
  for (const SampleId choice : found->second.choices) {
    if (state.choices.erase(choice) > 0) {
      self->send(state.deps.device, atom::cancel_v, choice);
    }
  }
  if (const auto work = state.parsing.find(id); work != state.parsing.end()) {
    work->second->abandoned = true;  // its body counts until the port has come to it
  }
  state.exchanges.erase(found);
}

void respond(Self self, ExchangeId id, HttpResponse response) {
  if (response.status >= 400) {
    self->state.metrics->on_error(response.status);
  }
  self->state.deps.http->respond(id, std::move(response));
  end_exchange(self, id);
}

void fail(Self self, ExchangeId id, const ApiError& error) {
  auto& state = self->state;
  const auto found = state.exchanges.find(id);
  if (found != state.exchanges.end() && found->second.streaming) {
    state.metrics->on_error(error.status);
    state.deps.http->write(id, ResponseBuilder::error_events(error));
    state.deps.http->end(id);
    end_exchange(self, id);
    return;
  }
  HttpResponse response = openai::to_response(error);
  if (error.status == 429 || error.status == 503) {
    response.headers.push_back({"retry-after", "1"});
  }
  respond(self, id, std::move(response));
}

// -- generation -----------------------------------------------------------------------------------

// Sends the events of a stream, after its head.
void send_events(Self self, ExchangeId id, Exchange& exchange, std::string events) {
  HttpServer& http = *self->state.deps.http;
  if (!exchange.streaming) {
    exchange.streaming = true;
    http.start_stream(
        id, {200,
             {{"content-type", "text/event-stream; charset=utf-8"}, {"cache-control", "no-cache"}},
             exchange.response->begin() + events});
  } else if (!events.empty()) {
    http.write(id, std::move(events));
  }
}

void on_tokens(Self self, const TokenBatch& batch) {
  auto& state = self->state;
  const TimePoint now = state.deps.clock->now();
  for (const TokenEvent& event : batch.events) {
    const auto found = state.choices.find(event.id);
    if (found == state.choices.end()) {
      continue;  // cancelled
    }
    Choice& choice = found->second;
    choice.has_token ? state.metrics->on_next_token(now - choice.last_token)
                     : state.metrics->on_first_token(now - choice.last_token);
    choice.has_token = true;
    choice.last_token = now;
    Exchange& exchange = state.exchanges.at(choice.exchange);
    std::string events = exchange.response->on_tokens(choice.index, event);
    if (exchange.response->call().stream) {
      send_events(self, choice.exchange, exchange, std::move(events));
    }
  }
}

ApiError generation_error(const Status& status, const GenerationCall& call) {
  if (status.code() == Errc::kNotFound) {
    return openai::model_not_found(call.model);
  }
  // The engine names the sample, which is not known to clients.
  const std::string& message = status.message();
  return openai::to_api_error({status.code(), message.substr(0, message.rfind(" sample_id="))});
}

// Ends all exchanges with an error.
void fail_all(Self self, const ApiError& error) {
  std::vector<ExchangeId> ids;
  for (const auto& [id, exchange] : self->state.exchanges) {
    ids.push_back(id);
  }
  for (const ExchangeId id : ids) {
    fail(self, id, error);
  }
}

void on_result(Self self, SampleId sample, const RolloutResult& result) {
  auto& state = self->state;
  const auto choice = state.choices.find(sample);
  if (choice == state.choices.end()) {
    return;  // cancelled
  }
  const auto [id, index, prompt_tokens, last_token, has_token] = choice->second;
  state.choices.erase(choice);
  Exchange& exchange = state.exchanges.at(id);
  if (result.finish_reason == engines::FinishReason::kFailed) {
    fail(self, id, {500, result.error});
    return;
  }
  if (result.finish_reason == engines::FinishReason::kCancelled) {
    fail(self, id, {503, "the request was cancelled"});
    return;
  }
  state.metrics->on_response(result, prompt_tokens, state.deps.clock->now() - exchange.arrival);
  ResponseBuilder& built = *exchange.response;
  std::string events = built.on_result(index, result);
  if (built.call().stream) {
    events += built.complete() ? built.end_stream() : "";
    send_events(self, id, exchange, std::move(events));
    if (built.complete()) {
      state.deps.http->end(id);
      end_exchange(self, id);
    }
  } else if (built.complete()) {
    respond(self, id, openai::json_response(built.body()));
  }
}

void request_choice(Self self, RolloutRequest request) {
  const SampleId sample = request.id;
  auto handle =
      self->request(self->state.deps.device, kResponseTime, atom::stream_v, std::move(request));
  const caf::message_id deadline = handle.id();
  handle.then(
      [self, sample, deadline](const RolloutResult& result) {
        end_deadline(self, deadline);
        on_result(self, sample, result);
      },
      [self, sample, deadline](const caf::error& error) {
        end_deadline(self, deadline);
        const auto choice = self->state.choices.find(sample);
        if (choice != self->state.choices.end()) {
          const ExchangeId id = choice->second.exchange;
          const GenerationCall call = self->state.exchanges.at(id).response->call();
          fail(self, id, generation_error(from_caf_error(error), call));
        }
      });
}

void generate(Self self, ExchangeId id, GenerationCall call) {
  auto& state = self->state;
  Exchange& exchange = state.exchanges.at(id);
  const std::size_t count = call.num_choices();
  if (state.choices.size() + count > state.deps.limits.max_choices) {
    fail(self, id, {429, "the server has too many requests", "", "too_many_requests"});
    return;
  }
  const ServedModel& model = *state.deps.model;
  const std::string name =
      (call.form == GenerationForm::kChat ? "chatcmpl-" : "cmpl-") + std::to_string(id);
  exchange.response.emplace(std::move(call), model, name, state.deps.unix_time());
  // A choice that fails at once must not end the exchange while others are added.
  std::vector<RolloutRequest> requests;
  const GenerationCall& kept = exchange.response->call();
  for (std::size_t i = 0; i < count; ++i) {
    RolloutRequest request = kept.settings;
    request.id = SampleId{++state.last_sample};
    request.prompt_ids = kept.prompts[i / static_cast<std::size_t>(kept.num_per_prompt)].ids;
    request.adapter = kept.model == model.id ? "" : kept.model;
    request.seed = kept.seed.value_or(keyed_bits(state.deps.seed, id, 0));
    request.draw_key = static_cast<std::uint64_t>(i);
    exchange.choices.push_back(request.id);
    state.choices.emplace(request.id,
                          Choice{id, i, request.prompt_ids.size(), exchange.arrival, false});
    requests.push_back(std::move(request));
  }
  for (RolloutRequest& request : requests) {
    request_choice(self, std::move(request));
  }
}

// -- adapters and models --------------------------------------------------------------------------

// Asks the device to change or list adapters, and responds with what `make` returns.
template <class Make>
void ask_adapters(Self self, ExchangeId id, AdapterRequest request, Make make) {
  self->request(self->state.deps.device, kAdapterTime, atom::adapters_v, std::move(request))
      .then([self, id, make = std::move(make)](
                const AdapterList& list) { respond(self, id, make(self->state, list)); },
            [self, id](const caf::error& error) {
              fail(self, id, openai::to_api_error(from_caf_error(error)));
            });
}

void change_adapter(Self self, ExchangeId id, AdapterRequest request) {
  if (request.name == self->state.deps.model->id) {
    fail(self, id, {400, "lora_name: is the name of the model", "lora_name"});
    return;
  }
  const bool loads = request.action == AdapterAction::kLoad;
  const std::string name = request.name;
  ask_adapters(self, id, std::move(request),
               [loads, name](const GatewayState&, const AdapterList&) {
                 return openai::json_response(
                     Json::Object{{"message", std::string(loads ? "loaded " : "unloaded ") +
                                                  "the adapter " + quote(name)}});
               });
}

// -- requests -------------------------------------------------------------------------------------

template <class T>
Parsed to_parsed(openai::ApiResult<T> result) {
  return std::visit([](auto& value) -> Parsed { return std::move(value); }, result);
}

Parsed to_parsed(openai::ApiResult<Json> result) {
  if (auto* error = std::get_if<ApiError>(&result)) {
    return std::move(*error);
  }
  return openai::json_response(std::get<Json>(result));
}

Parsed parse_completion(const std::string& body, const ServedModel& model, const std::string& now) {
  return to_parsed(openai::parse_generation(GenerationForm::kCompletion, body, model, now));
}
Parsed parse_chat(const std::string& body, const ServedModel& model, const std::string& now) {
  return to_parsed(openai::parse_generation(GenerationForm::kChat, body, model, now));
}
Parsed parse_tokenize(const std::string& body, const ServedModel& model, const std::string& now) {
  return to_parsed(openai::tokenize(body, model, now));
}
Parsed parse_detokenize(const std::string& body, const ServedModel& model,
                        const std::string& /*now*/) {
  return to_parsed(openai::detokenize(body, model));
}
Parsed parse_load(const std::string& body, const ServedModel& /*model*/,
                  const std::string& /*now*/) {
  return to_parsed(openai::parse_adapter_request(body, true));
}
Parsed parse_unload(const std::string& body, const ServedModel& /*model*/,
                    const std::string& /*now*/) {
  return to_parsed(openai::parse_adapter_request(body, false));
}

// The paths that take a POST request with a JSON body.
struct PostRoute {
  std::string_view path;
  Parse parse;
  KeyScope scope = KeyScope::kInfer;
};
constexpr std::array kPostRoutes = std::to_array<PostRoute>({
    {"/v1/completions", parse_completion},
    {"/v1/chat/completions", parse_chat},
    {"/tokenize", parse_tokenize},
    {"/detokenize", parse_detokenize},
    {"/v1/load_lora_adapter", parse_load, KeyScope::kAdmin},
    {"/v1/unload_lora_adapter", parse_unload, KeyScope::kAdmin},
});

constexpr std::string_view kModelPrefix = "/v1/models/";

bool is_get_path(std::string_view path) {
  return path == "/health" || path == "/metrics" || path == "/v1/models" ||
         path.starts_with(kModelPrefix);
}

void get_metrics(Self self, ExchangeId id) {
  self->request(self->state.deps.device, kAdapterTime, atom::status_v)
      .then(
          [self, id](const DeviceUsage& load) {
            respond(self, id,
                    {200,
                     {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                     self->state.metrics->text(load)});
          },
          [self, id](const caf::error& error) {
            fail(self, id, openai::to_api_error(from_caf_error(error)));
          });
}

void get(Self self, ExchangeId id, std::string_view path) {
  if (path == "/health") {
    respond(self, id, openai::json_response(Json::Object{{"status", "ok"}}));
  } else if (path == "/metrics") {
    get_metrics(self, id);
  } else if (path == "/v1/models") {
    ask_adapters(self, id, {}, [](const GatewayState& state, const AdapterList& list) {
      return openai::json_response(openai::model_list(*state.deps.model, list));
    });
  } else {
    const std::string name = decode_path(path.substr(kModelPrefix.size())).value_or("");
    ask_adapters(self, id, {}, [name](const GatewayState& state, const AdapterList& list) {
      const auto entry = openai::model_entry(*state.deps.model, list, name);
      return entry.has_value() ? openai::json_response(*entry)
                               : openai::to_response(openai::model_not_found(name));
    });
  }
}

// Whether the Content-Type of a request is JSON. A page of another origin can send other types
// without being asked by the browser first.
bool is_json(const HttpRequest& request) {
  const std::string type = lower_case(request.header("content-type").value_or(""));
  constexpr std::string_view kJson = "application/json";
  return type.starts_with(kJson) &&
         (type.size() == kJson.size() || type[kJson.size()] == ';' || type[kJson.size()] == ' ');
}

void post(Self self, HttpRequest& request, Parse parse) {
  auto& state = self->state;
  const ExchangeId id = request.exchange;
  if (!is_json(request)) {
    fail(self, id, {415, "the Content-Type must be application/json"});
    return;
  }
  if (state.pending_body_bytes + request.body.size() > state.deps.limits.max_pending_body_bytes) {
    fail(self, id, {429, "the server has too many requests", "", "too_many_requests"});
    return;
  }
  const auto work = std::make_shared<ParseWork>();
  work->body_bytes = request.body.size();
  work->body = std::move(request.body);
  state.pending_body_bytes += work->body_bytes;
  state.parsing.emplace(id, work);
  state.deps.parse_port->run(
      [work, model = state.deps.model, now = state.deps.local_time(), parse] {
        if (!work->abandoned) {
          work->parsed = parse(work->body, *model, now);
        }
        work->body = std::string();
        return Duration::zero();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v, id));
}

void on_parsed(Self self, ExchangeId id) {
  auto& state = self->state;
  const auto found = state.parsing.find(id);
  const std::shared_ptr<ParseWork> work = std::move(found->second);
  state.parsing.erase(found);
  state.pending_body_bytes -= work->body_bytes;
  if (!state.exchanges.contains(id)) {
    return;  // closed meanwhile
  }
  Parsed& parsed = *work->parsed;
  if (auto* call = std::get_if<GenerationCall>(&parsed)) {
    generate(self, id, std::move(*call));
  } else if (auto* response = std::get_if<HttpResponse>(&parsed)) {
    respond(self, id, std::move(*response));
  } else if (auto* change = std::get_if<AdapterRequest>(&parsed)) {
    change_adapter(self, id, std::move(*change));
  } else {
    fail(self, id, std::get<ApiError>(parsed));
  }
}

// Passes a request of Tinker's API on. Its exchange is no longer the gateway's.
void pass_on(Self self, HttpRequest& request, std::string_view path) {
  if (const auto refused =
          check_any_scope(request, self->state.deps.access, tinker::scopes_of(path))) {
    fail(self, request.exchange, *refused);
    return;
  }
  self->state.exchanges.erase(request.exchange);
  self->send(self->state.deps.tinker, atom::request_v, std::move(request));
}

void on_request(Self self, HttpRequest& request) {
  auto& state = self->state;
  const ExchangeId id = request.exchange;
  state.exchanges[id].arrival = state.deps.clock->now();
  if (const auto refused = check_host_and_origin(request, state.deps.access)) {
    fail(self, id, *refused);
    return;
  }
  if (state.draining) {
    fail(self, id, {503, "the server is shutting down"});
    return;
  }
  const std::string_view path = target_path(request.target);
  if (state.deps.tinker && tinker::is_tinker_path(path)) {
    pass_on(self, request, path);
    return;
  }
  const auto route = std::find_if(kPostRoutes.begin(), kPostRoutes.end(),
                                  [&](const PostRoute& one) { return one.path == path; });
  const bool is_get = is_get_path(path);
  const KeyScope scope = route == kPostRoutes.end() ? KeyScope::kInfer : route->scope;
  const auto refused =
      is_open_path(path) ? std::nullopt : check_key(request, state.deps.access, scope);
  if (refused.has_value()) {
    fail(self, id, *refused);
  } else if (route == kPostRoutes.end() && !is_get) {
    fail(self, id, {404, "there is nothing at " + quote(path)});
  } else if (request.method != (is_get ? "GET" : "POST")) {
    HttpResponse response =
        openai::to_response({405, std::string("the method must be ") + (is_get ? "GET" : "POST")});
    response.headers.push_back({"allow", is_get ? "GET" : "POST"});
    respond(self, id, std::move(response));
  } else if (is_get) {
    get(self, id, path);
  } else {
    post(self, request, route->parse);
  }
}

GatewayActor::behavior_type gateway(Self self, GatewayDeps deps) {
  self->link_to(deps.device);
  self->set_exit_handler([self](const caf::exit_msg& exit) {
    fail_all(self, {500, "the model has failed"});
    self->quit(exit.reason);
  });
  self->state.metrics = std::make_unique<GatewayMetrics>(deps.model->id);
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
      [self](atom::worked, std::uint64_t exchange) { on_parsed(self, exchange); },
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
