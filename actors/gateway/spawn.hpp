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
#include "actors/gateway/parse_lanes.hpp"
#include "actors/gateway/served_model.hpp"
#include "actors/tinker/handles.hpp"
#include "actors/tuning/handles.hpp"
#include "actors/work/work_port.hpp"
#include "base/clock.hpp"
#include "storage/jobs/file_store.hpp"

namespace tidemill::actors {

/// The limits of a gateway. Requests beyond a limit get 429. With several tenants, each limit is
/// shared dynamically: an amount fits if it and what its tenant already holds are at most what is
/// free beforehand (fair_limit.hpp).
struct GatewayLimits {
  /// Maximum number of choices that are waiting or being generated.
  std::size_t max_choices = 2048;
  /// Bytes of the token ids of the prompts of these choices.
  std::size_t max_pending_prompt_bytes = std::size_t{256} << 20U;
  /// Bytes of the bodies of all requests that are not parsed yet.
  std::size_t max_pending_body_bytes = std::size_t{256} << 20U;
  /// Maximum bytes of one upload, including its multipart form. The HTTP server enforces it: the
  /// caller passes it on as `BodyLimits::upload`.
  std::size_t max_upload_bytes = (std::size_t{512} << 20U) + (std::size_t{64} << 10U);
  /// Bytes of all uploads that are not stored yet. They do not count toward
  /// `max_pending_body_bytes`.
  std::size_t max_pending_upload_bytes = std::size_t{768} << 20U;
  /// Bytes of the parts of files that downloads have read and not sent yet. Each download counts
  /// as one part until it ends.
  std::size_t max_download_bytes = std::size_t{64} << 20U;
};

/// Dependencies of a gateway. Pointers are not null unless a comment says so, and outlive the
/// gateway. Threads: `unix_time` is called by the gateway and at `file_port`, `local_time` by the
/// gateway.
struct GatewayDeps {
  HttpServer* http = nullptr;
  StreamingActor device;
  /// Serves Tinker's API. If null, its paths get 404.
  TinkerActor tinker;
  std::shared_ptr<const ServedModel> model;
  ParsePorts parse_ports{};  // parse requests; outlive the gateway
  /// Uploaded files, or null: the server then has no `/v1/files`.
  std::shared_ptr<storage::FileStore> files;
  WorkPort* file_port = nullptr;  // reads and writes `files`; required if those are set
  /// Runs fine-tuning jobs, or null: the server then has no `/v1/fine_tuning/jobs`.
  TuningActor tuning;
  std::shared_ptr<GatewayMetrics> metrics;
  const Clock* clock = nullptr;
  AccessRules access;
  GatewayLimits limits;
  std::function<std::int64_t()> unix_time;  // seconds
  std::function<std::string()> local_time;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  /// Seeds the responses to requests without a seed of their own.
  std::uint64_t seed = 0;
};

/// Spawns a gateway that responds through `deps.http`. The caller starts the HTTP server, with
/// callbacks that send `request`, `closed` and `sent` to the returned actor. The gateway ends with
/// `stop`, or if the device ends: all exchanges then fail with status 500.
[[nodiscard]] GatewayActor spawn_gateway(caf::actor_system& system, GatewayDeps deps);

}  // namespace tidemill::actors
