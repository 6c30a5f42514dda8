// SPDX-License-Identifier: Apache-2.0
// A program of the user's as a child, with pipes to its standard streams.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/clock.hpp"
#include "base/result.hpp"

namespace tidemill::engines {

/// A file descriptor that is closed when its owner goes.
class UniqueFd {
public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

private:
  int fd_ = -1;
};

/// What came of a read or write that does not wait.
enum class PipeState {
  kMoved,    // bytes were moved
  kBlocked,  // nothing could be moved now
  kClosed    // the other end is gone
};

/// Bytes moved, and why not more.
struct PipeResult {
  PipeState state = PipeState::kBlocked;
  std::size_t bytes = 0;
};

/// How a program came to its end.
struct ProgramEnd {
  /// Whether it ended on its own; else somebody killed it (SIGKILL), most likely `stop`.
  bool on_its_own = false;
  /// "exit status 3", "killed by signal 9 (Killed)".
  std::string how;
};

/// A running program in a process group of its own. No call but `stop` waits.
///
/// The child dies with this process, and also with the thread that started it (Linux ties
/// PR_SET_PDEATHSIG to the thread): threads that step a reward engine live as long as the run.
/// Descriptors are close-on-exec: neither another child nor its heirs inherit them.
class ChildProcess {
public:
  /// Starts `command`; a program without '/' is looked up in PATH.
  /// Errors: `kInvalidArgument` when the program is not found or cannot be executed;
  /// `kUnavailable` when the system refuses a pipe or a process.
  [[nodiscard]] static Result<std::unique_ptr<ChildProcess>> start(
      const std::vector<std::string>& command);

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  /// Closes the program's stdin, gives it half a second to end, kills what is left of its group.
  ~ChildProcess();

  /// Returns whether the program has ended. It stays a zombie until `stop`.
  [[nodiscard]] bool ended() const;
  [[nodiscard]] PipeResult write_stdin(std::string_view bytes);
  [[nodiscard]] PipeResult read_stdout(std::span<char> into);
  [[nodiscard]] PipeResult read_stderr(std::span<char> into);
  /// Waits until a stream can move bytes (stdin only when `wants_write`), at most `at_most`.
  void wait(bool wants_write, Duration at_most) const;

  /// Kills what is left of the group, collects the child, and says how it ended.
  ProgramEnd stop();

private:
  ChildProcess(pid_t pid, UniqueFd in, UniqueFd out, UniqueFd err)
      : pid_(pid), stdin_(std::move(in)), stdout_(std::move(out)), stderr_(std::move(err)) {}

  pid_t pid_;  // 0 once collected
  UniqueFd stdin_;
  UniqueFd stdout_;
  UniqueFd stderr_;
};

}  // namespace tidemill::engines
