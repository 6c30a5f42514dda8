// SPDX-License-Identifier: Apache-2.0
#include "engines/reward/child_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/text/process_end.hpp"
#include "base/thread_limit.hpp"
#include "engines/reward/process_tree.hpp"

namespace tidemill::engines {
namespace {

constexpr auto kExitGrace = std::chrono::milliseconds(500);

std::string errno_text(int error) {
  return std::error_code(error, std::generic_category()).message();
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return Status(Errc::kUnavailable, "cannot create a pipe: " + errno_text(errno));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Finds the program before the fork, because the child may only call async-signal-safe functions.
Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return name;
  }
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nothing here sets it
  std::string_view rest = path != nullptr ? path : "/usr/bin:/bin";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
    const std::string candidate = std::string(folder.empty() ? "." : folder) + "/" + name;
    if (::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return invalid_argument("cannot run `" + name + "`: not found in PATH");
}

// The values that the new process needs, prepared before the fork.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* environment;
  int in;
  int out;
  int err;
  int report;  // receives errno if the child fails before exec
  pid_t parent;
};

[[noreturn]] void fail_child(int report) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof error);
  ::_exit(127);
}

// Runs in the child between fork and exec. Calls only async-signal-safe functions.
[[noreturn]] void exec_child(const ChildPlan& plan) {
  // If the parent runs without standard streams, a pipe end may have number 0, 1 or 2. All ends are
  // first duplicated to higher numbers, so that no dup2 below overwrites one that is still needed.
  const int in = ::fcntl(plan.in, F_DUPFD_CLOEXEC, 3);
  const int out = ::fcntl(plan.out, F_DUPFD_CLOEXEC, 3);
  const int err = ::fcntl(plan.err, F_DUPFD_CLOEXEC, 3);
  const int report = ::fcntl(plan.report, F_DUPFD_CLOEXEC, 3);
  if (in < 0 || out < 0 || err < 0 || report < 0 || ::setpgid(0, 0) != 0 ||
      ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 ||
      ::dup2(err, 2) < 0) {
    fail_child(report >= 0 ? report : plan.report);
  }
  if (::getppid() != plan.parent) {
    ::_exit(127);  // the parent died before the death signal was armed
  }
  for (int number = 1; number < NSIG; ++number) {
    ::signal(number, SIG_DFL);  // fails for SIGKILL and SIGSTOP, which need no reset
  }
  // Descriptors that another part of this process has opened without O_CLOEXEC. Older kernels lack
  // the call. CLOSE_RANGE_CLOEXEC keeps `report` open until exec.
  constexpr unsigned kCloseOnExec = 1U << 2U;
  ::syscall(SYS_close_range, 3U, std::numeric_limits<unsigned>::max(), kCloseOnExec);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // NOLINT(concurrency-mt-unsafe): one thread here
  ::execve(plan.program, plan.argv, plan.environment);
  fail_child(report);
}

// Blocks every signal in this thread during its lifetime, so that no signal handler of this process
// runs in the child.
class SignalsBlocked {
public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_{};
};

