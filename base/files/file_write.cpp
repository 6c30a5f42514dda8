// SPDX-License-Identifier: Apache-2.0
// Changes to a disk: the real system calls, and the durable operations over `FileSystem`.
#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"

namespace tidemill {
namespace {

// Starts with a dot, so that no name accepted by `check_name` can be that of a temporary file.
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr int kMaxTreeDepth = 64;

int result_or_errno(int result) {
  return result < 0 ? -errno : result;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

Status sync_parent(FileSystem& files, const std::filesystem::path& path) {
  const int result = files.sync_directory(directory_of(path));
  return result < 0 ? system_error(-result, "sync", directory_of(path)) : Status();
}

// Returns the sorted entries of one open directory. Takes over `descriptor`.
Result<std::vector<std::string>> names_in(int descriptor, const std::filesystem::path& path) {
  DIR* stream = ::fdopendir(descriptor);
  if (stream == nullptr) {
    const int error = errno;
    ::close(descriptor);
    return system_error(error, "list", path);
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream);  // NOLINT(concurrency-mt-unsafe): own stream
    if (entry == nullptr) {
      break;
    }
    names.emplace_back(entry->d_name);
  }
  const int error = errno;
  ::closedir(stream);
  if (error != 0) {
    return system_error(error, "list", path);
  }
  std::erase_if(names, [](const std::string& name) { return name == "." || name == ".."; });
  std::sort(names.begin(), names.end());  // so that the order of removal is always the same
  return names;
}

// Removes `name` from the open `directory`. Descriptors keep the walk inside the tree, whatever
// happens to the paths in the meantime.
Status remove_entry(FileSystem& files, int directory, const std::string& name,
                    const std::filesystem::path& path, int depth) {
  const int inner =
      ::openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (inner < 0 && (errno == ENOTDIR || errno == ELOOP)) {
    const int result = files.remove(directory, name, EntryKind::kFile);
    return result < 0 ? system_error(-result, "remove", path) : Status();
  }
  if (inner < 0) {
    return system_error(errno, "open", path);
  }
  Status status;
  if (depth >= kMaxTreeDepth) {
    status = invalid_argument(path.string() + ": more than " + std::to_string(kMaxTreeDepth) +
                              " directories deep");
  } else {
    const int listing = ::fcntl(inner, F_DUPFD_CLOEXEC, 0);
    auto names = listing < 0 ? Result<std::vector<std::string>>(system_error(errno, "open", path))
                             : names_in(listing, path);
    status = names.status();
    for (std::size_t i = 0; status.ok() && i < names.value().size(); ++i) {
      const std::string& child = names.value()[i];
      status = remove_entry(files, inner, child, path / child, depth + 1);
    }
  }
  ::close(inner);
  if (status.ok()) {
    const int result = files.remove(directory, name, EntryKind::kDirectory);
    status = result < 0 ? system_error(-result, "remove", path) : Status();
  }
  return status;
}

}  // namespace

int PosixFileSystem::create(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0644;
  return result_or_errno(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
}

std::int64_t PosixFileSystem::write(int descriptor, std::span<const std::byte> bytes) {
  const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
  return count < 0 ? -errno : count;
}

int PosixFileSystem::sync(int descriptor) {
  return result_or_errno(::fsync(descriptor));
}

int PosixFileSystem::close(int descriptor) {
  return result_or_errno(::close(descriptor));
}

int PosixFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  return result_or_errno(::rename(from.c_str(), to.c_str()));
}

int PosixFileSystem::make_directory(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0755;
  return result_or_errno(::mkdir(path.c_str(), kMode));
}

int PosixFileSystem::sync_directory(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return -errno;
  }
  const int result = result_or_errno(::fsync(descriptor));
  ::close(descriptor);
  return result;
}

int PosixFileSystem::remove(int directory, const std::string& name, EntryKind kind) {
  const int flags = kind == EntryKind::kDirectory ? AT_REMOVEDIR : 0;
  return result_or_errno(::unlinkat(directory, name.c_str(), flags));
}

