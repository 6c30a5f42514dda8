// SPDX-License-Identifier: Apache-2.0
// The record files of a run directory.
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "actors/recorder/spawn.hpp"

namespace tidemill::actors {
namespace {

Status failure(const std::string& path, const char* doing) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const Errc code = full ? Errc::kResourceExhausted : Errc::kUnavailable;
  return {code,
          path + ": " + doing + ": " + std::strerror(error)};  // NOLINT(concurrency-mt-unsafe)
}

// One append-only file that never keeps a part of what failed to be appended.
class AppendFile {
public:
  explicit AppendFile(std::string path) : path_(std::move(path)) {}
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }

  Status open(std::uint64_t size) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    struct stat info {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &info) != 0) {
      return failure(path_, "cannot open");
    }
    if (static_cast<std::uint64_t>(info.st_size) < size) {
      return corrupt_data(path_ + ": " + std::to_string(info.st_size) +
                          " bytes, but the last commit recorded " + std::to_string(size));
    }
    size_ = size;
    return cut();
  }

  Status append(const std::string& text) {
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::write(descriptor_, text.data() + written, text.size() - written);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        Status status = failure(path_, "cannot append");
        // A file that cannot be cut either ends with part of a line; the next open cuts it.
        static_cast<void>(cut());
        return status;
      }
      written += static_cast<std::size_t>(count);
    }
    size_ += text.size();
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

private:
  Status cut() {
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) {
      return failure(path_, "cannot cut");
    }
    return {};
  }

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

class RunRecordFiles final : public RecordFiles {
public:
  explicit RunRecordFiles(const std::string& directory)
      : metrics_(directory + "/metrics.jsonl"), samples_(directory + "/samples.jsonl") {}

  Status open(const RecordMarks& marks) {
    TIDEMILL_RETURN_IF_ERROR(metrics_.open(marks.metrics_bytes));
    return samples_.open(marks.samples_bytes);
  }

  Result<RecordMarks> append(const std::string& metrics, const std::string& samples) override {
    TIDEMILL_RETURN_IF_ERROR(samples_.append(samples));
    TIDEMILL_RETURN_IF_ERROR(metrics_.append(metrics));
    return RecordMarks{metrics_.size(), samples_.size()};
  }

private:
  AppendFile metrics_;
  AppendFile samples_;
};

}  // namespace

Result<std::unique_ptr<RecordFiles>> open_record_files(const std::string& directory,
                                                       const RecordMarks& marks) {
  auto files = std::make_unique<RunRecordFiles>(directory);
  TIDEMILL_RETURN_IF_ERROR(files->open(marks));
  return std::unique_ptr<RecordFiles>(std::move(files));
}

}  // namespace tidemill::actors
