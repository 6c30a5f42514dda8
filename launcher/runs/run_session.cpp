// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_session.hpp"

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <ostream>
#include <span>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/text/mebibytes.hpp"
#include "launcher/additions.hpp"
#include "launcher/runs/before_after.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "launcher/runs/progress.hpp"
#include "launcher/runs/run_directory.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "storage/run_files/commit_meta.hpp"
#include "storage/run_files/metrics_line.hpp"
#include "storage/run_files/record_marks.hpp"
#include "storage/run_files/run_state.hpp"
#include "storage/run_files/sample_line.hpp"
#include "workflows/actor_system.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/processes/socket_folder.hpp"
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
  // A closed pipe then makes the write fail instead of killing the process.
  action.sa_handler = SIG_IGN;
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

// Returns " (2 lines of metrics.jsonl that cannot be read were dropped)", or an empty string.
std::string dropped_text(const storage::RemainingRecords& left) {
  std::string text;
  for (const auto& [count, file] : {std::pair{left.dropped_metrics, storage::kMetricsFile},
                                    std::pair{left.dropped_samples, storage::kSamplesFile}}) {
    if (count > 0) {
      text += (text.empty() ? " (dropped lines that cannot be read: " : ", ") +
              std::to_string(count) + " of " + file;
    }
  }
  return text.empty() ? text : text + ")";
}

// Checks that the record files hold what the last commit recorded. Returns what was read, or null
// if records were lost and that is accepted.
Result<std::shared_ptr<storage::CheckedRecords>> check_last_records(const RunContext& context,
                                                                    const actors::RunCommit& last,
                                                                    storage::CheckpointStore& store,
                                                                    FileSystem& files,
                                                                    Session& session) {
  auto checked = storage::check_records(context.directory, last.records);
  if (checked.ok()) {
    return std::make_shared<storage::CheckedRecords>(std::move(checked).value());
  }
  if (checked.status().code() != Errc::kCorruptData) {
    return checked.status();
  }
  if (context.on_lost_records == OnLostRecords::kRefuse) {
    return corrupt_data(checked.status().message() +
                        "; to go on without what is lost: tidemill resume " +
                        context.directory.string() + " --accept-lost-records");
  }
  TIDEMILL_ASSIGN_OR_RETURN(const storage::RemainingRecords left,
                            actors::accept_lost_records(store, files, context.directory));
  session.log.warning("goes on without lost records: " + checked.status().message() +
                      dropped_text(left));
  return std::shared_ptr<storage::CheckedRecords>();
}

// Where an incarnation starts.
struct Start {
  std::uint32_t incarnation = 0;
  std::shared_ptr<storage::CheckedRecords> records;  // null: not read yet
};

// Refuses a run without a commit that has ended after a step, since every such end makes a commit.
// Starting it again would remove its records.
Status check_no_commit_lost(const RunContext& context) {
  const auto note = storage::read_run_state(context.directory);
  if (!note.ok() || !note.value().has_value()) {
    return {};  // how it ended is not known
  }
  const std::string& state = note.value()->state;
  std::error_code ignored;
  const auto metrics =
      std::filesystem::file_size(context.directory / storage::kMetricsFile, ignored);
  if ((state != "finished" && state != "stopped") || ignored || metrics == 0) {
    return {};
  }
  return corrupt_data((context.directory / "checkpoints").string() +
                      ": has no commit, but the run " +
                      (state == "stopped" ? "was stopped" : "has finished") +
                      " and has records; to start it again, use another name or remove " +
                      context.directory.string());
}

// Loads the last commit, and checks its configuration and its records.
Result<Start> find_start(const RunContext& context, actors::CommitStore& commits,
                         storage::CheckpointStore& store, FileSystem& files, Session& session) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<actors::RunCommit> last, commits.load());
  std::string committed;
  if (last.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string meta,
                              store.read_last_blob(storage::kCommitMetaPart));
    TIDEMILL_ASSIGN_OR_RETURN(const storage::CommitMeta parsed,
                              storage::parse_commit_meta(meta, storage::kCommitMetaPart));
    committed = parsed.config;
  }
  if (context.check_config) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::string note, context.check_config(committed));
    if (!note.empty()) {
      session.log.info(note);
    }
  }
  if (!last.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(check_no_commit_lost(context));
    return Start();
  }
  Start start{last->weights.version.incarnation + 1, nullptr};
  TIDEMILL_ASSIGN_OR_RETURN(start.records,
                            check_last_records(context, *last, store, files, session));
  return start;
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

bool has_child_processes(const configs::RunConfig& config) {
  const auto* rl = config.workflow.get<workflows::RlOptions>();
  return rl != nullptr && child_processes(rl->placement) > 0;
}

