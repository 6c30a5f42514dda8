// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/routes.hpp"

#include <array>
#include <utility>

#include "actors/gateway/file_routes.hpp"
#include "actors/gateway/model_routes.hpp"
#include "actors/gateway/tuning_routes.hpp"

namespace tidemill::actors {
namespace {

bool has_files(const GatewayDeps& deps) {
  return deps.files != nullptr;
}
bool has_tuning(const GatewayDeps& deps) {
  return static_cast<bool>(deps.tuning);
}

constexpr KeyScope kInfer = KeyScope::kInfer;
constexpr KeyScope kTune = KeyScope::kTune;
constexpr KeyScope kAdmin = KeyScope::kAdmin;

constexpr std::array kRoutes = std::to_array<Route>({
    {"GET", "/health", kInfer, get_health},
    {"GET", "/metrics", kInfer, get_metrics},
    {"GET", "/v1/models", kInfer, list_models},
    {"GET", "/v1/models/**", kInfer, get_model},
    {"DELETE", "/v1/models/**", kTune, delete_model},
    {"POST", "/v1/completions", kInfer, post_completion},
    {"POST", "/v1/chat/completions", kInfer, post_chat},
    {"POST", "/tokenize", kInfer, post_tokenize},
    {"POST", "/detokenize", kInfer, post_detokenize},
    {"POST", "/v1/load_lora_adapter", kAdmin, post_load_adapter},
    {"POST", "/v1/unload_lora_adapter", kAdmin, post_unload_adapter},
    {"GET", "/v1/files", kTune, list_files, has_files},
    {"POST", "/v1/files", kTune, upload_file, has_files},
    {"GET", "/v1/files/*", kTune, get_file, has_files},
    {"DELETE", "/v1/files/*", kTune, delete_file, has_files},
    {"GET", "/v1/files/*/content", kTune, get_file_content, has_files},
    {"GET", "/v1/fine_tuning/jobs", kTune, list_jobs, has_tuning},
    {"POST", "/v1/fine_tuning/jobs", kTune, create_job, has_tuning},
    {"GET", "/v1/fine_tuning/jobs/*", kTune, get_job, has_tuning},
    {"POST", "/v1/fine_tuning/jobs/*/cancel", kTune, cancel_job, has_tuning},
    {"POST", "/v1/fine_tuning/jobs/*/pause", kTune, pause_job, has_tuning},
    {"POST", "/v1/fine_tuning/jobs/*/resume", kTune, resume_job, has_tuning},
    {"GET", "/v1/fine_tuning/jobs/*/events", kTune, list_job_events, has_tuning},
    {"GET", "/v1/fine_tuning/jobs/*/checkpoints", kTune, list_job_checkpoints, has_tuning},
});

// Takes the first part of a path off the front, with the slash after it.
std::string_view take_part(std::string_view& path) {
  const std::size_t end = path.find('/');
  const std::string_view part = path.substr(0, end);
  path = end == std::string_view::npos ? "" : path.substr(end + 1);
  return part;
}

}  // namespace

std::optional<PathArguments> match_path(std::string_view pattern, std::string_view path) {
  PathArguments arguments;
  const auto add = [&](std::string_view part) {
    auto decoded = decode_path(part);
    const bool good = decoded.has_value() && !decoded->empty();
    if (good) {
      arguments.push_back(std::move(*decoded));
    }
    return good;
  };
  for (;;) {
    const bool more = pattern.find('/') != std::string_view::npos;
    const std::string_view wanted = take_part(pattern);
    if (wanted == "**") {
      return add(path) ? std::optional(std::move(arguments)) : std::nullopt;
    }
    const bool path_has_more = path.find('/') != std::string_view::npos;
    const std::string_view part = take_part(path);
    if (more != path_has_more || (wanted == "*" ? !add(part) : wanted != part)) {
      return std::nullopt;
    }
    if (!more) {
      return arguments;
    }
  }
}

RouteMatch find_route(const GatewayDeps& deps, std::string_view method, std::string_view path) {
  RouteMatch match;
  for (const Route& route : kRoutes) {
    auto arguments = match_path(route.path, path);
    if (!arguments.has_value()) {
      continue;
    }
    if (route.exists != nullptr && !route.exists(deps)) {
      match.missing_key = "serve.jobs_path";
      match.scope = route.scope;
      continue;
    }
    match.methods += (match.methods.empty() ? "" : ", ") + std::string(route.method);
    if (match.route == nullptr) {
      match.scope = route.scope;
    }
    if (route.method == method) {
      match.route = &route;
      match.arguments = std::move(*arguments);
    }
  }
  return match;
}

}  // namespace tidemill::actors
