// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/run_folders.hpp"

namespace tidemill::workflows {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCommits = "checkpoints";
constexpr const char* kExport = "export";

fs::path runs_folder(const ServeOptions& server) {
  return fs::path(server.serve.jobs_path.value_or("")) / "runs";
}

// Removes an entry of a directory, if it is there.
Status remove_if_there(FileSystem& files, const fs::path& directory, const std::string& name) {
  const Status removed = remove_tree(files, directory, name);
  return removed.code() == Errc::kNotFound ? Status() : removed;
}

// Removes what the run of a job, in the directory of its name in `folder`, no longer needs.
Status remove_old_run(const fs::path& folder, const storage::JobRecord& job, FileSystem& files) {
  if (!has_ended(job.state)) {
    return {};
  }
  TIDEMILL_RETURN_IF_ERROR(remove_if_there(files, folder / job.id, kCommits));
  // A job without a model may have an adapter too: of a model that was deleted, or of a pause.
  return job.fine_tuned_model.empty() ? remove_if_there(files, folder / job.id, kExport) : Status();
}

}  // namespace

fs::path run_directory(const ServeOptions& server, const std::string& job) {
  return runs_folder(server) / job;
}

Status remove_old_runs(const RunFolders& folders, const std::set<std::string>& running) {
  const fs::path folder = runs_folder(folders.server);
  const auto names = list_directory(folder);
  if (!names.ok()) {
    return names.status().code() == Errc::kNotFound ? Status() : names.status();
  }
  Status first;  // an entry that cannot be removed does not keep the others
  std::size_t set_aside = 0;
  for (const std::string& name : names.value()) {
    if (!storage::is_job_id(name) || running.contains(name)) {
      continue;
    }
    const auto job = folders.jobs.find(name);
    const bool is_unknown = job.status().code() == Errc::kNotFound;
    const Status done = is_unknown
                            ? storage::set_aside(folders.files, folder.parent_path(), folder / name)
                        : job.ok() ? remove_old_run(folder, job.value(), folders.files)
                                   : job.status();
    set_aside += is_unknown && done.ok() ? 1 : 0;
    first = first.ok() ? done : first;
  }
  if (set_aside > 0) {
    folders.warn(folder.string() +
                 ": runs that jobs.db does not name: " + std::to_string(set_aside) +
                 "; they were moved to " + (folder.parent_path() / "unlisted").string());
  }
  return first;
}

}  // namespace tidemill::workflows