// Logs the peak memory of the process, compared with the expected one. That counts all processes of
// the run, so it is not compared if there are others.
void log_peak(std::int64_t peak, std::int64_t expected, bool has_others, Session& session) {
  if (peak > 0 && has_others) {
    session.log.info("memory: peak " + mebibytes_text(peak) +
                     " of the process of the run, without the others");
  } else if (peak > 0 && expected > 0) {
    session.log.info("memory: peak " + mebibytes_text(peak) + ", " +
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

// Writes state.json, which `tidemill runs` and `tidemill show` read, wherever the directory is now.
void write_note(const RunContext& context, const storage::RunStateNote& state, Session& session) {
  HeldDirectoryFiles files(context.held, OnMove::kFollow);
  const Status written = storage::write_run_state(files, context.directory, state);
  if (!written.ok() && context.held->in_place()) {
    session.log.warning(written.message());
  }
}

// Writes the settings of a resumed run that has changed some of them.
void write_run_yaml(const RunContext& context, Session& session) {
  if (context.run_yaml.empty()) {
    return;
  }
  HeldDirectoryFiles files(context.held, OnMove::kRefuse);
  const Status written = write_file(files, context.directory / "run.yaml", context.run_yaml);
  if (!written.ok()) {
    session.log.warning(written.message() + "; the next resume has the settings from before");
  }
}

// Removes the temporary files that killed processes of the run have left.
void remove_leftovers(const RunContext& context, Session& session) {
  HeldDirectoryFiles files(context.held, OnMove::kRefuse);
  const Status removed = remove_temporary_files(files, context.directory);
  if (!removed.ok()) {
    session.log.warning(removed.message());
  }
}

// What is known once the first step of a run is about to begin.
struct RunStart {
  bool begun = false;
  std::uint64_t steps = 0;          // total steps of the run
  std::int64_t expected_bytes = 0;  // expected peak memory of the process
};

// Records that the first step of the run is about to begin.
void begin(const RunContext& context, const RunStart& run_start, RunLogSink& log_file,
           Session& session) {
  remove_leftovers(context, session);
  write_note(context, {"running", run_start.steps, ""}, session);
  write_run_yaml(context, session);
  if (const Status opened = log_file.open(); !opened.ok()) {
    session.log.warning(opened.message());
  }
}

// Carries out the run in its directory. Sets `run_start` when the first step is about to begin.
Status run_in_directory(const RunContext& context, RunLogSink& log_file, Session& session,
                        RunStart& run_start) {
  HeldDirectoryFiles files(context.held, OnMove::kRefuse);
  TIDEMILL_RETURN_IF_ERROR(check_in_place(*context.held));
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<storage::CheckpointStore> opened,
                            open_store(context, files));
  workflows::remove_socket_folder(context.directory);  // the store holds the lock of the run
  const std::shared_ptr<storage::CheckpointStore> store = std::move(opened);
  TIDEMILL_RETURN_IF_ERROR(log_file.check());
  for (const std::string& damage : store->damage()) {
    session.log.warning("skipped a damaged commit: " + damage);
  }
  const auto commits =
      actors::make_checkpoint_commits(store, context.directory, context.config_text);
  TIDEMILL_ASSIGN_OR_RETURN(const Start start,
                            find_start(context, *commits, *store, files, session));
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
                                start.incarnation,
                                started,
                                [&](const actors::StepRecord& record) { progress.show(record); },
                                [&](const workflows::RunFacts& facts) {
                                  if (!run_start.begun) {
                                    run_start = {true, facts.steps, facts.expected_bytes};
                                    begin(context, run_start, log_file, session);
                                    progress.begin(facts.steps);
                                  }
                                },
                                [&](const std::string& line) { session.log.warning(line); },
                                [&](const std::string& line) { session.log.info(line); },
                                [] { return interrupts > 0; },
                                session.additions.run,
                                context.held,
                                start.records};
  const std::string configuration = digest_bytes(std::as_bytes(std::span(context.config_text)));
  run.worker_program = workflows::WorkerProgram{
      "/proc/self/exe", {"worker", context.directory.string(), "--configuration", configuration}};
  run.on_processes = [&](std::function<std::string()> summary) {
    progress.set_processes(std::move(summary));
  };
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_workflow(context.config, run));
  progress.end();
  const std::int64_t peak = workflows::peak_bytes().value_or(0);
  log_peak(peak, run_start.expected_bytes, has_child_processes(context.config), session);
  const bool stopped = summary.end == actors::RunEnd::kStopped;
  write_note(context, {stopped ? "stopped" : "finished", run_start.steps, summary.reason}, session);
  if (!stopped && interrupts == 0) {
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
void log_failure(const Status& status, RunLogSink& log_file, const Clock& clock) {
  if (log_file.open().ok()) {
    log_file.write({LogLevel::kError, clock.now(), status.message(), {}});
  }
}

// Removes the directory of a run that was refused.
void remove_directory(const RunContext& context) {
  PosixFileSystem files;
  if (context.held->in_place()) {
    (void)remove_tree(files, context.directory.parent_path(),
                      context.directory.filename().string());
  }
}

}  // namespace

Status execute_run(const RunContext& context, Session& session) {
  RunStart run_start;
  auto sink = std::make_unique<RunLogSink>(context.held);
  RunLogSink& log_file = *sink;
  session.log.add_sink(std::move(sink));
  Status status = run_in_directory(context, log_file, session, run_start);
  if (status.ok()) {
    return status;
  }
  if (const Status moved = check_in_place(*context.held); !moved.ok()) {
    status = moved;  // the cause of whatever has failed
  }
  const bool begun = run_start.begun;
  if (!begun && context.fresh && status.code() != Errc::kUnavailable) {
    remove_directory(context);
  } else if (begun || context.fresh) {
    log_failure(status, log_file, session.clock);
    write_note(context, {"failed", run_start.steps, status.message()}, session);
  }
  // Once the run has begun, the arguments could be used, so this is a failure of the work.
  return begun ? Status(Errc::kUnavailable, status.message()) : status;
}

}  // namespace tidemill::launcher
