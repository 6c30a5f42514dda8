// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD that makes calls of the system fail as if a resource were used up. It
// replaces functions of the C library.
//
// TIDEMILL_FAULT says what fails, in words with a space between them:
//
//   ROLE     run, rollout or reward: the processes in which calls fail
//   KIND     shared_memory, disk, io, processes or threads; or none: no call fails
//   AFTER    how many calls of this kind succeed first, in each process
//   TIMES    how many calls fail after that, in all processes of the role; 0: all
//   RECORD   a file, which gets a line for each call that fails; with `none`, that could fail
//   FOLDERS  where `disk` and `io` apply: parts of paths, with a colon between them
//
// A line of the record has the role, the kind, the process id, the call and the path.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <vector>

namespace {

enum class Kind : std::uint8_t { kSharedMemory, kDisk, kIo, kProcesses, kThreads };
constexpr std::array<const char*, 5> kKindNames{"shared_memory", "disk", "io", "processes",
                                                "threads"};

// The environment variable, as far as it concerns this process. Reads files through `syscall`,
// because the functions below use the object.
class Fault {
public:
  Fault() : role_(role_of_process()) {
    const char* given = std::getenv("TIDEMILL_FAULT");  // NOLINT(concurrency-mt-unsafe)
    std::istringstream words(given == nullptr ? "" : given);
    std::string role;
    std::string folders;
    words >> role >> kind_ >> after_ >> times_ >> record_ >> folders;
    active_ = !words.fail() && !role_.empty() && role == role_;
    std::istringstream parts(folders);
    for (std::string part; std::getline(parts, part, ':');) {
      folders_.push_back(part);
    }
  }

  [[nodiscard]] bool active() const { return active_; }
  [[nodiscard]] bool has_folder(std::string_view path) const {
    return std::ranges::any_of(folders_, [&](const std::string& part) {
      return path.find(part) != std::string_view::npos;
    });
  }

