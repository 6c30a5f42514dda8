// SPDX-License-Identifier: Apache-2.0
#include "storage/dataset/row_spool.hpp"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "base/files/file.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kWriteBytes = 1U << 20U;

std::string default_folder() {
  const char* chosen = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return chosen == nullptr || *chosen == '\0' ? "/var/tmp" : chosen;
}

// Opens a file without a name, or returns -1. Some file systems have to create and remove one.
int open_unnamed(const std::string& folder) {
  constexpr mode_t kOwnerOnly = S_IRUSR | S_IWUSR;
  const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly);
  if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
    return unnamed;
  }
  std::string name = folder + "/tidemill-rows-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) {
    ::unlink(name.c_str());
  }
  return named;
}

}  // namespace

Result<RowSpool> RowSpool::create(std::string folder) {
  if (folder.empty()) {
    folder = default_folder();
  }
  RowSpool spool(std::move(folder));
  spool.file_ = UniqueFd(open_unnamed(spool.folder_));
  if (!spool.file_.is_open()) {
    return spool.failure(errno, "create a temporary file");
  }
  return spool;
}

Result<std::uint64_t> RowSpool::append(std::string_view text) {
  const std::uint64_t offset = size_bytes();
  pending_.append(text);
  if (pending_.size() >= kWriteBytes) {
    TIDEMILL_RETURN_IF_ERROR(flush());
  }
  return offset;
}

Status RowSpool::flush() {
  std::string_view left = pending_;
  while (!left.empty()) {
    const ::ssize_t count = ::write(file_.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return failure(count < 0 ? errno : EIO, "write the rows of Parquet files");
    }
    left.remove_prefix(static_cast<std::size_t>(count));
    written_ += static_cast<std::uint64_t>(count);
  }
  pending_ = {};
  return {};
}

Status RowSpool::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ::ssize_t count =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<::off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return failure(count < 0 ? errno : EIO, "read the rows of Parquet files");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Status RowSpool::failure(int error, std::string_view action) const {
  const Status status = system_error(error, action, folder_);
  return {status.code(), status.message() + "; TMPDIR names another folder"};
}

}  // namespace tidemill::storage
