// SPDX-License-Identifier: Apache-2.0
#include "launcher/process_start.hpp"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <malloc.h>
#include <new>
#include <string>
#include <sys/resource.h>
#include <system_error>
#include <unistd.h>

#include "base/thread_limit.hpp"
#include "launcher/program.hpp"

namespace tidemill::launcher {
namespace {

// A line on standard error, put together without allocating memory.
class EmergencyLine {
public:
  void add(const char* text) {
    for (; *text != '\0' && size_ < text_.size(); ++text) {
      text_[size_++] = *text;
    }
  }
  // Adds " (ulimit -v 97 MiB)" if the resource has a limit. `unit` is what the limit counts.
  void add_limit(__rlimit_resource resource, const char* name, rlim_t unit, const char* unit_name) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      std::array<char, 64> text{};
      std::snprintf(text.data(), text.size(), " (%s %llu%s)", name,
                    static_cast<unsigned long long>(limit.rlim_cur / unit), unit_name);
      add(text.data());
    }
  }
  void write() {
    if (size_ == text_.size()) {
      --size_;
    }
    text_[size_++] = '\n';
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text_.data(), size_);
  }

private:
  std::array<char, 512> text_{};
  std::size_t size_ = 0;
};

// What an exception that nothing has caught means.
enum class Cause { kMemory, kThreads, kBug };

// Adds what the exception says.
Cause describe_exception(EmergencyLine& line) {
  try {
    if (std::current_exception() != nullptr) {
      throw;
    }
    // A destructor that ran because of an exception has ended the process, such as that of a thread
    // that has not been joined.
    line.add(std::uncaught_exceptions() > 0 ? "out of memory or threads" : "terminated");
    return std::uncaught_exceptions() > 0 ? Cause::kThreads : Cause::kBug;
  } catch (const std::bad_alloc&) {
    line.add("out of memory");
    return Cause::kMemory;
  } catch (const std::system_error& error) {
    const bool refused = error.code() == std::errc::resource_unavailable_try_again;
    line.add(refused ? "a thread cannot be started" : error.what());
    return refused ? Cause::kThreads : Cause::kBug;
  } catch (const std::exception& error) {
    line.add(error.what());
  } catch (...) {
    line.add("unknown exception");
  }
  return Cause::kBug;
}

// Allocates, since threads are what is missing.
void add_thread_limit(EmergencyLine& line) {
  try {
    const std::string limit = thread_limit_text();
    line.add(limit.empty() ? "" : (" (" + limit + ")").c_str());
  } catch (...) {  // out of memory, too
    line.add_limit(RLIMIT_NPROC, "ulimit -u", 1, "");
  }
}

[[noreturn]] void on_terminate() {
  EmergencyLine line;
  line.add("tidemill: ");
  const Cause cause = describe_exception(line);
  if (cause == Cause::kBug) {
    line.write();
    std::abort();
  }
  line.add_limit(RLIMIT_AS, "ulimit -v", 1U << 20U, " MiB");
  line.add_limit(RLIMIT_DATA, "ulimit -d", 1U << 20U, " MiB");
  if (cause == Cause::kThreads) {
    add_thread_limit(line);
  }
  line.write();
  ::_exit(kFailed);
}

}  // namespace

void open_standard_streams() {
  // `open` returns the smallest number that is free. The stream is opened in the direction in which
  // it is not used.
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) {
      const int opened = ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
      if (opened != stream) {
        ::_exit(kFailed);
      }
    }
  }
}

void end_on_exhaustion() {
  std::set_terminate(on_terminate);
}

void ignore_file_size_signal() {
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &ignore, nullptr);
}

void return_large_blocks() {
  // Fixes the size from which malloc maps a block of its own, which free returns to the system. By
  // default the size grows with the blocks that are freed, and the memory of a restored commit then
  // stays with the process for the whole run.
  constexpr int kOwnMappingBytes = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kOwnMappingBytes);  // NOLINT(concurrency-mt-unsafe): as below
}

Status apply_limits() {
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < rlim_t{kMinStackKib} * 1024) {
    return {Errc::kResourceExhausted,
            "tidemill: the stack is limited to " + std::to_string(stack.rlim_cur / 1024) +
                " KiB (ulimit -s), and the program needs " + std::to_string(kMinStackKib)};
  }
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    // Each further arena reserves 64 MiB of address space.
    ::mallopt(M_ARENA_MAX, 1);  // NOLINT(concurrency-mt-unsafe): there is one thread so far
  }
  return {};
}

}  // namespace tidemill::launcher
