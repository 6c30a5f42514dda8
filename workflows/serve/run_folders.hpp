// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. The directories of the runs of fine-tuning jobs: JOBS_PATH/runs/ID.
//
// While a job may continue, its directory has the run's commits (the last two) and a lock. A job
// that has ended keeps what describes it: the configuration, the records and, if it has succeeded,
// the adapter in `export/adapter`. Its commits are removed. The directory of a job that the journal
// no longer has is removed as a whole.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "actors/tuning/stores.hpp"
#include "base/files/file.hpp"
#include "base/result.hpp"
#include "workflows/serve_options.hpp"

namespace tidemill::workflows {

/// Returns the directory of the run of a job. It has the layout of other runs, so `tidemill show`
/// reads it.
[[nodiscard]] std::filesystem::path run_directory(const ServeOptions& server,
                                                  const std::string& job);

/// Removes what is not needed of the directories of all runs but those of the jobs `running`, as
/// told at the top of the file. Names that are not ids of jobs are left alone.
/// Errors: as `remove_tree` and `JobStore`; the directories after the one at fault are kept.
[[nodiscard]] Status remove_old_runs(const ServeOptions& server, FileSystem& files,
                                     storage::JobStore& jobs, const std::set<std::string>& running);

}  // namespace tidemill::workflows
