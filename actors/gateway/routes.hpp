// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. The paths of the HTTP API: `kRoutes` in the source has one row for
// each path and method. To add a path, write its handler in a `*_routes.cpp` and add a row.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/gateway/gateway_state.hpp"

namespace tidemill::actors {

/// The parts of a path that match the wildcards of a route, with %XX decoded.
using PathArguments = std::vector<std::string>;

/// One path and method.
struct Route {
  std::string_view method;
  /// A part `*` matches one part that is not empty, and a last part `**` all that follow.
  std::string_view path;
  KeyScope scope = KeyScope::kInfer;
  /// Begins the response to a request. Ends the exchange itself, at once or later.
  void (*handle)(GatewaySelf self, HttpRequest& request, const PathArguments& arguments) = nullptr;
  /// Whether a gateway with these dependencies has the path, which needs `serve.jobs_path`. Null:
  /// all have.
  bool (*exists)(const GatewayDeps& deps) = nullptr;
};

/// The routes of a path.
struct RouteMatch {
  const Route* route = nullptr;  // null if no route has the method
  PathArguments arguments;       // of `route`
  std::string methods;           // of all routes of the path, such as "GET, POST"; empty: no route
  KeyScope scope = KeyScope::kInfer;  // of `route`, or of another route of the path
  /// If the server does not have the path: the key of the configuration that it needs. Otherwise
  /// empty.
  std::string_view missing_key;
};

/// Returns the routes of a path, as sent, for a method.
[[nodiscard]] RouteMatch find_route(const GatewayDeps& deps, std::string_view method,
                                    std::string_view path);

/// Matches a path, as sent, with the path of a route. Returns nullopt if they differ, or if the
/// encoding of the path is broken.
[[nodiscard]] std::optional<PathArguments> match_path(std::string_view pattern,
                                                      std::string_view path);

}  // namespace tidemill::actors
