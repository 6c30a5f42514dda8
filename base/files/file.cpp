// SPDX-License-Identifier: Apache-2.0
// Reading: names, bounded reads, mapping, listing. Changes to a disk are in `file_write.cpp`.
#include "base/files/file.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "base/text/quote.hpp"

namespace tidemill {
namespace {

constexpr std::size_t kMaxNameBytes = 128;

Errc code_of(int error) {
  switch (error) {
    case ENOENT: return Errc::kNotFound;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return Errc::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case EEXIST:
    case ENOTEMPTY:
    case ESTALE:
    case EXDEV: return Errc::kInvalidArgument;
    default: return Errc::kUnavailable;
  }
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Unmaps the bytes and closes the file when the last buffer over the mapping is destroyed.
class Mapping {
public:
  Mapping(void* address, std::size_t size, ReadableFile file)
      : address_(address), size_(size), file_(std::move(file)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(address_, size_); }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(address_), size_};
  }
  [[nodiscard]] const ReadableFile& file() const { return file_; }

private:
  void* address_;
  std::size_t size_;
  ReadableFile file_;
};

}  // namespace

Status system_error(int error, std::string_view action, const std::filesystem::path& path) {
  std::string text = path.string() + ": cannot ";
  text += action;
  text += ": " + std::generic_category().message(error);
  return {code_of(error), std::move(text)};
}

Status check_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '.' ||
      !std::all_of(name.begin(), name.end(), is_name_character)) {
    return invalid_argument("bad name " + quote(name) +
                            ": 1 to 128 characters of [A-Za-z0-9._-], not starting with a dot");
  }
  return {};
}

Result<ReadableFile> ReadableFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return system_error(errno, "open", path);
  }
  ReadableFile file(path, descriptor, 0);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    return system_error(errno, "examine", path);
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(path.string() + ": not a regular file");
  }
  file.size_bytes_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

ReadableFile::ReadableFile(ReadableFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

ReadableFile& ReadableFile::operator=(ReadableFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

ReadableFile::~ReadableFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Status ReadableFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return system_error(errno, "read", path_);
    }
    if (count == 0) {
      return corrupt_data(path_.string() + ": ends at byte " + std::to_string(offset) + ", " +
                          std::to_string(bytes.size()) + " bytes early");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<Buffer> ReadableFile::map() const {
  if (size_bytes_ == 0) {
    return Buffer();  // an empty range cannot be mapped
  }
  if (size_bytes_ > std::numeric_limits<std::size_t>::max()) {
    return system_error(ENOMEM, "map", path_);
  }
  const auto size = static_cast<std::size_t>(size_bytes_);
  // `Buffer::copy_to` reads through a descriptor that belongs to the mapping.
  const int descriptor = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) {
    return system_error(errno, "map", path_);
  }
  ReadableFile file(path_, descriptor, size_bytes_);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_, 0);
  if (address == MAP_FAILED) {
    return system_error(errno, "map", path_);
  }
  auto mapping = std::make_shared<const Mapping>(address, size, std::move(file));
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) {
    return system_error(errno, "examine", path_);
  }
  if (static_cast<std::uint64_t>(info.st_size) != size_bytes_) {
    return corrupt_data(path_.string() + ": changed from " + std::to_string(size_bytes_) + " to " +
                        std::to_string(info.st_size) + " bytes while being read");
  }
  const std::span<const std::byte> bytes = mapping->bytes();
  const ReadableFile& kept = mapping->file();
  return Buffer::wrap(std::move(mapping), bytes, DType::kU8, &kept);
}

Result<std::string> ReadableFile::read_prefix(std::size_t max_bytes) const {
  constexpr std::size_t kBlockBytes = std::size_t{64} << 10U;
  std::string text;
  for (;;) {
    const std::size_t have = text.size();
    text.resize(have + std::min(kBlockBytes, max_bytes - have));
    const ssize_t count =
        ::pread(descriptor_, text.data() + have, text.size() - have, static_cast<off_t>(have));
    if (count < 0 && errno != EINTR) {
      return system_error(errno, "read", path_);
    }
    text.resize(have + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0 || text.size() == max_bytes) {
      return text;
    }
  }
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(path));
  if (file.size_bytes() > max_bytes) {
    return invalid_argument(path.string() + ": " + std::to_string(file.size_bytes()) +
                            " bytes; at most " + std::to_string(max_bytes) + " are read");
  }
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

std::filesystem::path absolute_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error ? path : whole.lexically_normal();
}

Result<std::vector<std::string>> list_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (auto entry = std::filesystem::directory_iterator(directory, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    return system_error(error.value(), "list", directory);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tidemill
