// SPDX-License-Identifier: Apache-2.0
// The program of worker processes.
#pragma once

#include <string>
#include <vector>

namespace tidemill::workflows {

/// A program that calls a function such as `run_reward_process`.
struct WorkerProgram {
  std::string program;                 // a path
  std::vector<std::string> arguments;  // those that every worker process gets first
};

}  // namespace tidemill::workflows
