// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/model_routes.hpp"

#include <utility>
#include <variant>

#include "actors/deadlines.hpp"
#include "actors/device/job_views.hpp"
#include "actors/errors.hpp"
#include "actors/gateway/generation.hpp"
#include "actors/gateway/openai/generation_call.hpp"
#include "actors/gateway/openai/model_list.hpp"
#include "actors/gateway/tuning_routes.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

using openai::ApiError;
using openai::ApiResult;
using openai::GenerationCall;
using openai::GenerationForm;

constexpr auto kAdapterTime = std::chrono::minutes(5);

// -- adapters and models --------------------------------------------------------------------------

// Asks the device to change or list adapters, and responds with what `make` returns for those that
// clients may see.
template <class Make>
void ask_adapters(GatewaySelf self, ExchangeId id, AdapterRequest request, Make make) {
  self->request(self->state.deps.device, kAdapterTime, atom::adapters_v, std::move(request))
      .then(
          [self, id, make = std::move(make)](AdapterList& list) {
            std::erase_if(list.adapters, [](const engines::LoadedAdapter& adapter) {
              return is_private_adapter(adapter.name);
            });
            respond(self, id, make(self->state, list));
          },
          [self, id](const caf::error& error) {
            fail(self, id, openai::to_api_error(from_caf_error(error)));
          });
}

void change_adapter(GatewaySelf self, ExchangeId id, AdapterRequest request) {
  if (request.name == self->state.deps.model->id) {
    fail(self, id, {400, "lora_name: is the name of the model", "lora_name"});
    return;
  }
  const bool loads = request.action == AdapterAction::kLoad;
  request.created = loads ? self->state.deps.unix_time() : 0;
  const std::string name = request.name;
  ask_adapters(self, id, std::move(request),
               [loads, name](const GatewayState&, const AdapterList&) {
                 return openai::json_response(
                     Json::Object{{"message", std::string(loads ? "loaded " : "unloaded ") +
                                                  "the adapter " + quote(name)}});
               });
}

// Refuses to delete a model that no job has made.
void refuse_deletion(GatewaySelf self, ExchangeId id, const std::string& name) {
  ask_adapters(self, id, {}, [name](const GatewayState& state, const AdapterList& list) {
    const bool is_loaded = openai::model_entry(*state.deps.model, list, name).has_value();
    return openai::to_response(
        is_loaded ? ApiError{400,
                             "the model " + quote(name) +
                                 " is not the result of a fine-tuning job; if it is an adapter "
                                 "that was loaded, unload it with /v1/unload_lora_adapter",
                             "model"}
                  : openai::model_not_found(name, *state.deps.model));
  });
}

// -- parsing at the port --------------------------------------------------------------------------

// Returns the step that goes on with a value, or that fails.
template <class T, class Step>
NextStep step_with(ApiResult<T> result, Step step) {
  if (auto* error = std::get_if<ApiError>(&result)) {
    return fail_with(std::move(*error));
  }
  return [value = std::move(std::get<T>(result)), step](GatewaySelf self, ExchangeId id) mutable {
    step(self, id, std::move(value));
  };
}

NextStep respond_with_json(const ApiResult<Json>& result) {
  const auto* error = std::get_if<ApiError>(&result);
  return error != nullptr ? fail_with(*error)
                          : respond_with(openai::json_response(std::get<Json>(result)));
}

void post_generation(GatewaySelf self, HttpRequest& request, GenerationForm form) {
  work_on_json(self, request,
               [form, model = self->state.deps.model,
                now = self->state.deps.local_time()](const std::string& body) {
                 return step_with(openai::parse_generation(form, body, *model, now), generate);
               });
}

void post_adapter(GatewaySelf self, HttpRequest& request, bool loads) {
  work_on_json(self, request, [loads](const std::string& body) {
    return step_with(openai::parse_adapter_request(body, loads), change_adapter);
  });
}

}  // namespace

// -- routes ---------------------------------------------------------------------------------------

void get_health(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  respond(self, request.exchange, openai::json_response(Json::Object{{"status", "ok"}}));
}

void get_metrics(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  const ExchangeId id = request.exchange;
  // What other tenants do is for administrators only.
  const bool with_tenants =
      self->state.tenancy == Tenancy::kSeveral &&
      !check_key(request, self->state.deps.access, KeyScope::kAdmin).has_value();
  self->request(self->state.deps.device, kAdapterTime, atom::status_v)
      .then(
          [self, id, with_tenants](const DeviceUsage& load) {
            GatewayMetrics& metrics = *self->state.metrics;
            std::string text = metrics.text(load);
            if (with_tenants) {
              text += metrics.tenants_text(self->state.pending_choices.held());
            }
            respond(self, id,
                    {200,
                     {{"content-type", "text/plain; version=0.0.4; charset=utf-8"}},
                     std::move(text)});
          },
          [self, id](const caf::error& error) {
            fail(self, id, openai::to_api_error(from_caf_error(error)));
          });
}

void list_models(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  ask_adapters(self, request.exchange, {}, [](const GatewayState& state, const AdapterList& list) {
    return openai::json_response(openai::model_list(*state.deps.model, list));
  });
}

void get_model(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask_adapters(self, request.exchange, {},
               [name = arguments[0]](const GatewayState& state, const AdapterList& list) {
                 const auto entry = openai::model_entry(*state.deps.model, list, name);
                 return entry.has_value()
                            ? openai::json_response(*entry)
                            : openai::to_response(openai::model_not_found(name, *state.deps.model));
               });
}

void delete_model(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  const ExchangeId id = request.exchange;
  const std::string& name = arguments[0];
  if (name == self->state.deps.model->id) {
    fail(self, id,
         {403, "the model " + quote(name) + " is the served one, and cannot be deleted", "model"});
    return;
  }
  if (!self->state.deps.tuning) {
    refuse_deletion(self, id, name);
    return;
  }
  auto handle = self->request(self->state.deps.tuning, kTuningTime, atom::remove_v, name);
  const caf::message_id deadline = handle.id();
  handle.then(
      [self, id, name, deadline](const storage::JobRecord&) {
        end_deadline(self, deadline);
        respond(self, id, openai::json_response(openai::deleted_model(name)));
      },
      [self, id, name, deadline](const caf::error& error) {
        end_deadline(self, deadline);
        const Status status = from_caf_error(error);
        if (status.code() == Errc::kNotFound) {
          refuse_deletion(self, id, name);
        } else {
          fail(self, id, openai::to_storage_error(status));
        }
      });
}

void post_completion(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  post_generation(self, request, GenerationForm::kCompletion);
}

void post_chat(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  post_generation(self, request, GenerationForm::kChat);
}

void post_tokenize(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  work_on_json(self, request,
               [model = self->state.deps.model,
                now = self->state.deps.local_time()](const std::string& body) {
                 return respond_with_json(openai::tokenize(body, *model, now));
               });
}

void post_detokenize(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  work_on_json(self, request, [model = self->state.deps.model](const std::string& body) {
    return respond_with_json(openai::detokenize(body, *model));
  });
}

void post_load_adapter(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  post_adapter(self, request, true);
}

void post_unload_adapter(GatewaySelf self, HttpRequest& request,
                         const PathArguments& /*arguments*/) {
  post_adapter(self, request, false);
}

}  // namespace tidemill::actors
