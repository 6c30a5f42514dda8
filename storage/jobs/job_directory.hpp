// SPDX-License-Identifier: Apache-2.0
// The directory of a server's uploaded files and fine-tuning jobs, which `FileStore` and `JobStore`
// share:
//
//   lock        held while the directory is open
//   jobs.db     a SQLite database: the metadata of files, the jobs, their events and checkpoints
//   files/ID    the bytes of each file
//   runs/ID     the directory of each job's run, which the caller makes
//   reserve     disk space for pausing and ending jobs if the disk is full
//
// A change is one transaction of the database, which is durable when the call returns. The bytes of
// a file are durable before its row is written, and its row is removed before its bytes. So a crash
// may leave bytes without a row, but no row without bytes. Such bytes look like those of a file
// whose row was lost with a part of the database, or is younger than a restored copy of it.
// Therefore they are never deleted: `FileStore::open` moves them to `unlisted/`, and the owner of
// the runs does the same with the directories of unknown jobs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file.hpp"
#include "base/result.hpp"

namespace tidemill::storage {

/// Where a job directory is, and what it may use.
struct JobDirectoryOptions {
  std::filesystem::path path;  // is created unless it exists; its parent must exist
  /// The maximum size of the database. A change that needs more fails with `kResourceExhausted`.
  std::uint64_t max_database_bytes = std::uint64_t{4} << 30U;
  /// Returns 64 random bits, from which ids and seeds are made. Called on the thread that calls the
  /// store. If clients must not be able to guess ids, the bits must be unpredictable.
  std::function<std::uint64_t()> random_bits;
};

/// An open job directory.
class JobDirectory {
public:
  /// What the stores share.
  struct Parts;

  /// Opens the directory, or makes it. Borrows `files`, which must outlive it. Reads the whole
  /// database once to check it.
  /// Errors: `kUnavailable` if another process has it open; `kCorruptData` naming the file if the
  /// database is damaged, or missing although there are files or runs; otherwise as `DurableFile`
  /// and `Database::open`.
  [[nodiscard]] static Result<std::shared_ptr<JobDirectory>> open(JobDirectoryOptions options,
                                                                  FileSystem& files);

  explicit JobDirectory(std::unique_ptr<Parts> parts);
  JobDirectory(const JobDirectory&) = delete;
  JobDirectory& operator=(const JobDirectory&) = delete;
  ~JobDirectory();

  [[nodiscard]] Parts& parts() noexcept { return *parts_; }

private:
  std::unique_ptr<Parts> parts_;
};

/// Returns whether `text` has the form of a job's id.
[[nodiscard]] bool is_job_id(std::string_view text) noexcept;

/// Moves `entry`, a file or a directory in the job directory `root` that the database does not
/// name, to the folder `unlisted` of `root`.
/// Errors: as `make_directory`; the failure of the move, for example because `unlisted` has a
/// directory of this name. The entry then stays where it is.
[[nodiscard]] Status set_aside(FileSystem& files, const std::filesystem::path& root,
                               const std::filesystem::path& entry);

}  // namespace tidemill::storage
