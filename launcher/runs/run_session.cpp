// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_session.hpp"

#include <cerrno>
#include <csignal>
#include <ostream>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "launcher/additions.hpp"
#include "launcher/runs/before_after.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "launcher/runs/progress.hpp"
#include "launcher/runs/run_directory.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/run_files/record_marks.hpp"
#include "storage/run_files/run_state.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

// State of the signal handler, of which a process has only one.
volatile std::sig_atomic_t interrupts = 0;
// 1 while models are compared: everything has been committed and exported.
volatile std::sig_atomic_t comparing = 0;

void write_to_stderr(std::string_view text) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

void on_interrupt(int signal) {
  interrupts = interrupts + 1;
  if (comparing != 0) {
    write_to_stderr("the run is complete and exported; the comparison was skipped\n");
    ::_exit(0);
  }
  if (interrupts > 1) {
    ::_exit(128 + signal);  // safe, since commits are atomic
  }
  write_to_stderr("stopping after this step; interrupt again to stop immediately\n");
}

void set_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) {  // not under nohup
    ::sigaction(SIGHUP, &action, nullptr);
  }
  // A file size limit or a closed pipe then makes the write fail instead of killing the process.
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGXFSZ, &action, nullptr);
  ::sigaction(SIGPIPE, &action, nullptr);
}

// Opens the run's checkpoint store. If the last commit is damaged but an earlier one is intact, the
// error says how to resume from that one.
Result<std::unique_ptr<storage::CheckpointStore>> open_store(const RunContext& context,
                                                             FileSystem& files) {
  // The directory of an existing store may have been renamed; the store knows its id. Paths such as
  // "." and "runs/x/" do not end in the name of the run.
  std::error_code ignored;
  const bool exists =
      std::filesystem::exists(context.directory / "checkpoints" / "store.json", ignored);
  const std::string run_id =
      exists ? "" : std::filesystem::canonical(context.directory, ignored).filename().string();
  storage::CheckpointStoreOptions options{context.directory, run_id, context.on_damage};
  auto store = storage::CheckpointStore::open(options, files);
  if (store.status().code() != Errc::kCorruptData ||
      context.on_damage == storage::OnDamage::kUseNewestIntact) {
    return store;
  }
  options.on_damage = storage::OnDamage::kUseNewestIntact;
  if (!storage::CheckpointStore::open(options, files).ok()) {
    return store;
  }
  return corrupt_data(store.status().message() + "; to resume from it: tidemill resume " +
                      context.directory.string() + " --use-commit-before");
}

// Checks that the record files hold what the last commit recorded.
Status check_last_records(const RunContext& context, const actors::RunCommit& last,
                          storage::CheckpointStore& store, Session& session) {
  const Status status = storage::check_records(context.directory, last.records);
  if (status.code() != Errc::kCorruptData) {
    return status;
  }
  if (context.on_lost_records == OnLostRecords::kRefuse) {
    return corrupt_data(status.message() + "; to go on without what is lost: tidemill resume " +
                        context.directory.string() + " --accept-lost-records");
  }
  session.log.warning("goes on without lost records: " + status.message());
  return actors::accept_lost_records(store, context.directory);
}

// Loads the last commit, checks its records, and returns the number of the next incarnation.
Result<std::uint32_t> next_incarnation(const RunContext& context, actors::CommitStore& commits,
                                       storage::CheckpointStore& store, Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<actors::RunCommit> last, commits.load());
  if (!last.has_value()) {
    return 0U;
  }
  TIDEMILL_RETURN_IF_ERROR(check_last_records(context, *last, store, session));
  return last->weights.version.incarnation + 1;
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

// Logs the peak memory of the process, compared with the expected one.
void log_peak(std::int64_t peak, std::int64_t expected, Session& session) {
  if (peak > 0 && expected > 0) {
    session.log.info("memory: peak " + workflows::mebibytes_text(peak) + ", " +
                     std::to_string((100 * peak + expected / 2) / expected) +
                     "% of the expected peak");
  }
}

void print_end(const actors::RunSummary& summary, const std::filesystem::path& directory,
               std::int64_t peak_bytes, Session& session) {
  const bool stopped = summary.end == actors::RunEnd::kStopped;
  const bool adapter = !summary.weights.adapter_digest.empty();
  const std::string exported = (directory / (adapter ? "export/adapter" : "export")).string();
  if (session.form == OutputForm::kJson) {
    session.out << Json(Json::Object{{"kind", "end"},
                                     {"stopped", stopped},
                                     {"step", static_cast<std::int64_t>(summary.steps)},
                                     {"exported_step",
                                      static_cast<std::int64_t>(summary.weights.version.step)},
                                     {"reason", summary.reason},
                                     {"peak_bytes", peak_bytes},
                                     {"run", directory.string()},
                                     {"export", exported}})
                       .to_line();
    return;
  }
  const bool early =
      summary.end == actors::RunEnd::kNoSignal || summary.end == actors::RunEnd::kPlateau;
  session.out << (stopped ? "stopped after step "
                  : early ? "ended early, after step "
                          : "done: step ")
              << summary.steps << (adapter ? "; the adapter" : "; the model")
              << (summary.weights.version.step < summary.steps
                      ? " of step " + std::to_string(summary.weights.version.step) + ", the best,"
                      : "")
              << " is in " << exported << '\n';
  if (stopped) {
    session.out << "resume it with: tidemill resume " << directory.string() << '\n';
  }
}

