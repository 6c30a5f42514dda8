// SPDX-License-Identifier: Apache-2.0
// A worker process of the role "rollout".
#pragma once

#include <stop_token>
#include <string>

#include "base/result.hpp"
#include "workflows/processes/worker_address.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// What a rollout process needs in addition to the options of its run.
struct RolloutProcess {
  std::string started;  // when the run began, "YYYY-MM-DDTHH:MM:SS"
  WorkerProcessAddress address;
  std::stop_token stop = {};  // ends a thread of the run in the place of a process
};

/// Generates responses for the run that has started this process, until that ends it. Blocks.
/// Errors: `kResourceExhausted` if a thread cannot be started; `kUnavailable` if the link to the
/// process of the run has ended.
[[nodiscard]] Status run_rollout_process(const RlOptions& options, const RolloutProcess& process);

}  // namespace tidemill::workflows
