// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/access.hpp"

#include <algorithm>
#include <string_view>

#include "actors/gateway/pages/pages.hpp"
#include "actors/tinker/routes.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

// Returns a host without its port: "[::1]:80" gives "[::1]".
std::string_view without_port(std::string_view host) {
  const std::size_t bracket = host.rfind(']');
  const std::size_t colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  return host.substr(0, colon);
}

// Returns the key that a request gives, or "".
std::string_view key_of(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = request.header("authorization").value_or("");
  if (lower_case(given.substr(0, kBearer.size())) == kBearer) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.header("x-api-key").value_or("");
  }
  constexpr std::string_view kTinkerPrefix = "tml-";
  if (given.starts_with(kTinkerPrefix)) {
    given.remove_prefix(kTinkerPrefix.size());
  }
  return given;
}

openai::ApiError no_valid_key() {
  return {401, "the request needs a valid API key", "", "invalid_api_key"};
}

}  // namespace

std::optional<openai::ApiError> check_host_and_origin(const HttpRequest& request,
                                                      const AccessRules& rules) {
  const std::string host = lower_case(request.header("host").value_or(""));
  const std::string name(without_port(host));
  if (!rules.host_names.empty() &&
      std::find(rules.host_names.begin(), rules.host_names.end(), name) == rules.host_names.end()) {
    return openai::ApiError{
        421, "the host " + quote(name) + " is not allowed; serve.host_names adds names"};
  }
  // A page of the server itself has the origin "http://" and the host that it was loaded from.
  const auto origin = request.header("origin");
  if (origin.has_value() && lower_case(*origin) != "http://" + host &&
      lower_case(*origin) != "https://" + host) {
    return openai::ApiError{403,
                            "the server does not accept requests from pages of " + quote(*origin)};
  }
  return std::nullopt;
}

bool is_open_path(std::string_view path) noexcept {
  return path == "/health" || pages::contains(path) ||
         (tinker::is_tinker_path(path) && tinker::scopes_of(path).empty());
}

std::optional<openai::ApiError> check_head(const HttpRequest& request, const AccessRules& rules) {
  if (auto refused = check_host_and_origin(request, rules)) {
    return refused;
  }
  const bool needs_key = rules.keys != nullptr && !is_open_path(target_path(request.target));
  return needs_key && rules.keys->find(key_of(request)) == nullptr ? std::optional(no_valid_key())
                                                                   : std::nullopt;
}

std::optional<openai::ApiError> check_key(const HttpRequest& request, const AccessRules& rules,
                                          KeyScope scope) {
  if (rules.keys == nullptr) {
    return std::nullopt;
  }
  const ApiKey* key = rules.keys->find(key_of(request));
  if (key == nullptr) {
    return no_valid_key();
  }
  if (!key->permits(scope)) {
    return openai::ApiError{403, "the key " + quote(key->name) + " does not have the scope " +
                                     std::string(scope_name(scope))};
  }
  return std::nullopt;
}

std::optional<openai::ApiError> check_any_scope(const HttpRequest& request,
                                                const AccessRules& rules,
                                                std::span<const KeyScope> scopes) {
  std::optional<openai::ApiError> refused;
  for (const KeyScope scope : scopes) {
    refused = check_key(request, rules, scope);
    if (!refused) {
      return std::nullopt;
    }
  }
  return refused;
}

Tenancy tenancy_of(const AccessRules& rules) {
  return rules.keys != nullptr && rules.keys->have_tenants() ? Tenancy::kSeveral : Tenancy::kOne;
}

Caller caller_of(const HttpRequest& request, const AccessRules& rules) {
  const ApiKey* key = rules.keys == nullptr ? nullptr : rules.keys->find(key_of(request));
  return key == nullptr ? Caller()
                        : Caller{key->tenant, key->priority, key->permits(KeyScope::kTune)};
}

std::size_t max_body_bytes(const HttpRequest& request, const AccessRules& rules,
                           const BodyLimits& limits) {
  if (tinker::is_tinker_path(target_path(request.target))) {
    return limits.tinker;
  }
  const bool is_upload = request.method == "POST" && target_path(request.target) == "/v1/files";
  return is_upload && limits.upload > limits.json &&
                 !check_key(request, rules, KeyScope::kTune).has_value()
             ? limits.upload
             : limits.json;
}

}  // namespace tidemill::actors
