// SPDX-License-Identifier: Apache-2.0
// The record files of a run directory.
//
// After its first record, the event file has one record for each line of metrics.jsonl. It
// therefore needs no mark of its own. When metrics.jsonl is truncated to a mark, the number of its
// lines determines how many records are kept. If some of these are missing, the event file is
// written again from the lines.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "actors/recorder/metrics_events.hpp"
#include "actors/recorder/spawn.hpp"
#include "storage/events/event_file.hpp"
#include "storage/run_files/lines.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/sample_line.hpp"

namespace tidemill::actors {
namespace {

Status failure(const std::string& path, const char* doing) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  const Errc code = full ? Errc::kResourceExhausted : Errc::kUnavailable;
  return {code,
          path + ": " + doing + ": " + std::strerror(error)};  // NOLINT(concurrency-mt-unsafe)
}

// An append-only file. After a failed append, it is truncated to its size before.
class AppendFile {
public:
  AppendFile(std::shared_ptr<const HeldDirectory> directory, std::string name)
      : directory_(std::move(directory)),
        name_(std::move(name)),
        path_((directory_->path() / name_).string()) {}
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }

  // Truncates the file to its first `size` bytes. Called once: only then is the directory needed.
  Status open(std::uint64_t size) {
    const auto directory = std::exchange(directory_, nullptr);
    TIDEMILL_ASSIGN_OR_RETURN(descriptor_, open_for_append(*directory, name_));
    struct stat info {};
    if (::fstat(descriptor_, &info) != 0) {
      return failure(path_, "cannot examine");
    }
    if (static_cast<std::uint64_t>(info.st_size) < size) {
      return corrupt_data(path_ + ": " + std::to_string(info.st_size) +
                          " bytes, but the last commit recorded " + std::to_string(size));
    }
    size_ = size;
    return cut();
  }

  Status append(const std::string& text) {
    if (partial_) {
      TIDEMILL_RETURN_IF_ERROR(cut());
    }
    std::size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::write(descriptor_, text.data() + written, text.size() - written);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count < 0) {
        Status status = failure(path_, "cannot append");
        // If this fails too, the file ends with a partial line, which the next call removes.
        static_cast<void>(cut());
        return status;
      }
      written += static_cast<std::size_t>(count);
    }
    size_ += text.size();
    return {};
  }

  // Checks that the path still names this file, and that nothing else has changed its size.
  [[nodiscard]] Status check_in_place() const {
    struct stat opened {};
    struct stat named {};
    if (::fstat(descriptor_, &opened) != 0) {
      return failure(path_, "cannot examine");
    }
    if (::stat(path_.c_str(), &named) != 0 && errno != ENOENT) {
      return failure(path_, "cannot examine");
    }
    if (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino) {
      return corrupt_data(path_ + ": was removed or replaced during the run");
    }
    if (!partial_ && static_cast<std::uint64_t>(opened.st_size) != size_) {
      return corrupt_data(path_ + ": another program changed it during the run: it has " +
                          std::to_string(opened.st_size) + " bytes instead of " +
                          std::to_string(size_));
    }
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }

private:
  Status cut() {
    partial_ = true;
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) {
      return failure(path_, "cannot truncate");
    }
    partial_ = false;
    return {};
  }

  std::shared_ptr<const HeldDirectory> directory_;
  std::string name_;
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  bool partial_ = false;  // the file may have more than `size_` bytes
};

// A file whose marks are part of a commit.
class MarkedFile {
public:
  MarkedFile(const std::shared_ptr<const HeldDirectory>& directory, const std::string& name)
      : path_((directory->path() / name).string()), file_(directory, name) {}

  // `checked` is the hasher of the marked bytes if they have been read, else null.
  // Errors: those of `storage::read_marked`.
  Status open(std::uint64_t bytes, const std::string& digest,
              std::unique_ptr<DigestHasher> checked) {
    hasher_ = std::move(checked);
    if (hasher_ == nullptr) {
      hasher_ = std::make_unique<DigestHasher>();
      TIDEMILL_RETURN_IF_ERROR(storage::read_marked(path_, bytes, digest, *hasher_));
    }
    return file_.open(bytes);
  }

  // Fails if the file has been removed or changed, unless it was empty.
  Status append(const std::string& text) {
    if (!text.empty() || file_.size() > 0) {
      TIDEMILL_RETURN_IF_ERROR(file_.check_in_place());
    }
    TIDEMILL_RETURN_IF_ERROR(file_.append(text));
    hasher_->update(std::as_bytes(std::span(text)));
    return {};
  }

  [[nodiscard]] std::uint64_t size() const noexcept { return file_.size(); }
  [[nodiscard]] std::string digest() const { return hasher_->digest(); }

private:
  std::string path_;
  AppendFile file_;
  std::unique_ptr<DigestHasher> hasher_;
};

