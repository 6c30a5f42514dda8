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
#include "actors/gateway/gateway_metrics.hpp"
#include "actors/gateway/handles.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "actors/gateway/served_model.hpp"
#include "actors/tinker/handles.hpp"
#include "actors/tuning/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "storage/jobs/file_store.hpp"

namespace tidemill::actors {

/// The limits of a gateway. If the keys belong to several tenants, each limit leaves room for those
/// that hold little: a tenant may hold at most as much of it as is free.
struct GatewayLimits {
  /// Maximum number of choices that are waiting or being generated. Further requests get 429.
  std::size_t max_choices = 2048;
  /// Bytes of the token ids of their prompts. Further requests get 429.
  std::size_t max_pending_prompt_bytes = std::size_t{256} << 20U;
  /// Bytes of the bodies of all requests that are not parsed yet. Further requests get 429.
  std::size_t max_pending_body_bytes = std::size_t{256} << 20U;
  /// Bytes of one upload, with the form around its file. `max_body_bytes` (access.hpp) tells the
  /// HTTP server.
  std::size_t max_upload_bytes = (std::size_t{512} << 20U) + (std::size_t{64} << 10U);
  /// Bytes of all uploads that have not been stored, which do not count above. Further ones get
  /// 429.
  std::size_t max_pending_upload_bytes = std::size_t{768} << 20U;
};

/// Dependencies of a gateway.
struct GatewayDeps {
  HttpServer* http = nullptr;  // outlives the gateway
  StreamingActor device;
  /// Gets the requests of Tinker's API. Null: there is no such API.
  TinkerActor tinker;
  std::shared_ptr<const ServedModel> model;
  WorkPort* parse_port = nullptr;  // parses requests; outlives the gateway
  /// Uploaded files, or null: the server then has no `/v1/files`.
  std::shared_ptr<storage::FileStore> files;
  WorkPort* file_port =
      nullptr;  // reads and writes `files`; needed with them; outlives the gateway
  /// Runs fine-tuning jobs, or null: the server then has no `/v1/fine_tuning/jobs`.
  TuningActor tuning;
  std::shared_ptr<GatewayMetrics> metrics;  // not null
  const Clock* clock = nullptr;             // outlives the gateway
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
