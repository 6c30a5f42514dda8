// SPDX-License-Identifier: Apache-2.0
#include "base/files/held_directory.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tidemill {
namespace {

int or_errno(int result) {
  return result < 0 ? -errno : result;
}

}  // namespace

Result<std::shared_ptr<const HeldDirectory>> HeldDirectory::open(std::filesystem::path path) {
  const int descriptor = ::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return system_error(errno, "open", path);
  }
  return std::shared_ptr<const HeldDirectory>(new HeldDirectory(std::move(path), descriptor));
}

HeldDirectory::~HeldDirectory() {
  ::close(descriptor_);
}

bool HeldDirectory::in_place() const {
  struct stat held {};
  struct stat named {};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

std::optional<std::filesystem::path> HeldDirectory::current_path() const {
  struct stat held {};
  std::error_code error;
  std::filesystem::path now =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor_), error);
  if (error || ::fstat(descriptor_, &held) != 0 || held.st_nlink == 0) {
    return std::nullopt;
  }
  return now;
}

HeldDirectoryFiles::Location HeldDirectoryFiles::locate(const std::filesystem::path& path) const {
  const std::filesystem::path inside = path.lexically_relative(directory_->path());
  if (inside.empty() || *inside.begin() == "..") {
    return {AT_FDCWD, path.string()};
  }
  return {directory_->descriptor(), inside.string()};
}

bool HeldDirectoryFiles::refuses(const Location& location) const {
  return location.directory != AT_FDCWD && on_move_ == OnMove::kRefuse && !directory_->in_place();
}

int HeldDirectoryFiles::create(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0644;
  const Location at = locate(path);
  return refuses(at) ? -ESTALE
                     : or_errno(::openat(at.directory, at.name.c_str(),
                                         O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
}

std::int64_t HeldDirectoryFiles::write(int descriptor, std::span<const std::byte> bytes) {
  return machine_.write(descriptor, bytes);
}

int HeldDirectoryFiles::sync(int descriptor) {
  return machine_.sync(descriptor);
}

int HeldDirectoryFiles::close(int descriptor) {
  return machine_.close(descriptor);
}

int HeldDirectoryFiles::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  const Location a = locate(from);
  const Location b = locate(to);
  return refuses(a) || refuses(b)
             ? -ESTALE
             : or_errno(::renameat(a.directory, a.name.c_str(), b.directory, b.name.c_str()));
}

int HeldDirectoryFiles::make_directory(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0755;
  const Location at = locate(path);
  return refuses(at) ? -ESTALE : or_errno(::mkdirat(at.directory, at.name.c_str(), kMode));
}

int HeldDirectoryFiles::sync_directory(const std::filesystem::path& path) {
  const Location at = locate(path);
  const int descriptor =
      ::openat(at.directory, at.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return -errno;
  }
  const int result = or_errno(::fsync(descriptor));
  ::close(descriptor);
  return result;
}

int HeldDirectoryFiles::remove(int directory, const std::string& name, EntryKind kind) {
  const Location at = directory == AT_FDCWD ? locate(name) : Location{directory, name};
  if (directory == AT_FDCWD && refuses(at)) {
    return -ESTALE;
  }
  return or_errno(
      ::unlinkat(at.directory, at.name.c_str(), kind == EntryKind::kDirectory ? AT_REMOVEDIR : 0));
}

Result<int> open_for_append(const HeldDirectory& directory, const std::string& name) {
  constexpr mode_t kMode = 0644;
  const std::filesystem::path path = directory.path() / name;
  // O_NONBLOCK: opening a pipe must not wait for a reader.
  const int descriptor =
      ::openat(directory.descriptor(), name.c_str(),
               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, kMode);
  if (descriptor < 0 && errno == ENXIO) {
    return invalid_argument(path.string() + ": not a regular file");  // a pipe without a reader
  }
  if (descriptor < 0) {
    return system_error(errno, "open", path);
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return invalid_argument(path.string() + ": not a regular file");
  }
  return descriptor;
}

}  // namespace tidemill