// Keeps a write to a closed pipe from killing this process. Blocks SIGPIPE in this thread, and on
// destruction consumes the signal that the write may have left pending.
class SigpipeBlocked {
public:
  SigpipeBlocked() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;
  ~SigpipeBlocked() {
    const int error = errno;
    if (!was_pending_) {
      const timespec at_once{};
      ::sigtimedwait(&pipe_, nullptr, &at_once);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

Status set_nonblocking(const UniqueFd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return {Errc::kUnavailable, "cannot set up a pipe: " + errno_text(errno)};
  }
  return {};
}

PipeResult pipe_result(ssize_t bytes) {
  if (bytes > 0) {
    return {PipeState::kMoved, static_cast<std::size_t>(bytes)};
  }
  const bool blocked = bytes < 0 && (errno == EAGAIN || errno == EINTR);
  return {blocked ? PipeState::kBlocked : PipeState::kClosed, 0};
}

PipeResult read_pipe(const UniqueFd& fd, std::span<char> into) {
  return fd.is_open() ? pipe_result(::read(fd.get(), into.data(), into.size()))
                      : PipeResult{PipeState::kClosed, 0};
}

ProgramEnd describe(int status) {
  return {!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL, process_end_text(status)};
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(const std::vector<std::string>& command) {
  if (command.empty() || command.front().empty()) {
    return invalid_argument("no program given");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::string program, find_program(command.front()));
  TIDEMILL_ASSIGN_OR_RETURN(Pipe in, make_pipe());
  TIDEMILL_ASSIGN_OR_RETURN(Pipe out, make_pipe());
  TIDEMILL_ASSIGN_OR_RETURN(Pipe err, make_pipe());
  TIDEMILL_ASSIGN_OR_RETURN(Pipe report, make_pipe());
  TIDEMILL_RETURN_IF_ERROR(set_nonblocking(in.write));
  TIDEMILL_RETURN_IF_ERROR(set_nonblocking(out.read));
  TIDEMILL_RETURN_IF_ERROR(set_nonblocking(err.read));

  std::vector<std::string> words = command;
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  std::string mark = make_process_mark();
  std::vector<char*> environment;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    environment.push_back(*entry);
  }
  environment.push_back(mark.data());
  environment.push_back(nullptr);
  const ChildPlan plan{program.c_str(), argv.data(),     environment.data(), in.read.get(),
                       out.write.get(), err.write.get(), report.write.get(), ::getpid()};
  pid_t pid = 0;
  {
    const SignalsBlocked blocked;
    pid = ::fork();
    if (pid == 0) {
      exec_child(plan);
    }
  }
  if (pid < 0) {
    const int error = errno;
    const std::string limit = error == EAGAIN ? thread_limit_text() : "";
    return Status(Errc::kUnavailable, "cannot start a process: " + errno_text(error) +
                                          (limit.empty() ? "" : " (" + limit + ")"));
  }
  ::setpgid(pid, pid);  // both processes call it, so the group exists before either continues
  report.write.reset();
  std::unique_ptr<ChildProcess> child(new ChildProcess(pid, std::move(mark), std::move(in.write),
                                                       std::move(out.read), std::move(err.read)));
  // A successful exec closes the child's end, so this read waits only for the fork and the exec.
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(report.read.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  if (got == static_cast<ssize_t>(sizeof error)) {
    child->stop();
    return invalid_argument("cannot run `" + command.front() + "`: " + errno_text(error));
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ == 0) {
    return;
  }
  stdin_.reset();
  const SystemClock clock;
  const TimePoint deadline = clock.now() + kExitGrace;
  std::array<char, 4096> rest{};
  while (!ended() && clock.now() < deadline) {
    // Drain the output, since a program may exit only after it has written its last lines.
    const bool quiet = read_stdout(rest).state != PipeState::kMoved;
    if (read_stderr(rest).state != PipeState::kMoved && quiet) {
      ::poll(nullptr, 0, 1);
    }
  }
  stop();
}

bool ChildProcess::ended() const {
  siginfo_t info{};
  // WNOWAIT leaves the zombie, so that its pid cannot be reused before its group is killed.
  return pid_ == 0 ||
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == pid_;
}

PipeResult ChildProcess::write_stdin(std::string_view bytes) {
  if (!stdin_.is_open()) {
    return {PipeState::kClosed, 0};
  }
  const SigpipeBlocked blocked;
  return pipe_result(::write(stdin_.get(), bytes.data(), bytes.size()));
}

PipeResult ChildProcess::read_stdout(std::span<char> into) {
  return read_pipe(stdout_, into);
}

PipeResult ChildProcess::read_stderr(std::span<char> into) {
  const PipeResult result = read_pipe(stderr_, into);
  if (result.state == PipeState::kClosed) {
    stderr_.reset();  // a closed pipe is always ready, so polling it would spin
  }
  return result;
}

void ChildProcess::wait(bool wants_write, Duration at_most) const {
  std::array<pollfd, 3> fds{{{stdout_.get(), POLLIN, 0},
                             {stderr_.get(), POLLIN, 0},
                             {wants_write ? stdin_.get() : -1, POLLOUT, 0}}};
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
  ::poll(fds.data(), fds.size(), static_cast<int>(std::clamp<decltype(whole)>(whole, 0, 1000)));
}

ProgramEnd ChildProcess::stop() {
  if (pid_ == 0) {
    return {true, "already stopped"};
  }
  kill_process_tree(pid_, mark_, "/proc", SystemClock());
  int status = 0;
  pid_t collected = 0;
  do {
    collected = ::waitpid(pid_, &status, 0);
  } while (collected < 0 && errno == EINTR);
  pid_ = 0;
  stdin_.reset();
  stdout_.reset();
  stderr_.reset();
  return collected < 0 ? ProgramEnd{true, "already reaped"} : describe(status);
}

}  // namespace tidemill::engines
