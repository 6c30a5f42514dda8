// SPDX-License-Identifier: Apache-2.0
// Runs a server: one model behind an HTTP API.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include <caf/fwd.hpp>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/rl_options.hpp"
#include "workflows/serve_options.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

/// The options of the run of a fine-tuning job.
using JobWorkflow = std::variant<SftOptions, RlOptions>;
/// Reads the configuration of a run. Error messages refer to the text as `source`.
using ParseRun =
    std::function<Result<JobWorkflow>(const std::string& text, const std::string& source)>;

/// A server that accepts connections.
struct ReadyServer {
  std::string url;
  std::string model;      // its name in requests
  std::string keys_file;  // empty: requests need no key
};

/// What a server needs in addition to its options. References are borrowed until it ends.
///
/// Threads: `warn` may be called from any thread; `inform`, `on_ready` and `stop_requested` from
/// the thread of `run_serve`.
struct ServeEnvironment {
  caf::actor_system& system;
  const Clock& clock;
  std::function<std::int64_t()> unix_time;  // seconds
  std::function<std::string()> local_time;  // "YYYY-MM-DDTHH:MM:SS"
  /// Called once the server accepts connections.
  std::function<void(const ReadyServer&)> on_ready;
  /// Receive one line per call: `warn` a warning, `inform` any other message for the user.
  std::function<void(const std::string&)> warn;
  std::function<void(const std::string&)> inform;
  /// Polled several times a second. If it returns true, the server completes the responses that it
  /// has begun, and ends.
  std::function<bool()> stop_requested;
  ParseRun parse_run;
};

/// The memory of a server. Units: bytes.
struct ServerPlan {
  MemoryPlan server;           // includes the cache that jobs reserve, but nothing else of jobs
  std::int64_t max_jobs = 0;   // maximum number of jobs that train at the same time; 0: none
  std::int64_t job_bytes = 0;  // limit of each job: an equal part of what the server leaves
  /// Why `max_jobs` is below its default, and which limit given by the options has no effect; or
  /// empty.
  std::string note;
};

/// Returns "each of 4 fine-tuning jobs", or "one fine-tuning job".
[[nodiscard]] std::string jobs_text(std::int64_t jobs);

/// Plans the memory of a server without starting it. `program` is the memory that the process uses
/// before the start, in bytes. If it is absent, it is measured.
/// Errors: those of `run_serve` about the model and the memory.
[[nodiscard]] Result<ServerPlan> plan_memory(const ServeOptions& options, const Clock& clock,
                                             std::optional<std::int64_t> program = {});

/// Checks the address and the API keys of a server without starting it. Reads the file of the keys.
/// Errors: those of `run_serve` about `serve.host` and `serve.keys_file`.
[[nodiscard]] Status check_access(const ServerOptions& options);

/// Opens the model and serves it until a stop is requested.
/// Errors: `kInvalidArgument` and `kNotFound` naming the key or the file; `kUnavailable` naming the
/// address, if it cannot be used; the failure of the device, if it fails.
[[nodiscard]] Status run_serve(const ServeOptions& options, const ServeEnvironment& run);

}  // namespace tidemill::workflows
