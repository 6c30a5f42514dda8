// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_session.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <ostream>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "base/file.hpp"
#include "launcher/log_sinks.hpp"
#include "launcher/progress.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/checkpoint/run_lock.hpp"
#include "workflows/actor_world.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kRunsFolder = "runs";
constexpr int kMaxNames = 10'000;
// When the run began: prompts whose template shows the date must not change when it is resumed.
constexpr const char* kStartedFile = "started";

// Set by the signal handler; a process has one.
volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int signal) {
  interrupts = interrupts + 1;
  if (interrupts > 1) {
    ::_exit(128 + signal);  // commits are atomic: nothing is torn
  }
  constexpr std::string_view kSaid = "stopping after this step; once more stops at once\n";
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kSaid.data(), kSaid.size());
  errno = error;
}

void set_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;  // a limit on file sizes is the write's error, not our death
  ::sigaction(SIGXFSZ, &action, nullptr);
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  return text;
}

// A refusal of damage says how to go on in spite of it, where that is possible.
Result<std::unique_ptr<storage::CheckpointStore>> open_store(const RunPlace& place,
                                                             FileSystem& files) {
  storage::CheckpointStoreOptions options{place.directory, place.directory.filename().string(),
                                          place.on_damage};
  auto store = storage::CheckpointStore::open(options, files);
  if (store.status().code() != Errc::kCorruptData ||
      place.on_damage == storage::OnDamage::kUseCommitBefore) {
    return store;
  }
  options.on_damage = storage::OnDamage::kUseCommitBefore;
  if (!storage::CheckpointStore::open(options, files).ok()) {
    return store;
  }
  return corrupt_data(store.status().message() + "; to go on from there: tidemill resume " +
                      place.directory.string() + " --use-commit-before");
}

Result<std::string> read_started(const std::filesystem::path& directory) {
  constexpr std::uint64_t kMaxBytes = 64;
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, read_text_file(directory / kStartedFile, kMaxBytes));
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

Result<std::uint32_t> next_incarnation(actors::CommitStore& commits) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<actors::RunCommit> last, commits.load());
  return last.has_value() ? last->weights.version.incarnation + 1 : 0U;
}

Result<actors::RunSummary> run_workflow(const configs::RunConfig& config,
                                        const workflows::RunEnvironment& run) {
  if (const auto* rl = config.workflow.get<workflows::RlOptions>()) {
    return workflows::run_rl(*rl, run);
  }
  if (const auto* sft = config.workflow.get<workflows::SftOptions>()) {
    return workflows::run_sft(*sft, run);
  }
  return Status(Errc::kUnimplemented, "this program cannot run the workflow");
}

// Takes `directory` for a new run and writes run.yaml, which makes it one; false when it is taken.
// One without a run.yaml and with nothing of anybody else's was left by a process that was killed
// here, and is free.
Result<bool> take_directory(FileSystem& files, const std::filesystem::path& directory,
                            const std::string& run_yaml) {
  std::error_code error;
  const bool was_there = !std::filesystem::create_directory(directory, error);
  if (error) {
    return Status(Errc::kUnavailable, directory.string() + ": " + error.message());
  }
  const auto is_leftover = [](const std::string& name) {
    return name == "lock" || name == kStartedFile || name.starts_with('.');  // temporary files
  };
  if (was_there) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(directory));
    if (!std::all_of(names.begin(), names.end(), is_leftover)) {
      return false;
    }
  }
  auto lock = storage::RunLock::acquire(directory);
  if (lock.status().code() == Errc::kUnavailable) {
    return false;  // somebody else is beginning a run in it
  }
  TIDEMILL_RETURN_IF_ERROR(lock.status());
  if (std::filesystem::exists(directory / "run.yaml", error)) {
    return false;  // somebody else has begun one before the lock was ours
  }
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files, directory));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / kStartedFile, local_time() + "\n"));
  TIDEMILL_RETURN_IF_ERROR(write_file(files, directory / "run.yaml", run_yaml));
  return true;
}

}  // namespace

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
        const bool taken, take_directory(files, directory, configs::resolved_text(schema, config)));
    if (taken) {
      return directory;
    }
    if (given.has_value()) {
      return invalid_argument(directory.string() +
                              ": the run exists; resume it, or give another name");
    }
  }
  return invalid_argument(std::string(kRunsFolder) + "/" + stem + "-*: too many runs");
}

Status carry_out(const RunPlace& place, Session& session) {
  PosixFileSystem files;
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<storage::CheckpointStore> store,
                            open_store(place, files));
  TIDEMILL_ASSIGN_OR_RETURN(auto log_file, make_file_sink((place.directory / "log.txt").string()));
  session.log.add_sink(std::move(log_file));
  for (const std::string& damage : store->damage()) {
    session.log.warning("passed over: " + damage);
  }
  const auto commits =
      actors::make_checkpoint_commits(std::shared_ptr<storage::CheckpointStore>(std::move(store)));
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint32_t incarnation, next_incarnation(*commits));
  TIDEMILL_ASSIGN_OR_RETURN(const std::string started, read_started(place.directory));
  interrupts = 0;
  set_signals();
  workflows::ActorWorld world;
  Progress progress(session.err, session.form, session.clock);
  workflows::RunEnvironment run{world.system(),
                                session.clock,
                                files,
                                place.directory,
                                commits,
                                incarnation,
                                started,
                                [&](const actors::StepRecord& record) { progress.show(record); },
                                [&](const std::string& line) { session.log.warning(line); },
                                [] { return interrupts > 0; }};
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_workflow(place.config, run));
  session.out << (summary.end == actors::RunEnd::kStopped ? "stopped after step " : "done: step ")
              << summary.steps << "; the model is in " << (place.directory / "export").string()
              << '\n';
  if (summary.end == actors::RunEnd::kStopped) {
    session.out << "go on with: tidemill resume " << place.directory.string() << '\n';
  }
  return {};
}

}  // namespace tidemill::launcher
