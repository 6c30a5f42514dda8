// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/disk_reserve.hpp"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>

namespace tidemill::storage {

DiskReserve::DiskReserve(const std::filesystem::path& path)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {
  struct stat found {};
  if (file_.is_open() && ::fstat(file_.get(), &found) == 0) {
    bytes_ = std::min<std::int64_t>(found.st_size, kBytes);
  }
  refill();
}

void DiskReserve::refill() noexcept {
  if (file_.is_open() && bytes_ < kBytes && ::posix_fallocate(file_.get(), 0, kBytes) == 0) {
    bytes_ = kBytes;
  }
}

bool DiskReserve::give_back() noexcept {
  if (bytes_ == 0) {
    return false;
  }
  const std::int64_t left = std::max<std::int64_t>(bytes_ - kPartBytes, 0);
  if (::ftruncate(file_.get(), left) != 0) {
    return false;
  }
  bytes_ = left;
  return true;
}

}  // namespace tidemill::storage
