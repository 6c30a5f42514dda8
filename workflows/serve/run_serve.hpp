// SPDX-License-Identifier: Apache-2.0
// Runs a server: one model behind an HTTP API.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <caf/fwd.hpp>

#include "base/clock.hpp"
#include "base/result.hpp"
#include "workflows/serve_options.hpp"

namespace tidemill::workflows {

/// A server that accepts connections.
struct ReadyServer {
  std::string url;
  std::string model;      // its name in requests
  std::string keys_file;  // empty: requests need no key
};

/// What a server needs in addition to its options. References are borrowed until it ends.
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
};

/// Opens the model and serves it until a stop is requested.
/// Errors: `kInvalidArgument` and `kNotFound` naming the key or the file; `kUnavailable` naming the
/// address, if it cannot be used; the failure of the device, if it fails.
[[nodiscard]] Status run_serve(const ServeOptions& options, const ServeEnvironment& run);

}  // namespace tidemill::workflows
