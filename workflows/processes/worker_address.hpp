// SPDX-License-Identifier: Apache-2.0
// Where a worker process finds the process of its run.
#pragma once

#include <cstdint>
#include <string>

namespace tidemill::workflows {

/// How a worker process reaches the process of its run. Passed on its command line.
struct WorkerProcessAddress {
  std::string transport;  // "shm" or "zmq"
  std::string socket;     // a path
  std::uint64_t run = 0;  // see `Envelope::run`
  std::uint32_t incarnation = 0;
  std::uint32_t process = 0;  // see `Envelope::sender`
  int owner = 0;              // the process id of the process of the run
};

/// Lets this process be killed when its parent, which must be the process `parent`, is gone.
/// Returns false if it is gone already. Called at the start of a worker process.
[[nodiscard]] bool end_with_parent(int parent);

}  // namespace tidemill::workflows
