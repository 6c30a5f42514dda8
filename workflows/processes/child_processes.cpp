// SPDX-License-Identifier: Apache-2.0
// One thread starts all processes and waits for their ends. Linux ties PR_SET_PDEATHSIG to the
// thread that starts a process, so the processes live no longer than that thread.
#include "workflows/processes/child_processes.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <string_view>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/check.hpp"
#include "base/files/unique_fd.hpp"
#include "base/text/clip.hpp"
#include "base/text/process_end.hpp"

namespace tidemill::workflows {
namespace {

std::string error_text(int error) {
  return std::system_category().message(error);
}

// The pipe that takes what a process writes.
struct OutputPipe {
  UniqueFd read;
  UniqueFd write;

  // Neither end blocks: a process goes on even if this one is stopped.
  static std::optional<OutputPipe> open() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
      return std::nullopt;
    }
    return OutputPipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
};

// Splits what a process writes into lines.
class OutputLines {
public:
  // Takes the lines that end in `bytes`.
  void add(std::string_view bytes) {
    for (const char c : bytes) {
      if (c == '\n' || rest_.size() == ChildProcesses::kMaxLineBytes) {
        flush();
      }
      if (c != '\n') {
        rest_ += c;
      }
    }
  }
  // Ends the last line.
  void flush() {
    if (!rest_.empty()) {
      last_ = clipped(rest_, ChildProcesses::kMaxLineBytes);
      rest_.clear();
      ended_.push_back(last_);
      ++count_;
    }
  }
  // Returns the lines that have ended since the last call.
  [[nodiscard]] std::vector<std::string> take() { return std::exchange(ended_, {}); }
  [[nodiscard]] const std::string& last() const { return last_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }

private:
  std::string rest_;
  std::string last_;
  std::vector<std::string> ended_;
  std::uint64_t count_ = 0;
};

// The attributes and file actions of a new process.
class SpawnPlan {
public:
  explicit SpawnPlan(int output) {
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_init(&files_);
    sigset_t all;
    sigset_t none;
    ::sigfillset(&all);
    ::sigemptyset(&none);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawn_file_actions_addopen(&files_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files_, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&files_, STDOUT_FILENO, STDERR_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&files_, STDERR_FILENO + 1);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }

  // Returns 0 or an errno.
  int spawn(const char* program, char* const* argv, pid_t& pid) const {
    return ::posix_spawn(&pid, program, &files_, &attributes_, argv, ::environ);
  }

private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t files_{};
};

}  // namespace

class ChildProcesses::Impl {
public:
  Impl() : woken_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    TIDEMILL_CHECK(woken_.is_open()) << error_text(errno);
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    thread_.join();
  }

  std::uint64_t start(ChildProgram program, OnExit on_exit) {
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = ++last_number_;
      Child& child = children_[number];
      child.program = std::move(program);
      child.on_exit = std::move(on_exit);
    }
    wake();
    return number;
  }

  [[nodiscard]] int pid(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto child = children_.find(number);
    return child == children_.end() ? 0 : child->second.pid;
  }

  void stop(std::uint64_t number) {
    {
      const std::lock_guard lock(mutex_);
      const auto child = children_.find(number);
      if (child == children_.end()) {
        return;
      }
      child->second.stop = true;
    }
    wake();
  }

