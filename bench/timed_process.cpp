// SPDX-License-Identifier: Apache-2.0
#include "bench/timed_process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/peak_memory.hpp"
#include "bench/times.hpp"

namespace tidemill::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kPollMs = 50;
constexpr const char* kErrorFile = "said";

std::string last_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line.empty() ? last : line;
  }
  return last;
}

// A child process and the reading end of its output. The destructor kills the process if it still
// runs and waits for its end.
class Child {
public:
  Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (output_ >= 0) {
      ::close(output_);
    }
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      (void)wait();
    }
  }

  [[nodiscard]] Status start(const std::vector<std::string>& command,
                             const std::filesystem::path& directory) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      return {Errc::kUnavailable, "cannot create a pipe"};
    }
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, kErrorFile,
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    std::vector<char*> arguments;
    for (const std::string& word : command) {
      arguments.push_back(const_cast<char*>(word.c_str()));  // NOLINT: posix_spawn requires it
    }
    arguments.push_back(nullptr);
    const int error =
        ::posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, arguments.data(), ::environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (error != 0) {
      pid_ = -1;
      return {Errc::kUnavailable, command[0] + ": cannot be started"};
    }
    return {};
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int output() const { return output_; }

  // Waits for the process to end. Returns the exit code, or the negated signal number.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

private:
  pid_t pid_ = -1;
  int output_ = -1;
};

// Moves the complete lines of `rest` to `lines`.
void take_lines(std::string& rest, double seconds, std::vector<TimedLine>& lines) {
  for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
    lines.push_back({seconds, rest.substr(0, end)});
    rest.erase(0, end + 1);
  }
}

}  // namespace

Result<TimedProcess> run_timed(const std::vector<std::string>& command,
                               const std::filesystem::path& directory, Duration timeout) {
  const SteadyClock::time_point start = SteadyClock::now();
  Child child;
  TIDEMILL_RETURN_IF_ERROR(child.start(command, directory));
  const double deadline = std::chrono::duration<double>(timeout).count();
  TimedProcess process;
  std::string rest;
  for (bool open = true; open;) {
    pollfd waited{child.output(), POLLIN, 0};
    const int ready = ::poll(&waited, 1, kPollMs);
    const double now = elapsed_seconds(start);
    process.peak_bytes = std::max(process.peak_bytes, peak_memory_bytes(child.pid()));
    if (now > deadline) {
      return Status(Errc::kUnavailable, command[0] + ": not done after " +
                                            std::to_string(static_cast<int>(deadline)) + " s");
    }
    if (ready <= 0) {
      continue;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(child.output(), bytes.data(), bytes.size());
    open = count > 0 || (count < 0 && errno == EINTR);
    rest.append(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    take_lines(rest, now, process.lines);
  }
  if (const int code = child.wait(); code != 0) {
    return Status(Errc::kUnavailable, command[0] + ": ended with " + std::to_string(code) + ": " +
                                          last_line(directory / kErrorFile));
  }
  return process;
}

}  // namespace tidemill::bench
