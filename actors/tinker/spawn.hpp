// SPDX-License-Identifier: Apache-2.0
// Spawns the actor that serves Tinker's API.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <caf/fwd.hpp>

#include "actors/device/handles.hpp"
#include "actors/gateway/gateway_metrics.hpp"
#include "actors/gateway/http/http_server.hpp"
#include "actors/gateway/parse_lanes.hpp"
#include "actors/gateway/tinker/read_calls.hpp"
#include "actors/tinker/handles.hpp"
#include "actors/tinker/service.hpp"
#include "actors/work/work_port.hpp"

namespace tidemill::actors {

/// Returns the options of a training job for an adapter as `lora` describes it. If `tensors` is
/// null, the adapter is initialized from `seed`. Otherwise, it has these tensors, which are
/// borrowed until the call returns, and `seed` is ignored. Errors: `kInvalidArgument` naming what
/// is wrong with `lora` or a tensor. Threads: called at `TinkerDeps::io_port`.
using MakeJobOptions = std::function<Result<engines::JobOptions>(
    const tinker::LoraSettings& lora, std::uint64_t seed, const TensorMap* tensors)>;

/// Dependencies of the actor. Pointers are borrowed until it has ended, and until its ports are
/// idle.
struct TinkerDeps {
  HttpServer* http = nullptr;
  DeviceActor device;  // opens jobs, and serves adapters by name
  MakeJobOptions make_job_options;
  /// Returns the memory that a model takes. May be empty: it is then not limited.
  std::function<std::size_t(const tinker::LoraSettings&)> model_bytes;
  /// Returns the memory that a snapshot of a model takes. May be empty: it is then not limited.
  std::function<std::size_t(const tinker::LoraSettings&)> snapshot_bytes;
  std::shared_ptr<tinker::CheckpointStore> store;
  ParsePorts parse_ports{};     // parse requests
  WorkPort* io_port = nullptr;  // reads and writes checkpoints, and initializes adapters
  std::shared_ptr<GatewayMetrics> metrics;  // counts requests and samples; may be null
  /// Receives one line for the log. May be empty.
  std::function<void(const std::string&)> warn;
  const Clock* clock = nullptr;
  std::function<std::int64_t()> unix_time;  // seconds
  /// Returns 64 bits that clients cannot predict. Ids and seeds are made from them.
  std::function<std::uint64_t()> random;
  tinker::ModelLimits model_limits;
  tinker::ServedBase base;
  tinker::ServiceLimits limits;
  /// The most that bodies that are not parsed yet take. Tenants share it; beyond it requests get
  /// 429.
  std::size_t max_parsing_bytes = std::size_t{256} << 20U;
  /// The most that parts of files take that are being sent; a download counts as one part. Tenants
  /// share it; beyond it requests get 429.
  std::size_t max_download_bytes = std::size_t{64} << 20U;
  Tenancy tenancy = Tenancy::kOne;
};

/// Spawns the actor. If the device ends, so does the actor.
[[nodiscard]] TinkerActor spawn_tinker(caf::actor_system& system, TinkerDeps deps);

}  // namespace tidemill::actors