private:
  struct Child {
    ChildProgram program;
    OnExit on_exit;
    bool started = false;
    bool stop = false;  // it shall end
    pid_t pid = 0;
    UniqueFd pidfd;
    UniqueFd output;  // not open: the process has closed its end
    OutputLines lines;
    std::optional<TimePoint> kill_at;  // after SIGTERM
    bool killed = false;
  };
  struct End {
    OnExit on_exit;
    ChildEnd end;
  };
  struct Output {
    std::function<void(const std::vector<std::string>&)> on_lines;
    std::vector<std::string> lines;
  };
  // What has happened to processes, to be passed on without the lock.
  struct Events {
    std::vector<Output> outputs;
    std::vector<End> ends;

    [[nodiscard]] bool empty() const { return outputs.empty() && ends.empty(); }
  };

  static constexpr std::size_t kReadBytes = 64U << 10U;
  static constexpr int kLastReads = 32;  // more than a pipe holds, after the end of a process

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(woken_.get(), &one, sizeof one);
  }

  void run() {
    for (;;) {
      Events events;
      {
        const std::lock_guard lock(mutex_);
        for (auto& [number, child] : children_) {
          child.stop = child.stop || stopping_;
        }
        update(events);
        if (stopping_ && children_.empty() && events.empty()) {
          return;
        }
      }
      for (const Output& output : events.outputs) {
        output.on_lines(output.lines);
      }
      for (const End& end : events.ends) {
        end.on_exit(end.end);
      }
      if (events.empty()) {
        wait();
      }
    }
  }

  // Starts, stops and reaps what is due, and reads what was written. Requires the lock.
  void update(Events& events) {
    const TimePoint now = clock_.now();
    for (auto it = children_.begin(); it != children_.end();) {
      Child& child = it->second;
      std::string how;
      if (!child.started) {
        child.started = true;
        how = child.stop ? "it was not started" : spawn(child);
      } else {
        how = reap(child.pid);
      }
      read_output(child, how.empty() ? 1 : kLastReads);
      if (!how.empty()) {
        child.lines.flush();
      }
      if (std::vector<std::string> lines = child.lines.take();
          !lines.empty() && child.program.on_lines) {
        events.outputs.push_back({child.program.on_lines, std::move(lines)});
      }
      if (!how.empty()) {
        events.ends.push_back(
            {std::move(child.on_exit),
             {std::move(how), child.lines.last(), child.lines.count(), child.pid != 0}});
        it = children_.erase(it);
        continue;
      }
      if (child.stop && !child.kill_at.has_value()) {
        child.kill_at = now + kEndTime;
        ::kill(child.pid, SIGTERM);
      } else if (child.kill_at.has_value() && *child.kill_at <= now && !child.killed) {
        child.killed = true;
        ::kill(-child.pid, SIGKILL);
      }
      ++it;
    }
  }

  // Reads what the process has written, with at most `reads` reads.
  static void read_output(Child& child, int reads) {
    std::array<char, kReadBytes> bytes;
    for (; reads > 0 && child.output.is_open(); --reads) {
      const ssize_t got = ::read(child.output.get(), bytes.data(), bytes.size());
      if (got > 0) {
        child.lines.add({bytes.data(), static_cast<std::size_t>(got)});
      } else if (got == 0) {
        child.output.reset();  // a closed pipe is always ready, so polling it would spin
      } else if (errno != EINTR) {
        return;
      }
    }
  }

  // Returns how the process has ended, or an empty text.
  static std::string reap(pid_t pid) {
    int status = 0;
    const pid_t ended = ::waitpid(pid, &status, WNOHANG);
    if (ended < 0) {
      // The kernel reaps the children of a process that ignores SIGCHLD.
      return errno == ECHILD ? "ended" : "";
    }
    return ended == pid ? process_end_text(status) : "";
  }

  // Returns why the process could not be started, or an empty text.
  static std::string spawn(Child& child) {
    std::string name = "tidemill";  // as `ps` shows it
    std::vector<char*> argv{name.data()};
    for (std::string& argument : child.program.arguments) {
      argv.push_back(argument.data());
    }
    argv.push_back(nullptr);
    std::optional<OutputPipe> output = OutputPipe::open();
    if (!output.has_value()) {
      return "cannot start a process: " + error_text(errno);
    }
    const SpawnPlan plan(output->write.get());
    const int error = plan.spawn(child.program.program.c_str(), argv.data(), child.pid);
    if (error != 0) {
      return "cannot start a process: " + error_text(error);
    }
    child.output = std::move(output->read);
    child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
    if (!child.pidfd.is_open()) {
      const std::string why = error_text(errno);
      ::kill(-child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      child.pid = 0;
      return "cannot watch a process: " + why;
    }
    return {};
  }

  // Waits until a process writes, ends or has to be killed, or until another thread changes
  // something.
  void wait() {
    std::vector<pollfd> files{{woken_.get(), POLLIN, 0}};
    TimePoint until = TimePoint::max();
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [number, child] : children_) {
        files.push_back({child.pidfd.get(), POLLIN, 0});
        files.push_back({child.output.get(), POLLIN, 0});  // a negative descriptor is left out
        if (child.kill_at.has_value() && !child.killed) {
          until = std::min(until, *child.kill_at);
        }
      }
    }
    timespec limit{};
    const bool limited = until != TimePoint::max();
    if (limited) {
      const Duration left = std::max(until - clock_.now(), Duration::zero());
      limit.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
      limit.tv_nsec = (left % std::chrono::seconds(1)).count();
    }
    ::ppoll(files.data(), files.size(), limited ? &limit : nullptr, nullptr);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(woken_.get(), &count, sizeof count);
  }

  SystemClock clock_;
  UniqueFd woken_;  // an event
  std::mutex mutex_;
  std::map<std::uint64_t, Child> children_;
  std::uint64_t last_number_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

ChildProcesses::ChildProcesses() : impl_(std::make_unique<Impl>()) {}
ChildProcesses::~ChildProcesses() = default;

std::uint64_t ChildProcesses::start(ChildProgram program, OnExit on_exit) {
  return impl_->start(std::move(program), std::move(on_exit));
}

int ChildProcesses::pid(std::uint64_t number) const {
  return impl_->pid(number);
}

void ChildProcesses::stop(std::uint64_t number) {
  impl_->stop(number);
}

}  // namespace tidemill::workflows
