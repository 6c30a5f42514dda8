// SPDX-License-Identifier: Apache-2.0
// The child processes of a run: starts them, notices when they end, and ends them.
#pragma once

#include <cstdint>
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
  /// Takes the lines that the process has written to stdout or stderr, but no empty ones, each at
  /// most `ChildProcesses::kMaxLineBytes` long, as printable text. Called by a thread of the object
  /// that has started the process, before `OnExit`. May be empty.
  std::function<void(const std::vector<std::string>& lines)> on_lines = {};
};

/// How a process has ended.
struct ChildEnd {
  std::string how;          // "exit status 3", "killed by signal 9 (Killed)", why it did not start
  std::string last_line;    // the last one that it has written; empty: none
  std::uint64_t lines = 0;  // that it has written, without empty ones
  bool started = false;
};

/// Child processes, each in a process group of its own, so that Ctrl-C does not reach them. A
/// program that calls `begin_worker_process` is killed when this object is destroyed or its process
/// exits. Writes of a child never block: output that does not fit in its pipe is lost.
///
/// The destructor ends all processes and waits until they are gone.
/// Threads: safe to call concurrently, except from inside `OnExit`.
class ChildProcesses {
public:
  /// Called once for each process, by a thread of this object.
  using OnExit = std::function<void(const ChildEnd& end)>;
  /// A longer line counts as several.
  static constexpr std::size_t kMaxLineBytes = 4096;
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
