// SPDX-License-Identifier: Apache-2.0
// Spawns a gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/fwd.hpp>

#include "actors/gateway/access.hpp"
#include "actors/gateway/handles.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "actors/gateway/served_model.hpp"
#include "actors/tinker/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"

namespace tidemill::actors {

/// The limits of a gateway.
struct GatewayLimits {
  /// Maximum number of choices that are waiting or being generated. Further requests get 429.
  std::size_t max_choices = 2048;
  /// Bytes of the bodies of all requests without a complete response. Further requests get 429.
  std::size_t max_pending_body_bytes = std::size_t{256} << 20U;
};

/// Dependencies of a gateway.
struct GatewayDeps {
  HttpServer* http = nullptr;  // outlives the gateway
  StreamingActor device;
  /// Gets the requests of Tinker's API. Null: there is no such API.
  TinkerActor tinker;
  std::shared_ptr<const ServedModel> model;
  WorkPort* parse_port = nullptr;  // parses requests; outlives the gateway
  const Clock* clock = nullptr;    // outlives the gateway
  AccessRules access;
  GatewayLimits limits;
  std::function<std::int64_t()> unix_time;  // seconds
  std::function<std::string()> local_time;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  /// Seeds the responses to requests without a seed of their own.
  std::uint64_t seed = 0;
};

/// Spawns a gateway. If the device ends, so does the gateway.
[[nodiscard]] GatewayActor spawn_gateway(caf::actor_system& system, GatewayDeps deps);

}  // namespace tidemill::actors
