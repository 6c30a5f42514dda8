// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_directory.hpp"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/files/file.hpp"
#include "storage/checkpoint/run_lock.hpp"
#include "storage/run_files/run_state.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kRunsFolder = "runs";
constexpr int kMaxNames = 10'000;
// Holds the time at which the run began. Chat templates may show the date, and a resumed run must
// have the same prompts.
constexpr const char* kStartedFile = "started";

// Reserves `directory` for a new run by writing run.yaml into it. Returns false if it is in use
// already. A directory that contains only files which a process killed before it wrote run.yaml
// leaves behind is not in use.
Result<bool> reserve_directory(FileSystem& files, const std::filesystem::path& directory,
                               const std::string& run_yaml) {
  std::error_code error;
  const bool was_there = !std::filesystem::create_directory(directory, error);
  if (error) {
    return Status(Errc::kUnavailable, directory.string() + ": " + error.message());
  }
  const auto is_leftover = [](const std::string& name) {
    return name == "lock" || name == kStartedFile || name == storage::kRunStateFile ||
           name.starts_with('.');  // temporary files
  };
  if (was_there) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
    if (!std::all_of(names.begin(), names.end(), is_leftover)) {
      return false;
    }
  }
  auto lock = storage::RunLock::acquire(directory);
  if (lock.status().code() == Errc::kUnavailable) {
    return false;  // another process is starting a run in it
  }
  TIDEMILL_RETURN_IF_ERROR(lock.status());
  if (std::filesystem::exists(directory / "run.yaml", error)) {
    return false;  // another process started a run in it before this one got the lock
  }
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files, directory));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / kStartedFile, local_time() + "\n"));
  // Written while there is space, so that a run whose process ends on a full disk counts as failed.
  TIDEMILL_RETURN_IF_ERROR(storage::write_run_state(files, directory, {"running", 0, ""}));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / "run.yaml", run_yaml));
  return true;
}

}  // namespace

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return text;
}

Result<std::filesystem::path> make_run_directory(const Schema<configs::RunConfig>& schema,
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
    TIDEMILL_ASSIGN_OR_RETURN(
        const bool reserved,
        reserve_directory(files, directory, configs::resolved_text(schema, config)));
    if (reserved) {
      return directory;
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
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, read_text_file(directory / kStartedFile, kMaxBytes));
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

}  // namespace tidemill::launcher
