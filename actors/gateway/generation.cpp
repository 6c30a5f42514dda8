// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/generation.hpp"

#include <utility>

#include "actors/deadlines.hpp"
#include "actors/device/job_views.hpp"
#include "actors/errors.hpp"
#include "actors/gateway/openai/model_list.hpp"
#include "base/random.hpp"

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

// Sends the events of a stream, after its head.
void send_events(GatewaySelf self, ExchangeId id, Exchange& exchange, std::string events) {
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

ApiError generation_error(const Status& status, const GenerationCall& call,
                          const ServedModel& served) {
  if (status.code() == Errc::kNotFound) {
    return openai::model_not_found(call.model, served);
  }
  // The engine names the sample, which is not known to clients.
  const std::string& message = status.message();
  return openai::to_api_error({status.code(), message.substr(0, message.rfind(" sample_id="))});
}

void on_result(GatewaySelf self, SampleId sample, const RolloutResult& result) {
  auto& state = self->state;
  const auto choice = state.choices.find(sample);
  if (choice == state.choices.end()) {
    return;  // cancelled
  }
  const auto [id, index, prompt_tokens, last_token, has_token] = choice->second;
  forget_choice(state, sample);
  Exchange& exchange = state.exchanges.at(id);
  if (result.finish_reason == engines::FinishReason::kFailed) {
    fail(self, id, {500, result.error});
    return;
  }
  if (result.finish_reason == engines::FinishReason::kCancelled) {
    fail(self, id, {503, "the request was cancelled"});
    return;
  }
  state.metrics->on_response(result, prompt_tokens, state.deps.clock->now() - exchange.arrival,
                             exchange.caller.tenant);
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

void request_choice(GatewaySelf self, RolloutRequest request) {
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
          fail(self, id, generation_error(from_caf_error(error), call, *self->state.deps.model));
        }
      });
}

// Returns the bytes of the token ids of the prompts of all choices.
std::size_t prompt_bytes_of(const GenerationCall& call) {
  std::size_t tokens = 0;
  for (const openai::Prompt& prompt : call.prompts) {
    tokens += prompt.ids.size();
  }
  return prompt_bytes(tokens * static_cast<std::size_t>(call.num_per_prompt));
}

}  // namespace

void on_tokens(GatewaySelf self, const TokenBatch& batch) {
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

void generate(GatewaySelf self, ExchangeId id, GenerationCall call) {
  auto& state = self->state;
  Exchange& exchange = state.exchanges.at(id);
  const std::string& tenant = exchange.caller.tenant;
  const std::size_t count = call.num_choices();
  const std::size_t bytes = prompt_bytes_of(call);
  if (!state.pending_choices.fits(tenant, count) ||
      !state.pending_prompt_bytes.fits(tenant, bytes)) {
    refuse_too_many(self, id);
    return;
  }
  if (is_private_adapter(call.model)) {
    fail(self, id, openai::model_not_found(call.model, *state.deps.model));
    return;
  }
  const ServedModel& model = *state.deps.model;
  const std::string name =
      (call.form == GenerationForm::kChat ? "chatcmpl-" : "cmpl-") + std::to_string(id);
  exchange.response.emplace(std::move(call), model, name, state.deps.unix_time());
  state.pending_choices.take(tenant, count);
  state.pending_prompt_bytes.take(tenant, bytes);
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
    exchange.caller.sign(request);
    exchange.choices.push_back(request.id);
    state.choices.emplace(request.id,
                          Choice{id, i, request.prompt_ids.size(), exchange.arrival, false});
    requests.push_back(std::move(request));
  }
  for (RolloutRequest& request : requests) {
    request_choice(self, std::move(request));
  }
}

}  // namespace tidemill::actors
