// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/service.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/digest.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::tinker {

namespace {

// Returns what a request names of sessions: their ids, and ids that begin with one.
template <class T>
std::vector<std::string> session_ids(const T& call) {
  std::vector<std::string> ids;
  const auto add = [&](const std::string& id) {
    if (!id.empty()) {
      ids.push_back(id);
    }
  };
  if constexpr (requires { call.session_id; }) {
    add(call.session_id);
  }
  if constexpr (requires { call.sampling_session_id; }) {
    add(call.sampling_session_id);
  }
  if constexpr (requires { call.model_id; }) {
    add(call.model_id);
  }
  if constexpr (requires { call.request_id; }) {
    add(call.request_id);
  }
  if constexpr (requires { call.turn.model_id; }) {
    add(call.turn.model_id);
  }
  if constexpr (requires { call.turn->model_id; }) {
    if (call.turn) {
      add(call.turn->model_id);
    }
  }
  return ids;
}

template <class T, class... Others>
constexpr bool kIsOneOf = (std::is_same_v<T, Others> || ...);

// Whether a request may name no session: it is refused anyway, or it concerns the server, the
// caller's list of sessions, or runs and checkpoints, which all tenants share.
template <class T>
constexpr bool kIsOfNoSession =
    kIsOneOf<T, RefusedCall, GetClientConfig, GetDynamicConfig, GetCapabilities, GetHealth,
             AcceptTelemetry, CreateSession, ListSessions, ListRuns, GetRun, ListCheckpoints,
             DeleteCheckpoint, SetTtl, GetWeightsInfo, GetFileUrls, GetFile>;

}  // namespace

Service::Service(ServiceDeps deps)
    : deps_(std::move(deps)),
      futures_(deps_.limits.futures, deps_.respond),
      open_url_grants_(deps_.limits.max_url_grants, deps_.tenancy),
      open_sessions_(deps_.limits.max_sessions, deps_.tenancy),
      open_models_(deps_.limits.max_models, deps_.tenancy),
      model_bytes_(deps_.limits.max_model_bytes, deps_.tenancy),
      running_samples_(deps_.limits.max_samples, deps_.tenancy),
      waiting_bytes_(deps_.limits.max_waiting_bytes, deps_.tenancy) {}

Service::~Service() = default;

std::string future_id(const std::string& owner, std::int64_t seq_id) {
  return owner + ":" + std::to_string(seq_id);
}

void Service::respond(ExchangeId exchange, const Json& body) {
  deps_.respond(exchange, openai::json_response(body));
}

void Service::fail(ExchangeId exchange, const ApiError& error) {
  HttpResponse response = openai::to_response(error);
  if (error.status == 429 || error.status == 503) {
    response.headers.push_back({"retry-after", "1"});
  }
  deps_.respond(exchange, std::move(response));
}

void Service::fail_storage(ExchangeId exchange, const Status& status) {
  ApiError error = openai::to_storage_error(status);
  if (status.code() == Errc::kInvalidArgument) {
    error.status = 500;  // what the client gave has been checked: a call of the file system
  }
  fail(exchange, error);
}

bool Service::require_same_digest(ExchangeId exchange, const char* field,
                                  const std::string& request_id, const std::string& digest) {
  if (!futures_.has_other_digest(request_id, digest)) {
    return true;
  }
  fail(exchange,
       {400, std::string(field) + ": another request has had this number", std::string(field)});
  return false;
}

bool Service::require_base(ExchangeId exchange, const std::string& name) {
  if (name == deps_.base.name) {
    return true;
  }
  fail(exchange,
       {400, "base_model: the server serves " + quote(deps_.base.name) + ", not " + quote(name),
        "base_model"});
  return false;
}

std::string Service::new_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (int part = 0; part < 2; ++part) {
    std::uint64_t bits = deps_.random();
    for (int i = 0; i < 16; ++i, bits >>= 4U) {
      id.push_back(kDigits[bits & 15U]);
    }
  }
  return id;
}

bool Service::is_foreign(const std::string& id, const Caller& caller) const {
  const auto session = sessions_.find(id.substr(0, id.find(':')));
  return session != sessions_.end() && session->second.tenant != caller.tenant;
}

void Service::handle(ExchangeId exchange, Call call, const Caller& caller) {
  const auto ids = std::visit([](const auto& one) { return session_ids(one); }, call);
  const bool needs_session = std::visit(
      [](const auto& one) { return !kIsOfNoSession<std::decay_t<decltype(one)>>; }, call);
  if (ids.empty() && needs_session) {
    fail(exchange, {400, "the request names neither a session nor a model"});
    return;
  }
  for (const std::string& id : ids) {
    if (is_foreign(id, caller)) {
      fail(exchange, {404, "no session, model, sampler or future has the id " + quote(id)});
      return;
    }
    if (const auto session = sessions_.find(id.substr(0, id.find(':')));
        session != sessions_.end()) {
      session->second.last_request = deps_.now();
    }
  }
  std::visit(
      [&](auto& one) {
        if constexpr (requires { on(exchange, one, caller); }) {
          on(exchange, one, caller);
        } else {
          on(exchange, one);
        }
      },
      call);
}

void Service::forget(ExchangeId exchange) {
  futures_.forget(exchange);
  std::erase_if(polls_, [&](const Poll& poll) { return poll.exchange == exchange; });
}

void Service::end_polls_before(TimePoint time) {
  futures_.end_waits(time);
  for (const Poll& poll : std::exchange(polls_, {})) {
    if (poll.until > time) {
      polls_.push_back(poll);
      continue;
    }
    respond(poll.exchange, Json::Object{{"completions", Json::Array()}, {"cursor", poll.previous}});
  }
}

void Service::end_polls() {
  end_polls_before(TimePoint::max());
}

