// SPDX-License-Identifier: Apache-2.0
// Serves Tinker's API in a server. Private to this folder.
#pragma once

#include <memory>

#include "actors/gateway/served_model.hpp"
#include "actors/tinker/spawn.hpp"
#include "base/files/file.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "workflows/serve/run_serve.hpp"

namespace tidemill::workflows {

/// What a server trains adapters with. The actor must have ended before this is destroyed.
struct TinkerServer {
  PosixFileSystem files;
  std::unique_ptr<actors::WorkPort> port;
  std::shared_ptr<actors::tinker::CheckpointStore> store;
  actors::TinkerActor actor;
};

/// What Tinker's API shares with the rest of the server. Pointers are borrowed until the actor has
/// ended.
struct TinkerPlace {
  actors::HttpServer* http = nullptr;
  actors::ParsePorts parse_ports{};
  actors::DeviceActor device;
  std::shared_ptr<const actors::ServedModel> model;
  std::shared_ptr<actors::GatewayMetrics> metrics;
  actors::Tenancy tenancy = actors::Tenancy::kOne;
  std::int64_t server_bytes = 0;  // what the server itself takes at most
};

/// Opens the folder of checkpoints, or returns null if the options name none.
/// Errors: those of `make_directory`, naming serve.checkpoints_path.
[[nodiscard]] Result<std::unique_ptr<TinkerServer>> open_tinker(const ServeOptions& options,
                                                                const engines::ModelFiles& files);

/// Starts serving Tinker's API. Borrows `files`.
void start_tinker(TinkerServer& tinker, const ServeOptions& options,
                  const engines::ModelFiles& files, const TinkerPlace& place,
                  const ServeEnvironment& run);

}  // namespace tidemill::workflows
