// SPDX-License-Identifier: Apache-2.0
#include "actors/tinker/routes.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/digest.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::tinker {
namespace {

constexpr std::string_view kPrefix = "/api/v1/";
constexpr std::int64_t kMaxPage = 1000;

constexpr std::array kTune = {KeyScope::kTune};
constexpr std::array kAny = {KeyScope::kInfer, KeyScope::kTune};

// The parts of a path below the prefix.
using Parts = std::vector<std::string>;

Parts split(std::string_view path) {
  Parts parts;
  while (true) {
    const std::size_t slash = path.find('/');
    parts.push_back(decode_path(path.substr(0, slash)).value_or(""));
    if (slash == std::string_view::npos) {
      return parts;
    }
    path.remove_prefix(slash + 1);
  }
}

// What a handler of a route gets.
struct Request {
  const HttpRequest& http;
  const Parts& parts;
  const ModelLimits& model;
};

Call refuse(std::uint32_t status, std::string message, std::string param = {}) {
  return RefusedCall{{status, std::move(message), std::move(param)}, std::nullopt};
}

template <class T>
Call to_call(CallResult<T> result) {
  return std::visit([](auto& value) -> Call { return std::move(value); }, result);
}

// Makes a call of the one name in a body.
template <class T>
Call named(std::string_view name, const Request& request) {
  CallResult<std::string> result = read_name(name, request.http.body);
  if (auto* refused = std::get_if<RefusedCall>(&result)) {
    return std::move(*refused);
  }
  return T{std::get<std::string>(std::move(result))};
}

template <class T>
Call with_page(const Request& request, T call) {
  for (const auto& [name, value] :
       {std::pair("limit", &call.page.limit), std::pair("offset", &call.page.offset)}) {
    const std::optional<std::string> text = query_parameter(request.http.target, name);
    if (!text) {
      continue;
    }
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *value);
    if (error != std::errc() || end != text->data() + text->size() || *value < 0) {
      return refuse(400, std::string(name) + ": must be an integer of at least 0", name);
    }
  }
  call.page.limit = std::min(call.page.limit, kMaxPage);
  return call;
}

// Makes a call of the checkpoint that parts 1 to 4 name: RUN/checkpoints/KIND/NAME.
template <class Make>
Call of_checkpoint(const Request& request, Make make) {
  const Parts& parts = request.parts;
  Result<CheckpointPath> path =
      parse_checkpoint_path("tinker://" + parts[1] + "/" + parts[3] + "/" + parts[4]);
  if (!path.ok()) {
    return refuse(404, "there is no checkpoint of this path");
  }
  return make(std::move(path).value());
}

Call set_ttl(const Request& request) {
  CallResult<std::optional<std::int64_t>> ttl = read_ttl(request.http.body);
  if (auto* refused = std::get_if<RefusedCall>(&ttl)) {
    return std::move(*refused);
  }
  return of_checkpoint(request, [&](CheckpointPath path) -> Call {
    return SetTtl{std::move(path), std::get<std::optional<std::int64_t>>(ttl)};
  });
}

Call weights_info(const Request& request) {
  CallResult<std::string> text = read_name("tinker_path", request.http.body);
  if (auto* refused = std::get_if<RefusedCall>(&text)) {
    return std::move(*refused);
  }
  Result<CheckpointPath> path = parse_checkpoint_path(std::get<std::string>(text));
  if (!path.ok()) {
    return refuse(400, "tinker_path: " + path.status().message(), "tinker_path");
  }
  return GetWeightsInfo{std::move(path).value()};
}

Call file_urls(const Request& request) {
  const std::string_view host = request.http.header("host").value_or("127.0.0.1");
  // A TLS proxy in front of the server names the scheme that the client used.
  const bool is_tls = request.http.header("x-forwarded-proto").value_or("") == "https";
  return of_checkpoint(request, [&](CheckpointPath path) -> Call {
    return GetFileUrls{std::move(path), (is_tls ? "https://" : "http://") + std::string(host)};
  });
}

Call file(const Request& request) {
  return of_checkpoint(request, [&](CheckpointPath path) -> Call {
    return GetFile{std::move(path), request.parts[6],
                   query_parameter(request.http.target, "token").value_or("")};
  });
}

