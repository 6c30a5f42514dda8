// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/access.hpp"

#include <algorithm>
#include <string_view>

#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

// Returns a host without its port: "[::1]:80" gives "[::1]".
std::string_view without_port(std::string_view host) {
  const std::size_t bracket = host.rfind(']');
  const std::size_t colon = host.find(':', bracket == std::string_view::npos ? 0 : bracket);
  return host.substr(0, colon);
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

std::optional<openai::ApiError> check_key(const HttpRequest& request, const AccessRules& rules,
                                          KeyScope scope) {
  if (rules.keys == nullptr) {
    return std::nullopt;
  }
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = request.header("authorization").value_or("");
  if (lower_case(given.substr(0, kBearer.size())) == kBearer) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.header("x-api-key").value_or("");
  }
  const ApiKey* key = rules.keys->find(given);
  if (key == nullptr) {
    return openai::ApiError{401, "the request needs a valid API key", "", "invalid_api_key"};
  }
  if (!key->permits(scope)) {
    return openai::ApiError{403, "the key " + quote(key->name) + " does not have the scope " +
                                     std::string(scope_name(scope))};
  }
  return std::nullopt;
}

}  // namespace tidemill::actors
