// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/run_lock.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <string>
#include <sys/file.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"

namespace tidemill::storage {
namespace {

// The process id that the holder wrote into the file, for the message only.
std::string holder_of(int descriptor) {
  std::array<char, 20> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  std::string digits;
  for (ssize_t i = 0; i < size && text[static_cast<std::size_t>(i)] >= '0' &&
                      text[static_cast<std::size_t>(i)] <= '9';
       ++i) {
    digits += text[static_cast<std::size_t>(i)];
  }
  return digits.empty() ? "another process" : "process " + digits;
}

constexpr int kMaxWaitMs = 250;  // milliseconds

int lock_now(int descriptor, int kind) {
  int result = 0;
  do {
    result = ::flock(descriptor, kind | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

Result<bool> is_run_locked(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "lock";
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) {
    return errno == ENOENT ? Result<bool>(false) : system_error(errno, "open", path);
  }
  const bool taken = lock_now(descriptor, LOCK_SH) == 0;
  const int error = errno;
  ::close(descriptor);  // releases the lock
  if (!taken && error != EWOULDBLOCK) {
    return system_error(error, "lock", path);
  }
  return !taken;
}

Result<RunLock> RunLock::acquire(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "lock";
  constexpr mode_t kMode = 0644;
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, kMode);
  if (descriptor < 0) {
    return system_error(errno, "open", path);
  }
  RunLock lock(descriptor);
  // `is_run_locked` in another process holds the lock for a few microseconds.
  int result = lock_now(descriptor, LOCK_EX);
  for (int i = 0; i < kMaxWaitMs && result != 0 && errno == EWOULDBLOCK; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result = lock_now(descriptor, LOCK_EX);
  }
  if (result != 0 && errno == EWOULDBLOCK) {
    return Status(Errc::kUnavailable,
                  run_directory.string() + ": in use by " + holder_of(descriptor));
  }
  if (result != 0) {
    return system_error(errno, "lock", path);
  }
  // The lock is held. Without the process id in the file, another process prints a vaguer message.
  const std::string number = std::to_string(::getpid()) + "\n";
  if (::ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, number.data(), number.size(), 0);
  }
  return lock;
}

RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

}  // namespace tidemill::storage