Call copy_weights(const Request& /*request*/) {
  return refuse(400, "copying checkpoints is not supported");
}
Call publish(const Request& /*request*/) {
  return refuse(400, "publishing checkpoints is not supported");
}
Call custom_loss(const Request& /*request*/) {
  return refuse(400, "custom losses run in the client; the server runs none");
}

// A route: "*" stands for any part.
struct Route {
  std::string_view method;
  std::string_view path;
  Call (*parse)(const Request& request);
  std::span<const KeyScope> scopes = kTune;
};

constexpr std::string_view kCheckpoint = "training_runs/*/checkpoints/*/*";

const std::array kRoutes = std::to_array<Route>({
    {"POST", "client/config", [](const Request&) -> Call { return GetClientConfig{}; }, kAny},
    {"POST", "client/dynamic_config", [](const Request&) -> Call { return GetDynamicConfig{}; },
     kAny},
    {"GET", "healthz", [](const Request&) -> Call { return GetHealth{}; }, {}},
    {"GET", "get_server_capabilities", [](const Request&) -> Call { return GetCapabilities{}; },
     kAny},
    {"POST", "telemetry", [](const Request&) -> Call { return AcceptTelemetry{}; }, kAny},
    {"POST", "create_session",
     [](const Request& r) { return to_call(read_create_session(r.http.body)); }, kAny},
    {"POST", "session_heartbeat",
     [](const Request& r) { return named<Heartbeat>("session_id", r); }, kAny},
    {"GET", "sessions", [](const Request& r) { return with_page(r, ListSessions{}); }, kAny},
    {"GET", "sessions/*", [](const Request& r) -> Call { return GetSession{r.parts[1]}; }, kAny},
    {"POST", "sessions/*/finish",
     [](const Request& r) -> Call { return FinishSession{r.parts[1]}; }, kAny},
    {"POST", "create_model",
     [](const Request& r) { return to_call(read_create_model(r.http.body)); }},
    {"POST", "unload_model", [](const Request& r) { return named<UnloadModel>("model_id", r); }},
    {"POST", "get_info", [](const Request& r) { return named<GetInfo>("model_id", r); }},
    {"POST", "forward_backward",
     [](const Request& r) {
       return to_call(read_forward(r.http.body, r.http.header("content-encoding").value_or(""),
                                   r.model));
     }},
    {"POST", "optim_step", [](const Request& r) { return to_call(read_optim_step(r.http.body)); }},
    {"POST", "save_weights",
     [](const Request& r) {
       return to_call(read_save_weights(CheckpointKind::kTraining, r.http.body));
     }},
    {"POST", "save_weights_for_sampler",
     [](const Request& r) {
       return to_call(read_save_weights(CheckpointKind::kSampler, r.http.body));
     }},
    {"POST", "save_weights_external",
     [](const Request& r) {
       return to_call(read_save_weights(CheckpointKind::kExternal, r.http.body));
     }},
    {"POST", "load_weights",
     [](const Request& r) { return to_call(read_load_weights(r.http.body)); }},
    {"POST", "create_sampling_session",
     [](const Request& r) { return to_call(read_create_sampling_session(r.http.body)); }, kAny},
    {"POST", "join_sampling_session",
     [](const Request& r) { return named<JoinSampling>("sampling_session_id", r); }, kAny},
    {"GET", "samplers/*", [](const Request& r) -> Call { return GetSampler{r.parts[1]}; }, kAny},
    {"POST", "asample",
     [](const Request& r) { return to_call(read_sample(r.http.body, r.model)); }, kAny},
    {"POST", "retrieve_future",
     [](const Request& r) { return named<RetrieveFuture>("request_id", r); }, kAny},
    {"POST", "retrieve_futures",
     [](const Request& r) { return to_call(read_retrieve_futures(r.http.body)); }, kAny},
    {"POST", "cancel_future",
     [](const Request& r) { return named<CancelFuture>("request_id", r); }, kAny},
    {"GET", "training_runs", [](const Request& r) { return with_page(r, ListRuns{}); }},
    {"GET", "training_runs/*", [](const Request& r) -> Call { return GetRun{r.parts[1]}; }},
    {"GET", "training_runs/*/checkpoints",
     [](const Request& r) {
       return with_page(r, ListCheckpoints{r.parts[1], {0, kMaxPage}});
     }},
    {"GET", "checkpoints",
     [](const Request& r) { return with_page(r, ListCheckpoints{std::nullopt, {0, 100}}); }},
    {"DELETE", kCheckpoint,
     [](const Request& r) {
       return of_checkpoint(r, [](CheckpointPath path) -> Call {
         return DeleteCheckpoint{std::move(path)};
       });
     }},
    {"PUT", "training_runs/*/checkpoints/*/*/ttl", set_ttl},
    {"POST", "weights_info", weights_info},
    {"GET", "training_runs/*/checkpoints/*/*/external_weights_urls", file_urls},
    {"GET", "training_runs/*/checkpoints/*/*/files/*", file, {}},
    {"POST", "training_runs/*/checkpoints/*/*/publish", publish},
    {"DELETE", "training_runs/*/checkpoints/*/*/publish", publish},
    {"POST", "copy_weights", copy_weights},
    {"POST", "create_custom_loss", custom_loss},
});

