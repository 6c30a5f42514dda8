// SPDX-License-Identifier: Apache-2.0
// The options of a server. The help texts in serve_options.cpp explain the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/schema/schema.hpp"
#include "workflows/data_options.hpp"
#include "workflows/run_options.hpp"

namespace tidemill::workflows {

/// Latency goals, which bound the iterations of the server. Requests that would miss them are not
/// refused.
struct SloOptions {
  std::int64_t ttft_ms = 2000;  // to the first token
  std::int64_t tpot_ms = 100;   // between two tokens of a response
};

/// How fine-tuning jobs share the server.
struct TuningOptions {
  std::optional<std::int32_t> max_running;  // jobs; absent: 4, or fewer if memory requires it
  std::int64_t job_tokens = 4096;           // of the longest sequence of a job
  double share = 0.8;                       // of the device's time, in [0, 1)
  std::int64_t publish_every_steps = 0;     // 0: only at the end
  std::optional<std::string> example;       // path of a file; absent: the server offers none
};

/// Where a server listens, and what it serves.
struct ServerOptions {
  std::string host = "127.0.0.1";
  std::int32_t port = 8000;
  std::optional<std::string> name;       // absent: the last part of model.path
  std::vector<std::string> host_names;   // in addition to `host` and localhost
  std::optional<std::string> keys_file;  // absent: requests need no key
  std::optional<std::string> jobs_path;  // absent: no `/v1/files` and no fine-tuning jobs
  TuningOptions tuning;  // needs `jobs_path`; `job_tokens` applies to Tinker's API too
  SloOptions slo;
  std::int64_t max_running = 64;
  std::optional<std::int64_t> kv_bytes;  // absent: for `max_running` responses, within limits
  std::int64_t adapter_bytes = std::int64_t{256} << 20U;
  std::int64_t drain_seconds = 30;
  std::optional<std::string> checkpoints_path;  // absent: no Tinker API
};

/// All options of a server.
struct ServeOptions {
  ModelOptions model;
  ServerOptions serve;
  std::uint64_t seed = 0;
  DeviceOptions device;
};

void describe(Schema<SloOptions>& s);
void describe(Schema<TuningOptions>& s);
void describe(Schema<ServerOptions>& s);
void describe(Schema<ServeOptions>& s);

}  // namespace tidemill::workflows
