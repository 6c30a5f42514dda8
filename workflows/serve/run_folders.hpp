// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. The directories of the runs of fine-tuning jobs: JOBS_PATH/runs/ID.
//
// While a job may continue, its directory has the run's commits (the last two) and a lock. A job
// that has ended keeps what describes it: the configuration, the records and, if it has succeeded,
// the adapter in `export/adapter`. Its commits are removed.
//
// A job is in the database before its directory is made, so a directory whose job the database does
// not name never belongs to a job that is being created. Its job was lost with a part of the
// database, is younger than a restored copy, or was evicted just before a crash. Since these cannot
// be told apart, the directory is moved to JOBS_PATH/unlisted, and never deleted.
#pragma once

#include <filesystem>
#include <functional>
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

/// What `remove_old_runs` works with. Borrows all but `warn`.
struct RunFolders {
  const ServeOptions& server;
  FileSystem& files;
  storage::JobStore& jobs;
  std::function<void(const std::string&)> warn;  // takes one line
};

/// Removes what is not needed of the directories of all runs but those of the jobs `running`, and
/// sets directories of unknown jobs aside with a warning, as told at the top of the file. Names
/// that are not ids of jobs are left alone. Errors: the first one of `remove_tree`,
/// `storage::set_aside` and `JobStore`. A directory that fails does not keep the others.
[[nodiscard]] Status remove_old_runs(const RunFolders& folders,
                                     const std::set<std::string>& running);

}  // namespace tidemill::workflows
