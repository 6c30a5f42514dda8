// SPDX-License-Identifier: Apache-2.0
// Where a worker process finds the process of its run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tidemill::workflows {

/// How a worker process reaches the process of its run. Passed on its command line.
struct WorkerProcessAddress {
  std::string name = {};    // of the process, for display; not passed on
  std::string transport;    // "loopback", "shm" or "zmq"
  std::string reason = {};  // why that one, for display; not passed on
  std::string socket;       // a path; over "loopback", a name in the process of the run
  std::uint64_t run = 0;    // see `Envelope::run`
  std::uint32_t incarnation = 0;
  std::uint32_t process = 0;    // see `Envelope::sender`
  int owner = 0;                // the process id of the process of the run
  std::vector<int> cores = {};  // on which it computes; empty: on those of the run
};

/// Returns whether a thread of the process of the run has this address, in the place of a process.
[[nodiscard]] bool is_of_this_process(const WorkerProcessAddress& address);

/// Returns the arguments that carry an address.
[[nodiscard]] std::vector<std::string> arguments_of(const WorkerProcessAddress& address);

/// Prepares a worker process, before it starts a thread: it is killed when its parent, which must
/// be the process `parent`, is gone, and its threads block SIGTERM, for which `run_worker_process`
/// waits. Returns false if the parent is gone already.
[[nodiscard]] bool begin_worker_process(int parent);

}  // namespace tidemill::workflows
