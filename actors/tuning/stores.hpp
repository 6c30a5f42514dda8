// SPDX-License-Identifier: Apache-2.0
// Opens the stores of a server's uploaded files and fine-tuning jobs.
#pragma once

#include <filesystem>
#include <memory>

#include "base/files/file.hpp"
#include "base/result.hpp"
#include "storage/jobs/file_store.hpp"
#include "storage/jobs/job_store.hpp"

namespace tidemill::actors {

/// The stores of one job directory.
struct TuningStores {
  std::shared_ptr<storage::FileStore> files;
  std::shared_ptr<storage::JobStore> jobs;
};

/// Opens the job directory `path`, or makes it, with the default limits. Ids and seeds are random
/// and cannot be guessed. Borrows `files`, which must outlive the stores.
/// Errors: as `JobDirectory::open` and `FileStore::open`.
[[nodiscard]] Result<TuningStores> open_tuning_stores(const std::filesystem::path& path,
                                                      FileSystem& files);

}  // namespace tidemill::actors
