// SPDX-License-Identifier: Apache-2.0
// Decides what a trainer does next: the order of steps, evaluations and commits, and how a run
// ends.
//
// Both trainers use a `RunPhases`. They pass it each event, and it returns the actions to take. It
// sends no messages and knows no actors, so a test can try every event in every phase.
// `phase_table()` is the specification: one row for each phase and event, with the reason.
//
// The table does not show four rules:
//
// - A commit is written while the next step runs. `kCommitWritten` can therefore arrive in several
//   phases, and the next commit waits for it.
// - An evaluation precedes the commit of its step: a run that is restored from the commit does not
//   evaluate that step again, so the evaluation must be recorded first. A commit therefore waits
//   for an evaluation.
// - A reinforcement-learning run trains on during an evaluation. If it looks for the best weights,
//   the next step waits instead, so that a single version generates all responses. A supervised run
//   always evaluates between two steps.
// - A run that is asked to stop finishes its step. It abandons a running evaluation and begins no
//   other; the resumed run makes up for it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/trainer/best_weights.hpp"
#include "actors/trainer/messages.hpp"

namespace tidemill::actors {

/// What a trainer is doing or waiting for.
enum class Phase : std::uint8_t {
  kReady,          // not started
  kFetching,       // waits for a batch
  kTraining,       // trains, publishes, records
  kEvaluating,     // the next step waits for the evaluation
  kCommitWaiting,  // a commit waits for the earlier commit or the evaluation
  kCapturing,      // collects the parts of a commit
  kEnded,          // the summary is sent
};
inline constexpr std::size_t kNumPhases = 7;

/// An event that a trainer reports.
enum class RunEvent : std::uint8_t {
  kStart,                // asked to start
  kBatch,                // a batch has arrived
  kNoBatchYet,           // no batch is ready, but one may come
  kDataEnded,            // no batch will come
  kNoSignal,             // too many groups have left untrained
  kStepRecorded,         // the batch is trained, published and recorded
  kEvaluationRecorded,   // the running evaluation is recorded
  kEvaluationAbandoned,  // the running evaluation has ended after a stop, and is not recorded
  kCaptured,             // the commit is complete and can be written
  kCommitWritten,        // the commit at the port is on disk
  kStop,                 // asked to stop
};
inline constexpr std::size_t kNumRunEvents = 11;

/// An action that a trainer must take.
enum class RunAction : std::uint8_t {
  kFetch,     // get the next batch
  kTrain,     // train on the batch
  kEvaluate,  // begin an evaluation of the current weights
  kCapture,   // collect the parts of a commit of the current weights
  kWrite,     // have the captured commit written
  kFinish,    // send the summary and quit
};

/// The kind of a run.
enum class RunKind : std::uint8_t { kReinforcement, kSupervised };

/// How a trainer reacts to an event. Each reaction after `kTrain` says which reaction follows it.
enum class Reaction : std::uint8_t {
  kNever,    // the event cannot occur in this phase
  kNothing,  // only notes the event
  kTrain,    // trains on the batch
  /// Begins the evaluation that an earlier stop prevented, and waits for it if the next step must.
  /// Otherwise continues with `kFetchOrEnd`. A run whose last commit was made at a plateau ends.
  kBegin,
  /// Begins the evaluation that is due, unless the previous one is still running. Waits for it if
  /// the next step must. Otherwise continues with `kCommitIfDue`.
  kEvaluateIfDue,
  /// Continues with `kCommit` if a commit is due and this was not the last step, otherwise with
  /// `kFetchOrEnd`.
  kCommitIfDue,
  /// Has the captured commit written, and meanwhile continues with `kFetchOrEnd`.
  kWrite,
  /// Fetches the next batch. If the run is over, continues with `kCommit` instead.
  kFetchOrEnd,
  /// Waits for the earlier commit and the evaluation, then captures. If the run is over and the
  /// last commit holds its final state, sends the summary instead.
  kCommit,
};

/// One row of the table.
struct PhaseRow {
  Phase phase;
  RunEvent event;
  std::optional<RunKind> kind;  // only in runs of this kind; not set: both kinds
  Reaction reaction;
  std::string_view reason;
};

/// Returns the transition table. A pair of phase and event without a row cannot occur.
[[nodiscard]] std::span<const PhaseRow> phase_table();

/// Returns how a run of `kind` reacts to `event` in `phase`.
[[nodiscard]] Reaction reaction_to(RunKind kind, Phase phase, RunEvent event);

/// Options of a run's phases.
struct RunPhaseOptions {
  RunKind kind = RunKind::kReinforcement;
  std::uint64_t total_steps = 1;
  std::uint64_t commit_every = 0;  // steps; 0: only at the end
  std::uint64_t eval_every = 0;    // steps, and after the last one; 0: never
  BestOptions best = {};
};

/// Where a run starts: the state of the commit that it resumes from.
struct RunOriginState {
  std::uint64_t step = 0;
  std::uint64_t evaluated_step = 0;  // of the last recorded evaluation
  std::optional<BestSoFar> best = {};
};

/// Tracks the phase of a run and decides what comes next.
///
/// Threads: one call at a time.
class RunPhases {
public:
  RunPhases() = default;
  RunPhases(const RunPhaseOptions& options, RunOriginState origin);

