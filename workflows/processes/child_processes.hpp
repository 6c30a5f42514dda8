// SPDX-License-Identifier: Apache-2.0
// The child processes of a run: starts them, notices when they end, and ends them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace tidemill::workflows {

/// A process to start.
struct ChildProgram {
  std::string program;                 // a path
  std::vector<std::string> arguments;  // without the program's name
  std::filesystem::path output;        // takes what it writes to stdout and stderr, at the end
};

/// Child processes, each in a process group of its own, so that Ctrl-C does not reach them. A
/// program that calls `begin_worker_process` is killed when this object or its process is gone.
///
/// The destructor ends all processes and waits until they are gone.
/// Threads: safe to call concurrently, except from inside `OnExit`.
class ChildProcesses {
public:
  /// Called once for each process, by a thread of this object, with how the process ended: such as
  /// "exit status 3", "killed by signal 9 (Killed)" or why it could not be started.
  using OnExit = std::function<void(const std::string& how)>;
  /// How long a process may take to end after SIGTERM. Then it is killed.
  static constexpr Duration kEndTime = std::chrono::seconds(2);

  ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;
  ~ChildProcesses();

  /// Starts a process, and returns its number in this object. Does not wait.
  std::uint64_t start(ChildProgram program, OnExit on_exit);
  /// Returns the id of the process with this number, or 0 if it does not run.
  [[nodiscard]] int pid(std::uint64_t number) const;
  /// Asks the process with this number to end, and kills it after `kEndTime`. Unknown numbers are
  /// ignored.
  void stop(std::uint64_t number);

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill::workflows