void Service::tick() {
  const TimePoint now = deps_.now();
  end_polls_before(now);
  futures_.drop_expired(now);
  std::vector<std::string> silent;
  for (const auto& [id, session] : sessions_) {
    if (now - session.last_heartbeat > deps_.limits.heartbeat_timeout) {
      silent.push_back(id);
    }
  }
  for (const std::string& id : silent) {
    end_session(id);
  }
  for (auto& [id, model] : models_) {
    const std::int64_t missing = model.queue.next();
    for (const auto& [seq_id, waiting] : model.queue.give_up(now, deps_.limits.turn_timeout)) {
      drop_waiting(model, waiting);
      futures_.complete(future_id(id, seq_id),
                        failed_future("the request before it, with seq_id " +
                                          std::to_string(missing) + ", has not arrived",
                                      FailureCategory::kUser),
                        now);
    }
  }
  drop_expired();
}

// -- what clients ask first -----------------------------------------------------------------------

void Service::on(ExchangeId exchange, const RefusedCall& call) {
  if (call.turn && models_.contains(call.turn->model_id)) {
    enqueue(exchange, *call.turn, call);
  } else {
    fail(exchange, call.error);
  }
}

void Service::on(ExchangeId exchange, const GetClientConfig& /*call*/) {
  respond(exchange, Json::Object{{"pjwt_auth_enabled", false},
                                 {"parallel_fwdbwd_chunks", true},
                                 {"proto_compress_fwdbwd", false},
                                 {"sample_use_retrieve_futures", true},
                                 {"sample_join_sampling_session", true},
                                 {"custom_loss_server_side", false}});
}

void Service::on(ExchangeId exchange, const GetDynamicConfig& /*call*/) {
  respond(exchange, Json::Object{{"refresh_interval_sec", 300}, {"sample_cancel_enabled", true}});
}

void Service::on(ExchangeId exchange, const GetCapabilities& /*call*/) {
  respond(exchange,
          Json::Object{{"supported_models",
                        Json::Array{Json::Object{{"model_name", deps_.base.name},
                                                 {"max_context_length", deps_.base.max_positions},
                                                 {"trainable", true},
                                                 {"sampleable", true}}}}});
}

void Service::on(ExchangeId exchange, const GetHealth& /*call*/) {
  respond(exchange, Json::Object{{"status", "ok"}});
}

void Service::on(ExchangeId exchange, const AcceptTelemetry& /*call*/) {
  respond(exchange, Json::Object{{"status", "accepted"}});
}

// -- sessions -------------------------------------------------------------------------------------

Service::Session* Service::find_session(ExchangeId exchange, const std::string& id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) {
    fail(exchange, {410, "session_id: the session " + quote(id) + " has ended", "session_id"});
    return nullptr;
  }
  return &found->second;
}

void Service::on(ExchangeId exchange, CreateSession& call, const Caller& caller) {
  if (!open_sessions_.fits(caller.tenant, 1)) {
    fail(exchange,
         {429,
          "too many sessions are open for this tenant or on the server; finish one and try "
          "again"});
    return;
  }
  open_sessions_.take(caller.tenant, 1);
  const std::string id = new_id();
  Session& session = sessions_[id];
  session.description = std::move(call);
  session.tenant = caller.tenant;
  session.last_heartbeat = deps_.now();
  session.last_request = deps_.now();
  respond(exchange, Json::Object{{"type", "create_session"}, {"session_id", id}});
}

void Service::on(ExchangeId exchange, const Heartbeat& call) {
  if (Session* session = find_session(exchange, call.session_id)) {
    session->last_heartbeat = deps_.now();
    respond(exchange, Json::Object{{"type", "session_heartbeat"}});
  }
}

void Service::on(ExchangeId exchange, const FinishSession& call, const Caller& caller) {
  if (const Session* session = find_session(exchange, call.session_id)) {
    if (!session->models.empty() && !caller.may_tune) {
      fail(exchange, {403, "the key does not have the scope \"tune\", and the session has models"});
      return;
    }
    end_session(call.session_id);
    respond(exchange, Json::Object());
  }
}

void Service::end_session(const std::string& id) {
  const auto found = sessions_.find(id);
  const Session session = std::move(found->second);
  sessions_.erase(found);
  open_sessions_.give_back(session.tenant, 1);
  for (const std::string& model : session.models) {
    end_model(model);
  }
  for (const std::string& sampler : session.samplers) {
    end_sampler(sampler);
  }
  futures_.drop_session(id);
}

void Service::on(ExchangeId exchange, const GetSession& call) {
  const Session* session = find_session(exchange, call.session_id);
  if (session == nullptr) {
    return;
  }
  Json::Object metadata;
  for (const auto& [name, value] : session->description.user_metadata) {
    metadata.push_back({name, value});
  }
  respond(exchange,
          Json::Object{
              {"training_run_ids", Json::Array(session->models.begin(), session->models.end())},
              {"sampler_ids", Json::Array(session->samplers.begin(), session->samplers.end())},
              {"user_metadata", std::move(metadata)},
              {"display_name", session->description.display_name}});
}

void Service::on(ExchangeId exchange, const ListSessions& call, const Caller& caller) {
  Json::Array ids;
  std::int64_t index = 0;
  for (const auto& [id, session] : sessions_) {
    if (session.tenant != caller.tenant) {
      continue;
    }
    if (index >= call.page.offset && index < call.page.offset + call.page.limit) {
      ids.emplace_back(id);
    }
    ++index;
  }
  respond(exchange, Json::Object{{"sessions", std::move(ids)}});
}

void Service::on(ExchangeId exchange, const RetrieveFuture& call) {
  futures_.poll(call.request_id, exchange, deps_.now());
}

}  // namespace tidemill::actors::tinker
