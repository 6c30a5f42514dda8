// SPDX-License-Identifier: Apache-2.0
// The other process of a figure.
#pragma once

#include <chrono>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace tidemill::bench {

/// A child process, which is killed at the end. Make it while this process has no other thread.
class ForkedProcess {
public:
  /// Runs `work` in a child.
  template <class Work>
  explicit ForkedProcess(Work work) : pid_(::fork()) {
    if (pid_ == 0) {
      work();
      ::_exit(0);
    }
  }
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;
  ~ForkedProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  [[nodiscard]] bool started() const noexcept { return pid_ > 0; }

private:
  pid_t pid_;
};

[[nodiscard]] inline double elapsed_seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace tidemill::bench