  /// Records `event` and returns the actions to take, in order. For `kNoSignal`, `reason` says in
  /// one line why the run ends. Requires that the table has a row for the event.
  [[nodiscard]] std::vector<RunAction> on(RunEvent event, const std::string& reason = {});

  /// Has the step that is being recorded committed, whatever its number.
  void set_commit_overdue() noexcept { commit_overdue_ = true; }

  /// Updates the best evaluation with `value`, the result of evaluating `weights`, and ends the run
  /// at a plateau. Call it before the evaluation is recorded. Requires a running evaluation.
  void take_evaluation(double value, const engines::Snapshot& weights);

  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  /// Returns the number of recorded steps.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  /// Returns the step of the last captured commit.
  [[nodiscard]] std::uint64_t committed_step() const noexcept { return committed_step_; }
  /// Returns the step of the last recorded evaluation.
  [[nodiscard]] std::uint64_t evaluated_step() const noexcept { return evaluated_step_; }
  [[nodiscard]] const std::optional<BestSoFar>& best() const noexcept { return best_; }
  [[nodiscard]] bool stop_requested() const noexcept { return stop_requested_; }
  /// Returns whether an evaluation has begun that is neither recorded nor abandoned.
  [[nodiscard]] bool evaluating() const noexcept { return evaluating_.has_value(); }
  /// Returns why the run is over or ends after this step; nothing if it continues.
  [[nodiscard]] std::optional<RunEnd> end() const noexcept { return end_; }
  /// Returns the summary of a run that is over. Its weights are the best ones if they are kept,
  /// else `last`, those of the last step.
  [[nodiscard]] RunSummary summary(const engines::Snapshot& last) const;

private:
  using Actions = std::vector<RunAction>;

  void note(RunEvent event, const std::string& reason);
  void react(Reaction reaction, Actions& actions);
  void end_with(RunEnd end, const std::string& reason = {});
  void check_plateau();
  [[nodiscard]] bool evaluation_due() const;
  bool begin_evaluation(Actions& actions);
  void commit_if_due(Actions& actions);
  void fetch_or_end(Actions& actions);
  void commit(Actions& actions);

  RunPhaseOptions options_;
  Phase phase_ = Phase::kReady;
  std::uint64_t step_ = 0;
  std::optional<std::uint64_t> evaluating_;  // the step of the running evaluation
  bool writing_ = false;                     // a commit is at the port
  std::uint64_t committed_step_ = 0;
  std::uint64_t evaluated_step_ = 0;
  std::uint64_t committed_evaluation_ = 0;  // `evaluated_step_` of the last commit
  std::optional<BestSoFar> best_;
  std::optional<RunEnd> end_;
  std::string end_reason_;
  bool stop_requested_ = false;
  bool commit_overdue_ = false;
};

}  // namespace tidemill::actors
