// SPDX-License-Identifier: Apache-2.0
// A worker process of the role "reward".
#pragma once

#include <filesystem>
#include <stop_token>
#include <string>

#include "base/result.hpp"
#include "workflows/extensions.hpp"
#include "workflows/processes/worker_address.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// What a reward process needs in addition to the options of its run.
struct RewardProcess {
  std::filesystem::path directory;  // of the run
  std::string started;              // when the run began, "YYYY-MM-DDTHH:MM:SS"
  Extensions extensions;            // those of the program that started the run
  WorkerProcessAddress address;
  std::stop_token stop = {};  // ends a thread of the run in the place of a process
};

/// Scores responses for the run that has started this process, until that ends it. Blocks. Requires
/// that a worker process has one thread: if a program scores, the process gets a guard
/// (engines/reward/program_guard.cpp). A thread of the process of the run gets none.
/// Errors: `kResourceExhausted` if a thread cannot be started; `kUnavailable` if the guard cannot,
/// or if the link to the process of the run has ended.
[[nodiscard]] Status run_reward_process(const RlOptions& options, const RewardProcess& process);

}  // namespace tidemill::workflows