// Writes state.json, which `tidemill runs` and `tidemill show` read.
void write_note(const RunContext& context, const storage::RunStateNote& state, Session& session) {
  PosixFileSystem files;
  const Status written = storage::write_run_state(files, context.directory, state);
  if (!written.ok()) {
    session.log.warning(written.message());
  }
}

// Writes the settings of a resumed run that has changed some of them.
void write_run_yaml(const RunContext& context, Session& session) {
  if (context.run_yaml.empty()) {
    return;
  }
  PosixFileSystem files;
  const Status written = write_file(files, context.directory / "run.yaml", context.run_yaml);
  if (!written.ok()) {
    session.log.warning(written.message() + "; the next resume has the settings from before");
  }
}

// What is known once the first step of a run is about to begin.
struct RunStart {
  bool begun = false;
  std::uint64_t steps = 0;          // total steps of the run
  std::int64_t expected_bytes = 0;  // expected peak memory of the process
};

// Carries out the run in its directory. Sets `run_start` when the first step is about to begin.
Status run_in_directory(const RunContext& context, Session& session, RunStart& run_start) {
  PosixFileSystem files;
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<storage::CheckpointStore> opened,
                            open_store(context, files));
  const std::shared_ptr<storage::CheckpointStore> store = std::move(opened);
  TIDEMILL_ASSIGN_OR_RETURN(auto log_file,
                            make_file_sink((context.directory / "log.txt").string()));
  session.log.add_sink(std::move(log_file));
  for (const std::string& damage : store->damage()) {
    session.log.warning("skipped a damaged commit: " + damage);
  }
  const auto commits = actors::make_checkpoint_commits(store, context.directory);
  TIDEMILL_ASSIGN_OR_RETURN(const std::uint32_t incarnation,
                            next_incarnation(context, *commits, *store, session));
  TIDEMILL_ASSIGN_OR_RETURN(const std::string started, read_started(context.directory));
  interrupts = 0;
  comparing = 0;
  set_signals();
  TIDEMILL_RETURN_IF_ERROR(workflows::check_threads(workflows::kActorSystemThreads));
  workflows::ActorSystem actor_system;
  const bool json = session.form == OutputForm::kJson;
  Progress progress(json ? session.out : session.err, session.form, session.clock);
  workflows::RunEnvironment run{actor_system.system(),
                                session.clock,
                                files,
                                context.directory,
                                commits,
                                incarnation,
                                started,
                                [&](const actors::StepRecord& record) { progress.show(record); },
                                [&](const workflows::RunFacts& facts) {
                                  run_start = {true, facts.steps, facts.expected_bytes};
                                  write_note(context, {"running", facts.steps, ""}, session);
                                  write_run_yaml(context, session);
                                  progress.begin(facts.steps);
                                },
                                [&](const std::string& line) { session.log.warning(line); },
                                [&](const std::string& line) { session.log.info(line); },
                                [] { return interrupts > 0; },
                                session.additions.run};
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_workflow(context.config, run));
  progress.end();
  const std::int64_t peak = workflows::peak_bytes().value_or(0);
  log_peak(peak, run_start.expected_bytes, session);
  const bool stopped = summary.end == actors::RunEnd::kStopped;
  write_note(context, {stopped ? "stopped" : "finished", run_start.steps, summary.reason}, session);
  if (!stopped) {
    comparing = 1;
    const Status graded = print_before_and_after(context, started, run, session);
    if (!graded.ok()) {
      session.log.warning("the models before and after could not be compared: " + graded.message());
    }
  }
  print_end(summary, context.directory, peak, session);
  return {};
}

// Writes the reason of a failure as the last line of the run's log. `run_program` prints it on the
// terminal.
void log_failure(const RunContext& context, const Status& status, const Clock& clock) {
  const auto sink = make_file_sink((context.directory / "log.txt").string());
  if (sink.ok()) {
    sink.value()->write({LogLevel::kError, clock.now(), status.message(), {}});
    sink.value()->flush();
  }
}

}  // namespace

Status execute_run(const RunContext& context, Session& session) {
  RunStart run_start;
  Status status = run_in_directory(context, session, run_start);
  const bool begun = run_start.begun;
  const bool refused = !status.ok() && !begun && status.code() != Errc::kUnavailable;
  if (refused && context.fresh) {
    std::error_code ignored;
    std::filesystem::remove_all(context.directory, ignored);
  } else if (!status.ok()) {
    log_failure(context, status, session.clock);
    if (begun || context.fresh) {
      write_note(context, {"failed", run_start.steps, status.message()}, session);
    }
    if (begun) {
      // The arguments could be used, so this is a failure of the work.
      return {Errc::kUnavailable, status.message()};
    }
  }
  return status;
}

}  // namespace tidemill::launcher