// Returns the time for the wall-time axis of TensorBoard. Nothing else depends on it.
double wall_seconds() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The event file, which has a record for each line of metrics.jsonl.
class EventLog {
public:
  explicit EventLog(const std::shared_ptr<const HeldDirectory>& directory)
      : path_((directory->path() / kEventFileName).string()), file_(directory, kEventFileName) {}

  // Truncates the event file to the records of the lines in the first `bytes` bytes of `metrics`,
  // or writes it again if it lacks some of them.
  Status open(const std::string& metrics, std::uint64_t bytes) {
    std::uint64_t lines = 0;
    TIDEMILL_RETURN_IF_ERROR(
        storage::for_each_block(metrics, bytes, [&lines](std::string_view block) {
          lines += static_cast<std::uint64_t>(std::count(block.begin(), block.end(), '\n'));
          return Status{};
        }));
    TIDEMILL_ASSIGN_OR_RETURN(const storage::EventExtent kept,
                              storage::find_event_records(path_, lines + 1));
    if (kept.num_records == lines + 1) {
      return file_.open(kept.bytes);
    }
    TIDEMILL_RETURN_IF_ERROR(file_.open(0));
    TIDEMILL_RETURN_IF_ERROR(file_.append(storage::first_event_record(wall_seconds())));
    return storage::for_each_block(metrics, bytes, [this](std::string_view block) {
      return file_.append(event_records(block, wall_seconds()));
    });
  }

  Status append(std::string_view lines) {
    // Records that could not be written are written before those of the next lines, so that records
    // and lines stay in the same order.
    unwritten_ += event_records(lines, wall_seconds());
    TIDEMILL_RETURN_IF_ERROR(file_.append(unwritten_));
    unwritten_.clear();
    return {};
  }

private:
  std::string path_;
  AppendFile file_;
  std::string unwritten_;
};

class RunRecordFiles final : public RecordFiles {
public:
  RunRecordFiles(const std::shared_ptr<const HeldDirectory>& directory,
                 std::uint64_t max_samples_bytes)
      : max_samples_bytes_(max_samples_bytes),
        metrics_path_((directory->path() / storage::kMetricsFile).string()),
        metrics_(directory, storage::kMetricsFile),
        samples_(directory, storage::kSamplesFile),
        events_(directory) {}

  // `checked` has no hashers if the files are yet to be read.
  Status open(const RecordMarks& marks, storage::CheckedRecords checked) {
    TIDEMILL_RETURN_IF_ERROR(
        metrics_.open(marks.metrics_bytes, marks.metrics_digest, std::move(checked.metrics)));
    TIDEMILL_RETURN_IF_ERROR(
        samples_.open(marks.samples_bytes, marks.samples_digest, std::move(checked.samples)));
    return events_.open(metrics_path_, marks.metrics_bytes);
  }

  Result<RecordMarks> append(const std::string& metrics, const std::string& samples) override {
    TIDEMILL_RETURN_IF_ERROR(samples_.append(fitting(samples)));
    TIDEMILL_RETURN_IF_ERROR(metrics_.append(metrics));
    TIDEMILL_RETURN_IF_ERROR(events_.append(metrics));
    return RecordMarks{metrics_.size(), samples_.size(), metrics_.digest(), samples_.digest()};
  }

private:
  // Returns the lines that fit into the file. Each line is checked on its own, so that the result
  // does not depend on which lines are appended together, and a resumed run leaves out the same.
  [[nodiscard]] std::string fitting(const std::string& samples) const {
    if (samples.size() <= max_samples_bytes_ - std::min(max_samples_bytes_, samples_.size())) {
      return samples;
    }
    std::string fitting;
    std::uint64_t room = max_samples_bytes_ - std::min(max_samples_bytes_, samples_.size());
    for (std::string_view rest = samples; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n') + 1);
      if (line.size() <= room) {
        fitting += line;
        room -= line.size();
      }
      rest.remove_prefix(line.size());
    }
    return fitting;
  }

  std::uint64_t max_samples_bytes_;
  std::string metrics_path_;
  MarkedFile metrics_;
  MarkedFile samples_;
  EventLog events_;
};

}  // namespace

Result<std::unique_ptr<RecordFiles>> open_record_files(const RecordFolder& folder,
                                                       const RecordMarks& marks,
                                                       std::uint64_t max_samples_bytes) {
  std::shared_ptr<const HeldDirectory> directory = folder.held;
  if (directory == nullptr) {
    TIDEMILL_ASSIGN_OR_RETURN(directory, HeldDirectory::open(folder.path));
  }
  storage::CheckedRecords checked;
  if (folder.checked != nullptr && folder.checked->marks == marks) {
    checked = std::move(*folder.checked);
  }
  auto files = std::make_unique<RunRecordFiles>(directory, max_samples_bytes);
  TIDEMILL_RETURN_IF_ERROR(files->open(marks, std::move(checked)));
  return std::unique_ptr<RecordFiles>(std::move(files));
}

}  // namespace tidemill::actors
