// SPDX-License-Identifier: Apache-2.0
// A child process with pipes to its standard streams, for running a user's program.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/clock.hpp"
#include "base/files/unique_fd.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// The outcome of a read or write that does not block.
enum class PipeState {
  kMoved,    // some bytes were transferred
  kBlocked,  // no bytes could be transferred now
  kClosed    // the other end is closed
};

/// The number of bytes transferred, and the state of the pipe.
struct PipeResult {
  PipeState state = PipeState::kBlocked;
  std::size_t bytes = 0;
};

/// How a program ended.
struct ProgramEnd {
  /// False if the program was killed by SIGKILL, most likely by `stop`.
  bool on_its_own = false;
  /// For example "exit status 3" or "killed by signal 9 (Killed)".
  std::string how;
};

/// A running program in its own process group. Only `wait`, `stop` and the destructor block.
///
/// The child is killed when this process dies, and also when the thread that started it exits,
/// since Linux ties PR_SET_PDEATHSIG to the thread. Threads that step a reward engine must
/// therefore live as long as the run. The descriptors are close-on-exec, so no other child and none
/// of its descendants inherit them.
class ChildProcess {
public:
  /// Starts `command`. A program name without '/' is looked up in PATH.
  /// Errors: `kInvalidArgument` if the program is not found or cannot be executed; `kUnavailable`
  /// if the system cannot create a pipe or a process.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& command);

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Closes the program's stdin, waits up to half a second for it to exit, and kills all processes
  /// that it has started.
  ~ChildProcess();

  /// Returns whether the program has ended. It remains a zombie until `stop`.
  [[nodiscard]] bool ended() const;
  [[nodiscard]] PipeResult write_stdin(std::string_view bytes);
  [[nodiscard]] PipeResult read_stdout(std::span<char> into);
  [[nodiscard]] PipeResult read_stderr(std::span<char> into);
  /// Waits up to `at_most`, and no longer than a second, until stdout or stderr can be read. If
  /// `wants_write`, stdin becoming writable also ends the wait.
  void wait(bool wants_write, Duration at_most) const;

  /// Kills the process group and all other processes that the program has started
  /// (process_tree.hpp), reaps the child, and returns how it ended.
  ProgramEnd stop();

private:
  ChildProcess(pid_t pid, std::string mark, UniqueFd in, UniqueFd out, UniqueFd err)
      : pid_(pid),
        mark_(std::move(mark)),
        stdin_(std::move(in)),
        stdout_(std::move(out)),
        stderr_(std::move(err)) {}

  pid_t pid_;         // 0 once reaped
  std::string mark_;  // in the environment of the program; see process_tree.hpp
  UniqueFd stdin_;
  UniqueFd stdout_;
  UniqueFd stderr_;
};

}  // namespace tidemill::engines
