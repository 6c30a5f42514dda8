// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/tuning_routes.hpp"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "actors/deadlines.hpp"
#include "actors/errors.hpp"
#include "actors/gateway/openai/fine_tuning.hpp"

namespace tidemill::actors {
namespace {

using openai::ApiError;
using storage::JobSpec;
using storage::PageQuery;

// The fields of a request that an error of the tuning actor may name.
constexpr std::array<std::string_view, 9> kFields = {
    "model",    "training_file", "validation_file", "suffix",  "seed",
    "metadata", "method",        "hyperparameters", "tidemill"};

ApiError tuning_error(const caf::error& error) {
  const Status status = from_caf_error(error);
  ApiError answer = openai::to_storage_error(status);
  const std::string& message = status.message();
  const std::string path = message.substr(0, message.find(": "));
  const std::string field = path.substr(0, path.find('.'));
  if (std::find(kFields.begin(), kFields.end(), field) != kFields.end() && path != message) {
    answer.param = path;
  }
  return answer;
}

// Asks the tuning actor, and responds with its reply as JSON.
template <class Reply, class Verb, class Argument>
void ask(GatewaySelf self, ExchangeId id, Verb verb, Argument argument) {
  auto handle = self->request(self->state.deps.tuning, kTuningTime, verb, std::move(argument));
  const caf::message_id deadline = handle.id();
  handle.then(
      [self, id, deadline](const Reply& reply) {
        end_deadline(self, deadline);
        respond(self, id, openai::json_response(openai::to_json(reply)));
      },
      [self, id, deadline](const caf::error& error) {
        end_deadline(self, deadline);
        fail(self, id, tuning_error(error));
      });
}

// Asks for a part of a list.
template <class Reply, class Verb>
void ask_page(GatewaySelf self, const HttpRequest& request, Verb verb, const std::string& job,
              std::uint32_t default_limit) {
  auto query = openai::parse_page_query(request.target, job, default_limit);
  if (const auto* error = std::get_if<ApiError>(&query)) {
    fail(self, request.exchange, *error);
    return;
  }
  ask<Reply>(self, request.exchange, verb, std::move(std::get<PageQuery>(query)));
}

constexpr std::uint32_t kDefaultPage = 20;  // OpenAI's defaults
constexpr std::uint32_t kDefaultCheckpoints = 10;

}  // namespace

void list_jobs(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  ask_page<storage::JobPage>(self, request, atom::list_v, "", kDefaultPage);
}

void create_job(GatewaySelf self, HttpRequest& request, const PathArguments& /*arguments*/) {
  work_on_json(self, request, [](const std::string& body) -> NextStep {
    auto spec = openai::parse_job(body);
    if (auto* error = std::get_if<ApiError>(&spec)) {
      return fail_with(std::move(*error));
    }
    return [spec = std::move(std::get<JobSpec>(spec))](GatewaySelf gateway, ExchangeId id) {
      ask<storage::JobRecord>(gateway, id, atom::create_v, spec);
    };
  });
}

void get_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask<storage::JobRecord>(self, request.exchange, atom::get_v, arguments[0]);
}

void cancel_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask<storage::JobRecord>(self, request.exchange, atom::cancel_v, arguments[0]);
}

void pause_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask<storage::JobRecord>(self, request.exchange, atom::pause_v, arguments[0]);
}

void resume_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask<storage::JobRecord>(self, request.exchange, atom::resume_v, arguments[0]);
}

void list_job_events(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask_page<storage::JobEventPage>(self, request, atom::events_v, arguments[0], kDefaultPage);
}

void list_job_checkpoints(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) {
  ask_page<storage::JobCheckpointPage>(self, request, atom::checkpoint_v, arguments[0],
                                       kDefaultCheckpoints);
}

}  // namespace tidemill::actors
