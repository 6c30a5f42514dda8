// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_directory.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/file.hpp"
#include "base/text/time_text.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "storage/checkpoint/run_lock.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/run_state.hpp"
#include "storage/run_files/sample_line.hpp"
#include "workflows/processes/socket_folder.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kRunsFolder = "runs";
constexpr int kMaxNames = 10'000;
// Holds the time at which the run began. Chat templates may show the date, and a resumed run must
// have the same prompts.
constexpr const char* kStartedFile = "started";

bool is_temporary(const std::string& name) {
  return name.starts_with('.');
}

// Whether a run writes `name` into its directory.
bool is_file_of_run(const std::string& name) {
  constexpr std::array<std::string_view, 11> kNames = {"lock",
                                                       kStartedFile,
                                                       storage::kRunStateFile,
                                                       "run.yaml",
                                                       kRunLogFile,
                                                       storage::kMetricsFile,
                                                       storage::kSamplesFile,
                                                       "checkpoints",
                                                       "processes.log",
                                                       workflows::kSocketFolder,
                                                       "events.out.tfevents.tidemill"};
  return is_temporary(name) || name.starts_with("reward-stderr") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool is_empty_or_missing(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return error ? error == std::errc::no_such_file_or_directory : size == 0;
}

// Whether the directory with these entries may be used for a new run.
Result<bool> is_free(const std::filesystem::path& directory,
                     const std::vector<std::string>& names) {
  const auto has = [&names](const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (!std::all_of(names.begin(), names.end(), is_file_of_run) ||
      (has("run.yaml") && has(kStartedFile)) ||
      !is_empty_or_missing(directory / storage::kMetricsFile) ||
      !is_empty_or_missing(directory / storage::kSamplesFile)) {
    return false;
  }
  const auto commits = list_directory(directory / "checkpoints");
  if (!commits.ok()) {
    return commits.status().code() == Errc::kNotFound ? Result<bool>(true) : commits.status();
  }
  return std::none_of(commits.value().begin(), commits.value().end(),
                      [](const std::string& name) { return name.starts_with("commit-"); });
}

// Removes what a run that did not begin has left, except for the lock.
Status remove_leftovers(FileSystem& files, const std::filesystem::path& directory,
                        const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == "checkpoints") {
      TIDEMILL_RETURN_IF_ERROR(remove_tree(files, directory, name));
    } else if (name != "lock") {
      TIDEMILL_RETURN_IF_ERROR(remove_file(files, directory / name));
    }
  }
  return {};
}

// Reserves `directory` for a new run by writing run.yaml into it. Returns nothing if it is in use
// already.
Result<std::optional<NewRunDirectory>> reserve_directory(const std::filesystem::path& directory,
                                                         const std::string& run_yaml) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);
  if (error) {
    return Status(Errc::kUnavailable, directory.string() + ": " + error.message());
  }
  NewRunDirectory made{directory, nullptr, false};
  TIDEMILL_ASSIGN_OR_RETURN(made.held, HeldDirectory::open(directory));
  TIDEMILL_ASSIGN_OR_RETURN(std::vector<std::string> names, list_directory(directory));
  TIDEMILL_ASSIGN_OR_RETURN(const bool free, is_free(directory, names));
  if (!free) {
    return std::optional<NewRunDirectory>();
  }
  auto lock = storage::RunLock::acquire(directory);
  if (lock.status().code() == Errc::kUnavailable) {  // this may also be an error of the disk
    const Result<bool> locked = storage::is_run_locked(directory);
    if (locked.ok() && locked.value()) {
      return std::optional<NewRunDirectory>();  // another process is starting a run in it
    }
  }
  TIDEMILL_RETURN_IF_ERROR(lock.status());
  // Again: another process may have started a run in it before this one got the lock.
  TIDEMILL_ASSIGN_OR_RETURN(names, list_directory(directory));
  TIDEMILL_ASSIGN_OR_RETURN(const bool still_free, is_free(directory, names));
  if (!still_free) {
    return std::optional<NewRunDirectory>();
  }
  HeldDirectoryFiles files(made.held, OnMove::kRefuse);
  made.taken_over = names.size() > 1;  // one is the lock
  TIDEMILL_RETURN_IF_ERROR(remove_leftovers(files, directory, names));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / kStartedFile, local_time() + "\n"));
  // Written while there is space, so that a run whose process ends on a full disk counts as failed.
  TIDEMILL_RETURN_IF_ERROR(storage::write_run_state(files, directory, {"running", 0, ""}));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / "run.yaml", run_yaml));
  return std::optional(std::move(made));
}

}  // namespace

std::string local_time() {
  return local_time_text(std::time(nullptr));
}

Result<NewRunDirectory> make_run_directory(const Schema<configs::RunConfig>& schema,
                                           const configs::RunConfig& config,
                                           const std::string& file) {
  PosixFileSystem files;
  const auto* rl = config.workflow.get<workflows::RlOptions>();
  const auto* sft = config.workflow.get<workflows::SftOptions>();
  const std::optional<std::string> given = rl != nullptr    ? rl->run.name
                                           : sft != nullptr ? sft->run.name
                                                            : std::nullopt;
  TIDEMILL_RETURN_IF_ERROR(make_directory(files, kRunsFolder));
  const std::string stem = configs::default_run_name(file);
  for (int number = 1; number < kMaxNames; ++number) {
    const std::string name =
        given.value_or(number == 1 ? stem : stem + "-" + std::to_string(number));
    const std::filesystem::path directory = std::filesystem::path(kRunsFolder) / name;
    TIDEMILL_ASSIGN_OR_RETURN(std::optional<NewRunDirectory> reserved,
                              reserve_directory(directory, configs::resolved_text(schema, config)));
    if (reserved.has_value()) {
      return std::move(*reserved);
    }
    if (given.has_value()) {
      return invalid_argument(directory.string() +
                              ": the run exists; resume it, or give another name");
    }
  }
  return invalid_argument(std::string(kRunsFolder) + "/" + stem + "-*: too many runs");
}

Result<std::string> read_started(const std::filesystem::path& directory) {
  constexpr std::uint64_t kMaxBytes = 64;
  auto text = read_text_file(directory / kStartedFile, kMaxBytes);
  if (text.status().code() == Errc::kNotFound) {
    return Status(Errc::kNotFound, (directory / kStartedFile).string() +
                                       ": no such file; without commits and records, tidemill run "
                                       "can use the name " +
                                       directory.filename().string() + " again");
  }
  TIDEMILL_RETURN_IF_ERROR(text.status());
  std::string started = std::move(text).value();
  started.erase(started.find_last_not_of('\n') + 1);
  return started;
}

Status check_in_place(const HeldDirectory& directory) {
  if (directory.in_place()) {
    return {};
  }
  const std::optional<std::filesystem::path> now = directory.current_path();
  const std::string name = directory.path().string();
  return {Errc::kUnavailable,
          now.has_value() ? name + ": was renamed to " + now->string() +
                                " during the run; to continue it: tidemill resume " + now->string()
                          : name + ": was removed during the run"};
}

}  // namespace tidemill::launcher
