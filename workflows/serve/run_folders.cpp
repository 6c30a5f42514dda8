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

// Removes what the run in the directory `name` of `folder` no longer needs.
Status remove_old_run(const fs::path& folder, const std::string& name, FileSystem& files,
                      storage::JobStore& jobs) {
  const auto job = jobs.find(name);
  if (job.status().code() == Errc::kNotFound) {
    return remove_if_there(files, folder, name);
  }
  TIDEMILL_RETURN_IF_ERROR(job.status());
  if (has_ended(job.value().state)) {
    TIDEMILL_RETURN_IF_ERROR(remove_if_there(files, folder / name, kCommits));
  }
  const bool is_deleted =
      job.value().state == storage::JobState::kSucceeded && job.value().fine_tuned_model.empty();
  return is_deleted ? remove_if_there(files, folder / name, kExport) : Status();
}

}  // namespace

fs::path run_directory(const ServeOptions& server, const std::string& job) {
  return runs_folder(server) / job;
}

Status remove_old_runs(const ServeOptions& server, FileSystem& files, storage::JobStore& jobs,
                       const std::set<std::string>& running) {
  const fs::path folder = runs_folder(server);
  const auto names = list_directory(folder);
  if (!names.ok()) {
    return names.status().code() == Errc::kNotFound ? Status() : names.status();
  }
  Status first;  // an entry that cannot be removed does not keep the others
  for (const std::string& name : names.value()) {
    if (!name.starts_with("ftjob-") || running.contains(name)) {
      continue;
    }
    const Status removed = remove_old_run(folder, name, files, jobs);
    first = first.ok() ? removed : first;
  }
  return first;
}

}  // namespace tidemill::workflows