DurableFile::DurableFile(FileSystem& files, std::filesystem::path path)
    : files_(files), target_(std::move(path)) {
  // A name that is taken belongs to another writer, or was left by a killed process.
  constexpr int kAttempts = 1000;
  int result = -EEXIST;
  for (int attempt = 0; attempt < kAttempts && (result == -EEXIST || result == -EINTR); ++attempt) {
    std::string name(kTemporaryPrefix);
    name += std::to_string(::getpid()) + "-" + std::to_string(attempt);
    temporary_ = directory_of(target_) / name;
    result = files_.create(temporary_);
  }
  if (result < 0) {
    temporary_.clear();  // the file is not ours to remove
    failure_ = system_error(-result, "create a temporary file for it", target_);
  } else {
    descriptor_ = result;
  }
}

DurableFile::~DurableFile() {
  drop();
}

void DurableFile::drop() {
  if (descriptor_ >= 0) {
    (void)files_.close(std::exchange(descriptor_, -1));
  }
  if (!temporary_.empty()) {
    (void)files_.remove(AT_FDCWD, temporary_.string(), EntryKind::kFile);
    temporary_.clear();
  }
}

Status DurableFile::fail(std::string_view action, std::int64_t result) {
  failure_ = system_error(static_cast<int>(-result), action, target_);
  drop();
  return failure_;
}

Status DurableFile::write(std::span<const std::byte> bytes) {
  TIDEMILL_RETURN_IF_ERROR(failure_);
  TIDEMILL_CHECK(descriptor_ >= 0) << "written after commit: " << target_.string();
  while (!bytes.empty()) {
    const std::int64_t count = files_.write(descriptor_, bytes);
    if (count == -EINTR) {
      continue;
    }
    if (count <= 0) {
      return fail("write", count == 0 ? -EIO : count);  // retrying a 0 might never end
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

Status DurableFile::commit() {
  TIDEMILL_RETURN_IF_ERROR(failure_);
  TIDEMILL_CHECK(descriptor_ >= 0) << "committed twice: " << target_.string();
  if (const int result = files_.sync(descriptor_); result < 0) {
    return fail("sync", result);
  }
  // `close` releases the descriptor even if it fails. After a successful sync, EINTR loses nothing.
  const int closed = files_.close(std::exchange(descriptor_, -1));
  if (closed < 0 && closed != -EINTR) {
    return fail("close", closed);
  }
  if (const int result = files_.rename(temporary_, target_); result < 0) {
    return fail("replace", result);
  }
  temporary_.clear();
  failure_ = sync_parent(files_, target_).with_context("written, but may not be durable");
  return failure_;
}

Status write_file(FileSystem& files, const std::filesystem::path& path,
                  std::span<const std::byte> bytes) {
  DurableFile file(files, path);
  TIDEMILL_RETURN_IF_ERROR(file.write(bytes));
  return file.commit();
}

Status write_file(FileSystem& files, const std::filesystem::path& path, std::string_view text) {
  return write_file(files, path, std::as_bytes(std::span(text)));
}

Status make_directory(FileSystem& files, const std::filesystem::path& path) {
  const int result = files.make_directory(path);
  if (result == -EEXIST) {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored)
               ? Status()
               : invalid_argument(path.string() + ": not a directory");
  }
  if (result < 0) {
    return system_error(-result, "create", path);
  }
  return sync_parent(files, path);
}

Status remove_file(FileSystem& files, const std::filesystem::path& path) {
  const int result = files.remove(AT_FDCWD, path.string(), EntryKind::kFile);
  return result < 0 ? system_error(-result, "remove", path) : sync_parent(files, path);
}

Status remove_temporary_files(FileSystem& files, const std::filesystem::path& directory) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
  for (const std::string& name : names) {
    if (name.starts_with(kTemporaryPrefix)) {
      TIDEMILL_RETURN_IF_ERROR(remove_file(files, directory / name));
    }
  }
  return {};
}

Status remove_tree(FileSystem& files, const std::filesystem::path& root, const std::string& name) {
  TIDEMILL_RETURN_IF_ERROR(check_name(name));
  const int directory = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) {
    return system_error(errno, "open", root);
  }
  Status status = remove_entry(files, directory, name, root / name, 1);
  ::close(directory);
  TIDEMILL_RETURN_IF_ERROR(status);
  return sync_parent(files, root / name);
}

}  // namespace tidemill
