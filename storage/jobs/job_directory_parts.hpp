// SPDX-License-Identifier: Apache-2.0
// Private to storage/jobs. What the stores of a job directory share.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "storage/checkpoint/run_lock.hpp"
#include "storage/jobs/database.hpp"
#include "storage/jobs/disk_reserve.hpp"
#include "storage/jobs/job_directory.hpp"

namespace tidemill::storage {

struct JobDirectory::Parts {
  RunLock lock;
  FileSystem& files;
  std::filesystem::path root;
  std::function<std::uint64_t()> random_bits;
  std::unique_ptr<Database> database;
  DiskReserve reserve;
  /// Held while the database, the reserve or `random_bits` is used.
  std::mutex mutex;

  [[nodiscard]] std::filesystem::path folder() const { return root / "files"; }
  [[nodiscard]] std::filesystem::path path_of(const std::string& id) const { return folder() / id; }
  /// Returns a new id: the prefix and 24 random letters and digits.
  [[nodiscard]] std::string make_id(std::string_view prefix);
};

/// The prefix of the ids of files.
inline constexpr std::string_view kFileIdPrefix = "file-";
/// The prefix of the ids of jobs.
inline constexpr std::string_view kJobIdPrefix = "ftjob-";

/// Returns whether `text` is an id that `make_id` may have made.
[[nodiscard]] bool is_id(std::string_view text, std::string_view prefix) noexcept;

/// The failure for an id that does not exist: "ID: there is no such WHAT".
[[nodiscard]] Status no_such(std::string_view what, std::string_view id);

}  // namespace tidemill::storage
