// SPDX-License-Identifier: Apache-2.0
// Uploaded files on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "storage/jobs/job_directory.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::storage {

/// The limits of a file store.
struct FileLimits {
  std::uint64_t max_file_bytes = std::uint64_t{512} << 20U;
  std::uint64_t max_total_bytes = std::uint64_t{64} << 30U;  // of all files
  std::uint64_t max_files = 10'000;
};

/// A file that is to be stored.
struct NewFile {
  std::string filename;         // at most `FileStore::kMaxFilenameBytes`, as given by a client
  std::string purpose;          // `kFineTunePurpose` or `kResultsPurpose`
  std::int64_t created_at = 0;  // Unix time, seconds
};

/// The order of a list of files.
enum class FileOrder : std::uint8_t { kNewestFirst, kOldestFirst };

/// A part of the list of files.
struct FileQuery {
  std::string purpose;  // empty: of all purposes
  std::string after;    // the id of the file before the first one; empty: from the first one
  std::uint32_t limit = 10'000;
  FileOrder order = FileOrder::kNewestFirst;
};

/// The files of a job directory. A file is stored completely or not at all, whenever the process
/// ends, and its bytes never change.
///
/// Threads: safe to use concurrently. Calls wait for the disk.
class FileStore {
public:
  static constexpr std::size_t kMaxFilenameBytes = 512;

  /// Opens the store, and removes what calls that did not complete have left. Complete files that
  /// the database does not name are moved to the folder `unlisted` of the directory.
  /// Errors: as `remove_file` and `Database::execute`.
  [[nodiscard]] static Result<std::shared_ptr<FileStore>> open(
      std::shared_ptr<JobDirectory> directory, const FileLimits& limits);

  [[nodiscard]] const FileLimits& limits() const noexcept { return limits_; }

  /// Stores a file, durably.
  /// Errors: `kInvalidArgument` for an unknown purpose, a bad name, or too many bytes;
  /// `kResourceExhausted` beyond the limits of all files, or if the disk is full: nothing is stored
  /// then; as `DurableFile` and `Database::execute`.
  [[nodiscard]] Result<StoredFile> put(const NewFile& file, std::span<const std::byte> bytes);

  /// Stores a file under the id `id`, which must begin with "file-". If the id exists, changes
  /// nothing: the stored bytes are not replaced. The limits on all files do not apply. This store
  /// does not remove the file. Not atomic: call it before the server accepts requests.
  /// Errors: as `put`.
  [[nodiscard]] Status put_example(const std::string& id, const NewFile& file,
                                   std::span<const std::byte> bytes);

  /// Returns the metadata of a file. Errors: `kNotFound`.
  [[nodiscard]] Result<StoredFile> find(const std::string& id);

  /// Returns a part of the list. Errors: `kNotFound` if there is no file `after`.
  [[nodiscard]] Result<FilePage> list(const FileQuery& query);

  /// Opens the bytes of a file for reading. They can be read until the result is destroyed, even if
  /// the file is removed meanwhile.
  /// Errors: `kNotFound`; `kCorruptData` if the file on disk is missing or has another size.
  [[nodiscard]] Result<ReadableFile> open_bytes(const std::string& id);

  /// Removes a file, durably. If only its bytes cannot be removed, the next `open` does it.
  /// Errors: `kNotFound`; `kInvalidArgument` if a job that has not ended uses it, or it is an
  /// example.
  [[nodiscard]] Status remove(const std::string& id);

private:
  FileStore(std::shared_ptr<JobDirectory> directory, const FileLimits& limits)
      : directory_(std::move(directory)), limits_(limits) {}
  [[nodiscard]] Status remove_leftovers();
  [[nodiscard]] Result<bool> is_stored(const std::string& id);
  [[nodiscard]] Result<std::string> reserve(std::uint64_t bytes);
  // The caller holds the mutex of the directory.
  [[nodiscard]] Status insert(const StoredFile& file);

  std::shared_ptr<JobDirectory> directory_;
  FileLimits limits_;
  // Of calls of `put` in progress. Guarded by the mutex of the directory.
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t reserved_files_ = 0;
  std::set<std::string> examples_;  // ids; likewise guarded
};

}  // namespace tidemill::storage