  // Returns whether a call that could fail in this way must do so.
  bool inject(Kind kind, const char* call, const std::string& path) {
    const char* name = kKindNames.at(static_cast<std::size_t>(kind));
    if (kind_ == "none") {
      record(name, call, path, 0);
      return false;
    }
    return kind_ == name && calls_.fetch_add(1) >= after_ && record(name, call, path, times_);
  }

private:
  static std::string contents(int descriptor) {
    std::string text;
    std::array<char, 4096> bytes{};
    for (;;) {
      const long got = ::syscall(SYS_read, descriptor, bytes.data(), bytes.size());
      if (got <= 0) {
        return text;
      }
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
  }

  // Returns the role that the command line of this process names. Empty: another program.
  static std::string role_of_process() {
    const auto file = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
    std::istringstream text(contents(file));
    ::syscall(SYS_close, file);
    std::vector<std::string> words;
    for (std::string word; std::getline(text, word, '\0');) {
      words.push_back(word);
    }
    if (words.size() < 2 || !words[0].ends_with("tidemill")) {
      return {};
    }
    const auto flag = std::find(words.begin(), words.end() - 1, "--role");
    if (flag != words.end() - 1) {
      return *(flag + 1);
    }
    return words[1] == "run" || words[1] == "resume" ? "run" : "";
  }

  // Adds a line to the record, unless it has `most` lines. Returns whether it did. 0: no limit.
  bool record(const char* kind, const char* call, const std::string& path, int most) const {
    const int error = errno;
    const auto file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, record_.c_str(),
                                                 O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    ::flock(file, LOCK_EX);
    const std::string before = most == 0 ? "" : contents(file);
    const bool add = most == 0 || std::ranges::count(before, '\n') < most;
    if (add) {
      const std::string line =
          role_ + " " + kind + " " + std::to_string(::getpid()) + " " + call + " " + path + "\n";
      ::syscall(SYS_write, file, line.data(), line.size());
    }
    ::syscall(SYS_close, file);
    errno = error;
    return add;
  }

  const std::string role_;
  std::string kind_;
  std::uint64_t after_ = 0;
  int times_ = 0;
  std::string record_;
  std::vector<std::string> folders_;
  bool active_ = false;
  std::atomic<std::uint64_t> calls_ = 0;
};

Fault& fault() {
  static Fault* const one = new Fault;  // used until the process ends
  return *one;
}

bool fails(Kind kind, const char* call, const std::string& path, int error) {
  if (!fault().inject(kind, call, path)) {
    return false;
  }
  errno = error;
  return true;
}

std::string path_of(int descriptor) {
  std::array<char, 4096> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  return {target.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

// Returns an absolute path, so that it names its folder.
std::string absolute(int folder, const char* path) {
  if (path[0] == '/') {
    return path;
  }
  std::array<char, 4096> working{};
  if (folder == AT_FDCWD) {
    return (::getcwd(working.data(), working.size()) != nullptr ? std::string(working.data())
                                                                : "") +
           "/" + path;
  }
  return path_of(folder) + "/" + path;
}

// A call that needs space on a disk.
bool disk_fails(const char* call, const std::string& path) {
  return fault().has_folder(path) && (fails(Kind::kDisk, call, path, ENOSPC));
}
bool io_fails(const char* call, const std::string& path) {
  return fault().has_folder(path) && fails(Kind::kIo, call, path, EIO);
}
bool write_fails(const char* call, const std::string& path) {
  return fault().active() && (disk_fails(call, path) || io_fails(call, path));
}
bool write_fails(const char* call, int descriptor) {
  return fault().active() && write_fails(call, path_of(descriptor));
}
bool read_fails(const char* call, int descriptor) {
  return fault().active() && io_fails(call, path_of(descriptor));
}
bool open_fails(const char* call, int folder, const char* path, int flags) {
  if (!fault().active()) {
    return false;
  }
  const std::string whole = absolute(folder, path);
  const bool creates = (flags & O_CREAT) != 0 && ::faccessat(AT_FDCWD, whole.c_str(), F_OK, 0) != 0;
  return (creates && disk_fails(call, whole)) || io_fails(call, whole);
}
bool memory_fails(const char* call, int descriptor, int error) {
  if (!fault().active() || descriptor < 0) {
    return false;
  }
  const std::string path = path_of(descriptor);
  return path.starts_with("/memfd:") && fails(Kind::kSharedMemory, call, path, error);
}

// Returns the function of the C library.
template <typename Function>
Function* next(Function* /*own*/, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// The mode of a file that `open` creates.
mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

#define TIDEMILL_NEXT(function) static auto* const real = next(&(function), #function)

extern "C" {

// -- files

int open(const char* path, int flags, ...) {
  TIDEMILL_NEXT(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_fails("open", AT_FDCWD, path, flags) ? -1 : real(path, flags, mode);
}
int open64(const char* path, int flags, ...) __attribute__((alias("open")));
int openat(int folder, const char* path, int flags, ...) {
  TIDEMILL_NEXT(openat);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_fails("openat", folder, path, flags) ? -1 : real(folder, path, flags, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  TIDEMILL_NEXT(fopen64);
  const int flags = mode[0] == 'r' ? O_RDONLY : O_WRONLY | O_CREAT;
  return open_fails("fopen", AT_FDCWD, path, flags) ? nullptr : real(path, mode);
}
ssize_t write(int descriptor, const void* bytes, size_t size) {
  TIDEMILL_NEXT(write);
  return write_fails("write", descriptor) ? -1 : real(descriptor, bytes, size);
}
ssize_t writev(int descriptor, const iovec* parts, int count) {
  TIDEMILL_NEXT(writev);
  return write_fails("writev", descriptor) ? -1 : real(descriptor, parts, count);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  TIDEMILL_NEXT(pwrite);
  return write_fails("pwrite", descriptor) ? -1 : real(descriptor, bytes, size, offset);
}
ssize_t read(int descriptor, void* bytes, size_t size) {
  TIDEMILL_NEXT(read);
  return read_fails("read", descriptor) ? -1 : real(descriptor, bytes, size);
}
ssize_t pread(int descriptor, void* bytes, size_t size, off_t offset) {
  TIDEMILL_NEXT(pread);
  return read_fails("pread", descriptor) ? -1 : real(descriptor, bytes, size, offset);
}
int fsync(int descriptor) {
  TIDEMILL_NEXT(fsync);
  return write_fails("fsync", descriptor) ? -1 : real(descriptor);
}
int rename(const char* from, const char* to) noexcept {
  TIDEMILL_NEXT(rename);
  return write_fails("rename", absolute(AT_FDCWD, to)) ? -1 : real(from, to);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  TIDEMILL_NEXT(renameat);
  return write_fails("renameat", absolute(to_folder, to)) ? -1
                                                          : real(from_folder, from, to_folder, to);
}
int mkdir(const char* path, mode_t mode) noexcept {
  TIDEMILL_NEXT(mkdir);
  return write_fails("mkdir", absolute(AT_FDCWD, path)) ? -1 : real(path, mode);
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  TIDEMILL_NEXT(mkdirat);
  return write_fails("mkdirat", absolute(folder, path)) ? -1 : real(folder, path, mode);
}

// -- shared memory

int memfd_create(const char* name, unsigned flags) noexcept {
  TIDEMILL_NEXT(memfd_create);
  return fault().active() && fails(Kind::kSharedMemory, "memfd_create", name, ENOMEM)
             ? -1
             : real(name, flags);
}
int ftruncate(int descriptor, off_t size) noexcept {
  TIDEMILL_NEXT(ftruncate);
  return memory_fails("ftruncate", descriptor, ENOSPC) ||
                 (fault().active() && io_fails("ftruncate", path_of(descriptor)))
             ? -1
             : real(descriptor, size);
}
int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  TIDEMILL_NEXT(fallocate);
  return memory_fails("fallocate", descriptor, ENOSPC) || write_fails("fallocate", descriptor)
             ? -1
             : real(descriptor, mode, offset, size);
}
void* mmap(void* at, size_t size, int protection, int flags, int descriptor,
           off_t offset) noexcept {
  TIDEMILL_NEXT(mmap);
  return memory_fails("mmap", descriptor, ENOMEM)
             ? MAP_FAILED
             : real(at, size, protection, flags, descriptor, offset);
}

// -- processes and threads

pid_t fork() noexcept {
  TIDEMILL_NEXT(fork);
  return fault().active() && fails(Kind::kProcesses, "fork", "-", EAGAIN) ? -1 : real();
}
int posix_spawn(pid_t* process, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments,
                char* const* environment) {
  TIDEMILL_NEXT(posix_spawn);
  return fault().active() && fails(Kind::kProcesses, "posix_spawn", path, EAGAIN)
             ? EAGAIN
             : real(process, path, actions, attributes, arguments, environment);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  TIDEMILL_NEXT(pthread_create);
  return fault().active() && fails(Kind::kThreads, "pthread_create", "-", EAGAIN)
             ? EAGAIN
             : real(thread, attributes, body, argument);
}

}  // extern "C"
