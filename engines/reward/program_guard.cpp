// SPDX-License-Identifier: Apache-2.0
// The guard of reward programs: a process that ends what they have started.
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <limits>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include "base/clock.hpp"
#include "base/files/unique_fd.hpp"
#include "engines/reward/factory.hpp"
#include "engines/reward/process_tree.hpp"

namespace tidemill::engines {
namespace {

Status unavailable(const std::string& action) {
  return {Errc::kUnavailable, "guard of reward programs: cannot create a " + action + ": " +
                                  std::error_code(errno, std::generic_category()).message()};
}

// Waits until all copies of the other end of the pipe are closed, which only `guarded` has.
[[noreturn]] void guard(int pipe, pid_t guarded) {
  ::setsid();
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE}) {
    ::signal(number, SIG_IGN);
  }
  ::prctl(PR_SET_NAME, "tidemill-guard");
  // It keeps no file, socket or folder of the other process.
  [[maybe_unused]] const int moved = ::chdir("/");
  ::dup2(pipe, STDIN_FILENO);
  ::syscall(SYS_close_range, 1U, std::numeric_limits<unsigned>::max(), 0U);
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
  }
  kill_marked_by(guarded, "/proc", SystemClock());
  ::_exit(0);
}

}  // namespace

Status start_program_guard() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return unavailable("pipe");
  }
  const UniqueFd read(ends[0]);
  const pid_t guarded = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    guard(ends[0], guarded);
  }
  if (pid < 0) {
    Status failure = unavailable("process");
    ::close(ends[1]);
    return failure;
  }
  return {};  // the other end stays open until this process ends
}

}  // namespace tidemill::engines