// Notes the digest of a request in its call, if that has a number.
void set_digest(const HttpRequest& request, std::string_view path, Call& call) {
  const auto digest = [&] {
    DigestHasher hasher;
    hasher.update(std::as_bytes(std::span(path)));
    hasher.update(std::as_bytes(std::span(request.body)));
    return hasher.digest();
  };
  std::visit(
      [&](auto& one) {
        if constexpr (requires { one.digest; }) {
          one.digest = digest();
        }
        if constexpr (requires { one.turn.digest; }) {
          one.turn.digest = digest();
        } else if constexpr (requires { one.turn->digest; }) {
          if (one.turn) {
            one.turn->digest = digest();
          }
        }
      },
      call);
}

bool matches(std::string_view pattern, std::string_view path) {
  while (true) {
    const std::size_t end = pattern.find('/');
    const std::size_t other = path.find('/');
    const std::string_view part = path.substr(0, other);
    if (part.empty() || (pattern.substr(0, end) != "*" && pattern.substr(0, end) != part) ||
        (end == std::string_view::npos) != (other == std::string_view::npos)) {
      return false;
    }
    if (end == std::string_view::npos) {
      return true;
    }
    pattern.remove_prefix(end + 1);
    path.remove_prefix(other + 1);
  }
}

// Whether a body is of the type that the path takes. A page of another origin cannot send these
// types without being asked by the browser first.
bool has_right_type(const HttpRequest& request, std::string_view path) {
  if (request.method != "POST" && request.method != "PUT") {
    return true;
  }
  const std::string type = lower_case(request.header("content-type").value_or(""));
  return type.starts_with(path == "forward_backward" ? "application/x-protobuf"
                                                     : "application/json") ||
         request.body.empty();
}

}  // namespace

bool is_tinker_path(std::string_view path) noexcept {
  return path.starts_with(kPrefix);
}

std::span<const KeyScope> scopes_of(std::string_view path) noexcept {
  path.remove_prefix(std::min(path.size(), kPrefix.size()));
  const auto* const found = std::find_if(kRoutes.begin(), kRoutes.end(),
                                         [&](const Route& one) { return matches(one.path, path); });
  return found == kRoutes.end() ? std::span<const KeyScope>(kAny) : found->scopes;
}

Call parse_call(const HttpRequest& request, const ModelLimits& model) {
  std::string_view path = target_path(request.target);
  const std::string whole(path);
  path.remove_prefix(std::min(path.size(), kPrefix.size()));
  const Route* other = nullptr;
  for (const Route& route : kRoutes) {
    if (!matches(route.path, path)) {
      continue;
    }
    if (route.method != request.method) {
      other = &route;
      continue;
    }
    if (!has_right_type(request, path)) {
      return refuse(415, path == "forward_backward"
                             ? "the Content-Type must be application/x-protobuf"
                             : "the Content-Type must be application/json");
    }
    Call call = route.parse({request, split(path), model});
    set_digest(request, path, call);
    return call;
  }
  if (other != nullptr) {
    return refuse(405, "the method must be " + std::string(other->method));
  }
  return refuse(404, "there is nothing at " + quote(whole));
}

}  // namespace tidemill::actors::tinker
