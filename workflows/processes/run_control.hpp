// SPDX-License-Identifier: Apache-2.0
// How another program looks at the processes of a run and changes their numbers: queries to a
// socket in the folder of the run, in JSON.
//
// {"ask": "processes"} is answered with {"processes": [...]}, of which the first is the process of
// the run. {"ask": "scale", "role": R, "processes": N} is answered with {"before": M}. A query that
// is refused is answered with {"error": "..."}, and with "later": true if it may succeed later.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/json/json.hpp"
#include "base/result.hpp"
#include "transport/query/query_server.hpp"

namespace tidemill::workflows {

class ProcessTable;

/// What answers queries about a run.
struct RunControlOptions {
  std::shared_ptr<ProcessTable> table;
  std::string owner_cores;  // of this process, for display
  /// Takes a warning for the user when no query can be accepted, at most once a minute.
  std::function<void(const std::string&)> warn;
};

/// Answers queries until the result is destroyed. Requires `make_socket_folder`.
/// Errors: those of `QueryServer::listen`.
[[nodiscard]] Result<std::unique_ptr<transport::QueryServer>> serve_run_control(
    const std::filesystem::path& directory, RunControlOptions options);

/// Returns whether a run that may answer is in progress in `directory`, or was when it was killed.
[[nodiscard]] bool may_answer(const std::filesystem::path& directory);

/// Returns what a run that is in progress answers.
/// Errors: `kUnavailable` if no run with other processes is in progress in `directory`; `kTimeout`
/// if it does not answer within seconds, after which it ignores the query; the error of the answer,
/// as `kInvalidArgument`, or `kUnavailable` if the query may succeed later.
[[nodiscard]] Result<Json> ask_run(const std::filesystem::path& directory, const Json& query);

}  // namespace tidemill::workflows
