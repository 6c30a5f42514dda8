// SPDX-License-Identifier: Apache-2.0
#include "tests/process/program_run.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  TIDEMILL_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0);
  return {ends[0], ends[1]};
}

int milliseconds_until(SteadyClock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
  return static_cast<int>(std::max<decltype(left)>(left, 0));
}

}  // namespace

std::string Ended::describe() const {
  return "exit " + std::to_string(code) + ", signal " + std::to_string(signal) + "\n--- out\n" +
         out + "--- err\n" + err;
}

std::string Ended::last_error_line() const {
  const std::string text = err.substr(0, err.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

std::vector<std::string> tidemill(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TIDEMILL_PROGRAM);
  return arguments;
}

ProgramRun::ProgramRun(const std::filesystem::path& folder,
                       const std::vector<std::string>& command) {
  const Pipe out = make_pipe();
  const Pipe err = make_pipe();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  posix_spawn_file_actions_adddup2(&actions, err.write, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  const int error = ::posix_spawnp(&pid_, argv[0], &actions, &attributes, argv.data(), ::environ);
  TIDEMILL_CHECK(error == 0) << command.front() << " error=" << error;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out.write);
  ::close(err.write);
  out_ = out.read;
  err_ = err.read;
  pid_descriptor_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  TIDEMILL_CHECK(pid_descriptor_ >= 0) << "pidfd_open errno=" << errno;
}

ProgramRun::~ProgramRun() {
  if (pid_ != 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int descriptor : {pid_descriptor_, out_, err_}) {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
}

void ProgramRun::send(int signal) const {
  TIDEMILL_CHECK(::kill(pid_, signal) == 0);
}

bool ProgramRun::ended_within(std::chrono::microseconds time) const {
  const timespec limit{time.count() / 1'000'000, (time.count() % 1'000'000) * 1'000};
  pollfd process{pid_descriptor_, POLLIN, 0};
  return ::ppoll(&process, 1, &limit, nullptr) == 1;
}

// Reads what the pipes hold. Returns false if nothing arrived in time, or if both are closed.
bool ProgramRun::read_some(int timeout_ms) {
  std::array<pollfd, 2> pipes{{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  if ((out_ < 0 && err_ < 0) || ::poll(pipes.data(), pipes.size(), timeout_ms) <= 0) {
    return false;
  }
  const auto take = [](const pollfd& ready, int& descriptor, std::string& text) {
    if (ready.revents == 0) {
      return;
    }
    std::array<char, 4096> bytes{};
    const ssize_t count = ::read(descriptor, bytes.data(), bytes.size());
    if (count > 0) {
      text.append(bytes.data(), static_cast<std::size_t>(count));
    } else {
      ::close(descriptor);
      descriptor = -1;
    }
  };
  take(pipes[0], out_, out_text_);
  take(pipes[1], err_, err_text_);
  return true;
}

bool ProgramRun::wait_for_error_text(const std::string& text) {
  const auto deadline = SteadyClock::now() + kHang;
  while (err_text_.find(text) == std::string::npos) {
    if (!read_some(milliseconds_until(deadline))) {
      return false;
    }
  }
  return true;
}

std::optional<Ended> ProgramRun::finish(std::chrono::seconds hang) {
  const auto deadline = SteadyClock::now() + hang;
  while (read_some(milliseconds_until(deadline))) {
  }
  if (!ended_within(std::chrono::milliseconds(milliseconds_until(deadline)))) {
    return std::nullopt;
  }
  int status = 0;
  TIDEMILL_CHECK(::waitpid(pid_, &status, 0) == pid_);
  pid_ = 0;
  Ended ended;
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ended.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ended.out = out_text_;
  ended.err = err_text_;
  return ended;
}

}  // namespace tidemill::test
