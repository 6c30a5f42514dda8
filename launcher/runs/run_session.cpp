// SPDX-License-Identifier: Apache-2.0
#include "launcher/runs/run_session.hpp"

#include <cerrno>
#include <csignal>
#include <ostream>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "base/file.hpp"
#include "base/json.hpp"
#include "launcher/additions.hpp"
#include "launcher/runs/before_after.hpp"
#include "launcher/runs/log_sinks.hpp"
#include "launcher/runs/progress.hpp"
#include "launcher/runs/run_directory.hpp"
#include "launcher/runs/run_state.hpp"
#include "storage/checkpoint/checkpoint_store.hpp"
#include "workflows/actor_world.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::launcher {
namespace {

// Of the signal handler; a process has one.
volatile std::sig_atomic_t interrupts = 0;
volatile std::sig_atomic_t comparing = 0;  // all is committed and exported; the rest is for the eye

void say(std::string_view text) {
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

void on_interrupt(int signal) {
  interrupts = interrupts + 1;
  if (comparing != 0) {
    say("the run is complete and exported; the comparison is left out\n");
    ::_exit(0);
  }
  if (interrupts > 1) {
    ::_exit(128 + signal);  // commits are atomic: nothing is torn
  }
  say("stopping after this step; once more stops at once\n");
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
  action.sa_handler = SIG_IGN;  // a limit on file sizes, a reader that leaves: the write's errors
  ::sigaction(SIGXFSZ, &action, nullptr);
  ::sigaction(SIGPIPE, &action, nullptr);
}

// A refusal of damage says how to go on in spite of it, where that is possible.
Result<std::unique_ptr<storage::CheckpointStore>> open_store(const RunPlace& place,
                                                             FileSystem& files) {
  // "." and "runs/x/" end in no name.
  std::error_code ignored;
  const std::string run_id =
      std::filesystem::canonical(place.directory, ignored).filename().string();
  storage::CheckpointStoreOptions options{place.directory, run_id, place.on_damage};
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

// Tells what the process held at its peak beside what had been expected.
void inform_of_peak(std::int64_t peak, std::int64_t expected, Session& session) {
  if (peak > 0 && expected > 0) {
    session.log.info("memory: peak " + workflows::mebibytes_text(peak) + ", " +
                     std::to_string((100 * peak + expected / 2) / expected) +
                     "% of what was expected");
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
    session.out << "go on with: tidemill resume " << directory.string() << '\n';
  }
}

// Notes how the run stands, for those who look at it later.
void note(const RunPlace& place, const RunStateNote& state, Session& session) {
  PosixFileSystem files;
  const Status written = write_run_state(files, place.directory, state);
  if (!written.ok()) {
    session.log.warning(written.message());
  }
}

// What came of the run, once its first step had begun.
struct Progressed {
  bool begun = false;
  std::uint64_t steps = 0;          // at its end
  std::int64_t expected_bytes = 0;  // of the process, at its peak
};

// Runs in the directory of `place`; `progressed` tells whether anything happened in it.
Status run_there(const RunPlace& place, Session& session, Progressed& progressed) {
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
  comparing = 0;
  set_signals();
  workflows::ActorWorld world;
  const bool json = session.form == OutputForm::kJson;
  Progress progress(json ? session.out : session.err, session.form, session.clock);
  workflows::RunEnvironment run{world.system(),
                                session.clock,
                                files,
                                place.directory,
                                commits,
                                incarnation,
                                started,
                                [&](const actors::StepRecord& record) { progress.show(record); },
                                [&](const workflows::RunFacts& facts) {
                                  progressed = {true, facts.steps, facts.expected_bytes};
                                  note(place, {"running", facts.steps, ""}, session);
                                  progress.begin(facts.steps);
                                },
                                [&](const std::string& line) { session.log.warning(line); },
                                [&](const std::string& line) { session.log.info(line); },
                                [] { return interrupts > 0; },
                                session.additions.run};
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_workflow(place.config, run));
  progress.end();
  const std::int64_t peak = workflows::peak_bytes().value_or(0);
  inform_of_peak(peak, progressed.expected_bytes, session);
  const bool stopped = summary.end == actors::RunEnd::kStopped;
  note(place, {stopped ? "stopped" : "finished", progressed.steps, summary.reason}, session);
  if (!stopped) {
    comparing = 1;
    const Status graded = print_before_and_after(place, started, run, session);
    if (!graded.ok()) {
      session.log.warning("the result could not be graded: " + graded.message());
    }
  }
  print_end(summary, place.directory, peak, session);
  return {};
}

// The last line of a run's log says why it failed; on the terminal the program says it.
void log_failure(const RunPlace& place, const Status& status, const Clock& clock) {
  const auto sink = make_file_sink((place.directory / "log.txt").string());
  if (sink.ok()) {
    sink.value()->write({LogLevel::kError, clock.now(), status.message(), {}});
    sink.value()->flush();
  }
}

}  // namespace

Status carry_out(const RunPlace& place, Session& session) {
  Progressed progressed;
  Status status = run_there(place, session, progressed);
  const bool begun = progressed.begun;
  const bool refused = !status.ok() && !begun && status.code() != Errc::kUnavailable;
  if (refused && place.fresh) {
    std::error_code ignored;
    std::filesystem::remove_all(place.directory, ignored);
  } else if (!status.ok()) {
    log_failure(place, status, session.clock);
    if (begun) {
      note(place, {"failed", progressed.steps, status.message()}, session);
      // What was asked could be used: the work failed.
      return {Errc::kUnavailable, status.message()};
    }
  }
  return status;
}

}  // namespace tidemill::launcher
