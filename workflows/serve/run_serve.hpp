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

/// What a server needs in addition to its options. References are borrowed until it ends.
struct ServeEnvironment {
  caf::actor_system& system;
  const Clock& clock;
  std::function<std::int64_t()> unix_time;  // seconds
  std::function<std::string()> local_time;  // "YYYY-MM-DDTHH:MM:SS"
  /// Called once the server accepts connections, with its URL and the name of the model.
  std::function<void(const std::string& url, const std::string& model)> on_ready;
  /// Receive one line per call: `log` a warning, `inform` any other message for the user.
  std::function<void(const std::string&)> log;
  std::function<void(const std::string&)> inform;
  /// Polled several times a second. If it returns true, the server completes the responses that it
  /// has begun, and ends.
  std::function<bool()> stop_asked;
};

/// Opens the model and serves it until a stop is requested.
/// Errors: `kInvalidArgument` and `kNotFound` naming the key or the file; `kUnavailable` naming the
/// address, if it cannot be used; the failure of the device, if it fails.
[[nodiscard]] Status run_serve(const ServeOptions& options, const ServeEnvironment& run);

}  // namespace tidemill::workflows
