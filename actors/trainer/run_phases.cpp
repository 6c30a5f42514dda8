// SPDX-License-Identifier: Apache-2.0
#include "actors/trainer/run_phases.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"

namespace tidemill::actors {
namespace {

constexpr std::optional<RunKind> kBoth = std::nullopt;
constexpr std::optional<RunKind> kRl = RunKind::kReinforcement;
constexpr std::optional<RunKind> kSft = RunKind::kSupervised;

constexpr auto kPhaseTable = [] {
  using P = Phase;
  using E = RunEvent;
  using R = Reaction;
  return std::to_array<PhaseRow>({
      {P::kReady, E::kStart, kBoth, R::kBegin, "the first step, or what the last run left undone"},
      {P::kReady, E::kStop, kRl, R::kNothing, "the start finds that the run is over"},
      {P::kReady, E::kStop, kSft, R::kFetchOrEnd, "nothing is under way"},

      {P::kFetching, E::kBatch, kBoth, R::kTrain, "after a stop too: the rows are leased"},
      {P::kFetching, E::kNoBatchYet, kBoth, R::kFetchOrEnd, "asks again, unless asked to stop"},
      {P::kFetching, E::kDataEnded, kBoth, R::kFetchOrEnd, "the run is over"},
      {P::kFetching, E::kNoSignal, kBoth, R::kFetchOrEnd, "the run is over"},
      {P::kFetching, E::kEvaluationRecorded, kRl, R::kNothing, "nothing waits for it"},
      {P::kFetching, E::kEvaluationAbandoned, kRl, R::kNothing, "nothing waits for it"},
      {P::kFetching, E::kCommitWritten, kBoth, R::kNothing, "nothing waits for it"},
      {P::kFetching, E::kStop, kRl, R::kNothing, "the stream may have leased a batch already"},
      {P::kFetching, E::kStop, kSft, R::kFetchOrEnd, "a batch that is being read is not needed"},

      {P::kTraining, E::kStepRecorded, kBoth, R::kEvaluateIfDue, "the step is done"},
      {P::kTraining, E::kEvaluationRecorded, kRl, R::kNothing, "nothing waits for it"},
      {P::kTraining, E::kEvaluationAbandoned, kRl, R::kNothing, "nothing waits for it"},
      {P::kTraining, E::kCommitWritten, kBoth, R::kNothing, "nothing waits for it"},
      {P::kTraining, E::kStop, kBoth, R::kNothing, "the step is finished first"},

      {P::kEvaluating, E::kEvaluationRecorded, kBoth, R::kCommitIfDue, "the step waited for it"},
      {P::kEvaluating, E::kEvaluationAbandoned, kSft, R::kCommitIfDue, "the step waited for it"},
      {P::kEvaluating, E::kCommitWritten, kBoth, R::kNothing, "nothing waits for it"},
      {P::kEvaluating, E::kStop, kRl, R::kCommitIfDue, "the evaluator's reply is not needed"},
      {P::kEvaluating, E::kStop, kSft, R::kNothing, "the device is busy with the evaluation"},

      {P::kCommitWaiting, E::kEvaluationRecorded, kRl, R::kCommit, "the commit waited for it"},
      {P::kCommitWaiting, E::kEvaluationAbandoned, kRl, R::kCommit, "the commit waited for it"},
      {P::kCommitWaiting, E::kCommitWritten, kBoth, R::kCommit, "the next commit waited for it"},
      {P::kCommitWaiting, E::kStop, kBoth, R::kCommit, "no longer waits for the evaluation"},

      {P::kCapturing, E::kEvaluationRecorded, kRl, R::kNothing, "recorded in spite of a stop"},
      {P::kCapturing, E::kEvaluationAbandoned, kRl, R::kNothing, "a stop did not wait for it"},
      {P::kCapturing, E::kCaptured, kBoth, R::kWrite, "the next step need not wait for the disk"},
      {P::kCapturing, E::kStop, kBoth, R::kNothing, "the commit is finished first"},

      {P::kEnded, E::kEvaluationRecorded, kRl, R::kNothing, "a stop did not wait for it"},
      {P::kEnded, E::kEvaluationAbandoned, kRl, R::kNothing, "a stop did not wait for it"},
      {P::kEnded, E::kStop, kBoth, R::kNothing, "there is nothing left to stop"},
  });
}();

}  // namespace

std::span<const PhaseRow> phase_table() {
  return kPhaseTable;
}

Reaction reaction_to(RunKind kind, Phase phase, RunEvent event) {
  const auto* const row =
      std::find_if(kPhaseTable.begin(), kPhaseTable.end(), [&](const PhaseRow& candidate) {
        return candidate.phase == phase && candidate.event == event &&
               candidate.kind.value_or(kind) == kind;
      });
  return row == kPhaseTable.end() ? Reaction::kNever : row->reaction;
}

RunPhases::RunPhases(const RunPhaseOptions& options, RunOriginState origin)
    : options_(options),
      step_(origin.step),
      committed_step_(origin.step),
      evaluated_step_(origin.evaluated_step),
      committed_evaluation_(origin.evaluated_step),
      best_(std::move(origin.best)) {
  if (options_.best.keep && best_.has_value() && best_->weights.base_digest.empty()) {
    best_.reset();  // from a run that did not keep weights: look for the best from here on
  }
}

std::vector<RunAction> RunPhases::on(RunEvent event, const std::string& reason) {
  const Reaction reaction = reaction_to(options_.kind, phase_, event);
  TIDEMILL_CHECK(reaction != Reaction::kNever)
      << "phase=" << static_cast<int>(phase_) << " event=" << static_cast<int>(event);
  note(event, reason);
  Actions actions;
  react(reaction, actions);
  return actions;
}

void RunPhases::take_evaluation(double value, const engines::Snapshot& weights) {
  TIDEMILL_CHECK(evaluating_.has_value());
  actors::take_evaluation(options_.best, value, weights, best_);
  check_plateau();
}

RunSummary RunPhases::summary(const engines::Snapshot& last) const {
  TIDEMILL_CHECK(end_.has_value());
  const bool kept = options_.best.keep && best_.has_value();
  return {*end_, step_, kept ? best_->weights : last, end_reason_};
}

// Changes what does not depend on the phase.
void RunPhases::note(RunEvent event, const std::string& reason) {
  switch (event) {
    case RunEvent::kStart: check_plateau(); break;  // the commit may have been made at one
    case RunEvent::kDataEnded: end_with(RunEnd::kData); break;
    case RunEvent::kNoSignal: end_with(RunEnd::kNoSignal, reason); break;
    case RunEvent::kStepRecorded: ++step_; break;
    case RunEvent::kEvaluationRecorded:
      TIDEMILL_CHECK(evaluating_.has_value());
      evaluated_step_ = *std::exchange(evaluating_, std::nullopt);
      break;
    case RunEvent::kEvaluationAbandoned:
      TIDEMILL_CHECK(evaluating_.has_value() && stop_requested_);
      evaluating_.reset();
      break;
    case RunEvent::kCaptured:
      committed_step_ = step_;
      committed_evaluation_ = evaluated_step_;
      break;
    case RunEvent::kCommitWritten:
      TIDEMILL_CHECK(writing_);
      writing_ = false;
      break;
    case RunEvent::kStop:
      stop_requested_ = true;
      end_with(RunEnd::kStopped);
      break;
    case RunEvent::kBatch:
    case RunEvent::kNoBatchYet: break;
  }
}

void RunPhases::react(Reaction reaction, Actions& actions) {
  switch (reaction) {
    case Reaction::kNever:
    case Reaction::kNothing: break;
    case Reaction::kTrain:
      phase_ = Phase::kTraining;
      actions.push_back(RunAction::kTrain);
      break;
    case Reaction::kBegin:
      if (!begin_evaluation(actions)) {
        fetch_or_end(actions);
      }
      break;
    case Reaction::kEvaluateIfDue:
      if (!begin_evaluation(actions)) {
        commit_if_due(actions);
      }
      break;
    case Reaction::kCommitIfDue: commit_if_due(actions); break;
    case Reaction::kWrite:
      writing_ = true;
      actions.push_back(RunAction::kWrite);
      fetch_or_end(actions);
      break;
    case Reaction::kFetchOrEnd: fetch_or_end(actions); break;
    case Reaction::kCommit: commit(actions); break;
  }
}

// The first reason to end counts.
void RunPhases::end_with(RunEnd end, const std::string& reason) {
  if (!end_.has_value()) {
    end_ = end;
    end_reason_ = reason;
  }
}

void RunPhases::check_plateau() {
  if (const auto why = plateau(options_.best, best_); why.has_value()) {
    end_with(RunEnd::kPlateau, *why);
  }
}

// Returns whether the weights of this step are to be evaluated: every few steps, and after the last
// one.
bool RunPhases::evaluation_due() const {
  return options_.eval_every != 0 &&
         (step_ % options_.eval_every == 0 || step_ >= options_.total_steps);
}

// Begins the evaluation, if one is due at this step. Returns whether the next step waits for it.
bool RunPhases::begin_evaluation(Actions& actions) {
  if (!evaluation_due() || evaluated_step_ == step_ || end_.has_value()) {
    return false;
  }
  // If the previous evaluation is still running, this one is skipped.
  if (!evaluating_.has_value()) {
    evaluating_ = step_;
    actions.push_back(RunAction::kEvaluate);
  }
  if (options_.kind == RunKind::kReinforcement && !options_.best.enabled()) {
    return false;
  }
  phase_ = Phase::kEvaluating;
  return true;
}

void RunPhases::commit_if_due(Actions& actions) {
  const bool due =
      commit_overdue_ || (options_.commit_every != 0 && step_ % options_.commit_every == 0);
  if (due && step_ < options_.total_steps) {
    commit(actions);
  } else {
    fetch_or_end(actions);  // which commits the last step
  }
}

void RunPhases::fetch_or_end(Actions& actions) {
  if (step_ >= options_.total_steps) {
    end_with(RunEnd::kSteps);
    if (end_ == RunEnd::kStopped && (!evaluation_due() || evaluated_step_ == step_)) {
      end_ = RunEnd::kSteps;  // a stop during the last step leaves nothing to do
    }
  }
  if (end_.has_value()) {
    commit(actions);
    return;
  }
  phase_ = Phase::kFetching;
  actions.push_back(RunAction::kFetch);
}

void RunPhases::commit(Actions& actions) {
  if (writing_ || (evaluating_.has_value() && !stop_requested_)) {
    phase_ = Phase::kCommitWaiting;
    return;
  }
  if (end_.has_value() && committed_step_ == step_ && committed_evaluation_ == evaluated_step_) {
    phase_ = Phase::kEnded;
    actions.push_back(RunAction::kFinish);
    return;
  }
  commit_overdue_ = false;
  phase_ = Phase::kCapturing;
  actions.push_back(RunAction::kCapture);
}

}  // namespace tidemill::actors
