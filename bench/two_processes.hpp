// SPDX-License-Identifier: Apache-2.0
// The other process of a figure, and the link to it.
#pragma once

#include <csignal>
#include <cstdint>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/peer_link.hpp"

namespace tidemill::bench {

/// A child process, which is killed at the end. Make it while this process has no other thread.
class ForkedProcess {
public:
  /// Runs `work` in a child.
  template <class Work>
  explicit ForkedProcess(Work work) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // also if this process is killed
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
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

private:
  pid_t pid_;
};

/// Returns the options of the link from the process `self` to the process `peer`, which opens the
/// connection unless a connector is added.
[[nodiscard]] inline transport::PeerLinkOptions link_options(std::uint32_t self,
                                                             std::uint32_t peer) {
  transport::PeerLinkOptions options;
  options.session.run = 1;
  options.session.self = self;
  options.session.peer = peer;
  return options;
}

}  // namespace tidemill::bench
