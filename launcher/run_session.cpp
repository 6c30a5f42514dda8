// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_session.hpp"

#include <atomic>
#include <csignal>
#include <ctime>
#include <ostream>
#include <unistd.h>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "base/file.hpp"
#include "base/json.hpp"
#include "launcher/before_after.hpp"
#include "launcher/log_sinks.hpp"
#include "launcher/progress.hpp"
#include "workflows/actor_world.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

constexpr const char* kRunsFolder = "runs";
constexpr int kMaxNames = 10'000;

// Set by the signal handler; a process has one.
volatile std::sig_atomic_t interrupts = 0;

void on_interrupt(int signal) {
  interrupts = interrupts + 1;
  if (interrupts > 1) {
    ::_exit(128 + signal);  // commits are atomic: nothing is torn
  }
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
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

void print_end(const actors::RunSummary& summary, const std::filesystem::path& directory,
               Session& session) {
  const bool stopped = summary.end == actors::RunEnd::kStopped;
  const std::string exported = (directory / "export").string();
  if (session.form == OutputForm::kJson) {
    session.out << Json(Json::Object{{"kind", "end"},
                                     {"stopped", stopped},
                                     {"step", static_cast<std::int64_t>(summary.steps)},
                                     {"run", directory.string()},
                                     {"export", exported}})
                       .to_line();
    return;
  }
  session.out << (stopped ? "stopped after step " : "done: step ") << summary.steps
              << "; the model is in " << exported << '\n';
  if (stopped) {
    session.out << "go on with: tidemill resume " << directory.string() << '\n';
  }
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
    std::error_code error;
    if (std::filesystem::create_directory(directory, error)) {
      TIDEMILL_RETURN_IF_ERROR(
          write_file(files, directory / "run.yaml", configs::resolved_text(schema, config)));
      return directory;
    }
    if (error) {
      return Status(Errc::kUnavailable, directory.string() + ": " + error.message());
    }
    if (given.has_value()) {
      return invalid_argument(directory.string() +
                              ": the run exists; resume it, or give another name");
    }
  }
  return invalid_argument(std::string(kRunsFolder) + "/" + stem + "-*: too many runs");
}

namespace {

// Runs in the directory of `place`; `begun` tells whether anything happened in it.
Status run_there(const RunPlace& place, Session& session, bool& begun) {
  PosixFileSystem files;
  TIDEMILL_ASSIGN_OR_RETURN(
      std::unique_ptr<storage::CheckpointStore> store,
      storage::CheckpointStore::open(
          {place.directory, place.directory.filename().string(), storage::OnDamage::kRefuse},
          files));
  TIDEMILL_ASSIGN_OR_RETURN(auto log_file, make_file_sink((place.directory / "log.txt").string()));
  session.log.add_sink(std::move(log_file));
  const auto commits =
      actors::make_checkpoint_commits(std::shared_ptr<storage::CheckpointStore>(std::move(store)));
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint32_t incarnation, next_incarnation(*commits));
  interrupts = 0;
  catch_interrupts();
  workflows::ActorWorld world;
  const bool json = session.form == OutputForm::kJson;
  Progress progress(json ? session.out : session.err, session.form, session.clock);
  workflows::RunEnvironment run{world.system(),
                                session.clock,
                                files,
                                place.directory,
                                commits,
                                incarnation,
                                place.now,
                                [&](const actors::StepRecord& record) { progress.show(record); },
                                [&](const workflows::RunFacts& facts) {
                                  begun = true;
                                  progress.begin(facts.steps);
                                },
                                [&](const std::string& line) { session.log.warning(line); },
                                [] { return interrupts > 0; }};
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_workflow(place.config, run));
  progress.end();
  if (summary.end != actors::RunEnd::kStopped) {
    TIDEMILL_RETURN_IF_ERROR(print_before_and_after(place, session));
  }
  print_end(summary, place.directory, session);
  return {};
}

}  // namespace

Status carry_out(const RunPlace& place, Session& session) {
  bool begun = false;
  Status status = run_there(place, session, begun);
  if (!status.ok() && !begun && place.fresh) {
    std::error_code ignored;
    std::filesystem::remove_all(place.directory, ignored);
  }
  return status;
}

}  // namespace tidemill::launcher
