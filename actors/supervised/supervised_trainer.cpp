// SPDX-License-Identifier: Apache-2.0
// The supervised trainer. One step is a chain: read -> train -> record -> (evaluate) -> (commit) ->
// read. The next batch is read while the current one is trained on. Step k reads from draw
// k * sequences_per_step on, so a resumed run reads exactly the data that comes next.
//
// An evaluation precedes the commit of its step: a run that is restored from the commit does not
// evaluate that step again, so the evaluation must be recorded first. A run that is asked to stop
// abandons an evaluation in progress, and begins none. The resumed run makes up for it.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/supervised/spawn.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kReplyDeadline = std::chrono::minutes(2);

using Batch = std::vector<engines::TrainSequence>;

// Shared with the work at the port.
struct PendingRead {
  std::shared_ptr<SequenceReader> reader;
  Result<Batch> batch = Batch{};
};

struct PendingCommit {
  RunCommit commit;
  Status status;
};

struct SupervisedState {
  static inline const char* name = "supervised_trainer";
  SupervisedState() = default;  // not an aggregate: CAF would build it from `self`

  SupervisedDeps deps;
  engines::Snapshot weights;  // of the last step
  std::uint64_t committed_step = 0;
  std::shared_ptr<PendingRead> reading;  // at the port
  std::optional<Batch> ready;            // read, but not yet trained on
  bool training = false;                 // or recording, evaluating, committing
  TimePoint started_at;
  std::shared_ptr<PendingCommit> writing;
  std::optional<RunEnd> end;  // if set: commit and end after this step
  std::string end_reason;     // for the summary
  bool commit_waits = false;  // a commit waits for `writing`
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;        // of the last recorded evaluation
  std::uint64_t committed_evaluation = 0;  // `evaluated_step` of the last commit
  std::size_t evaluated = 0;               // sequences scored in this evaluation
  TargetScore score;                       // of those sequences
};

using Self = SupervisedTrainerActor::stateful_pointer<SupervisedState>;

void next_step(Self self);
void begin_commit(Self self);
void after_evaluation(Self self);

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

auto or_fail(Self self, const char* doing) {
  return [self, doing](const caf::error& error) {
    fail(self, from_caf_error(error).with_context(doing));
  };
}

std::uint64_t step_of(const SupervisedState& state) {
  return state.weights.version.step;
}

void read_ahead(Self self, std::uint64_t step) {
  auto& state = self->state;
  if (step >= state.deps.total_steps || state.ready.has_value() || state.reading != nullptr) {
    return;
  }
  state.reading = std::make_shared<PendingRead>();
  state.reading->reader = state.deps.reader;
  state.deps.read_port->run(
      [work = state.reading, draw = step * state.deps.sequences_per_step,
       count = state.deps.sequences_per_step] {
        work->batch = work->reader->read(draw, count);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::load_v));
}

// -- evaluations ----------------------------------------------------------------------------------

void check_plateau(Self self) {
  auto& state = self->state;
  const auto why = plateau(state.deps.best_options, state.best);
  if (why.has_value() && !state.end.has_value()) {
    state.end = RunEnd::kPlateau;
    state.end_reason = *why;
  }
}

void end_evaluation(Self self) {
  auto& state = self->state;
  const double loss = -state.score.logprob_sum / static_cast<double>(state.score.num_targets);
  const double perplexity = std::exp(loss);
  StepRecord record{"eval", step_of(state), {}, {}};
  record.metrics["eval_loss"] = loss;
  if (std::isfinite(perplexity)) {
    record.metrics["eval_perplexity"] = perplexity;
  }
  record.metrics["eval_tokens"] = static_cast<double>(state.score.num_targets);
  record.metrics["eval_sequences"] = static_cast<double>(state.evaluated);
  if (state.deps.best_options.enabled()) {
    take_evaluation(state.deps.best_options, loss, state.weights, state.best);
    record.metrics["eval_best"] = state.best->value;
    record.metrics["eval_best_step"] = static_cast<double>(state.best->step);
    check_plateau(self);
  }
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then(
          [self](const RecordMarks&) {
            self->state.evaluated_step = step_of(self->state);
            after_evaluation(self);
          },
          or_fail(self, "recording an evaluation"));
}

// Scores the next held-out sequences, as many as a step has. Ends the evaluation after the last.
void evaluate(Self self) {
  auto& state = self->state;
  const Batch& all = *state.deps.eval_sequences;
  if (state.end.has_value()) {  // asked to stop during the evaluation
    after_evaluation(self);
    return;
  }
  if (state.evaluated == all.size()) {
    end_evaluation(self);
    return;
  }
  const std::size_t count =
      std::min<std::size_t>(state.deps.sequences_per_step, all.size() - state.evaluated);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(state.evaluated);
  TrainJob job;
  job.score_only = true;
  job.minibatches.push_back({{first, first + static_cast<std::ptrdiff_t>(count)}, {}});
  self->request(state.deps.device, state.deps.train_deadline, atom::train_v, std::move(job))
      .then(
          [self, count](const TrainOutcome& outcome) {
            self->state.evaluated += count;
            self->state.score.logprob_sum += outcome.score.logprob_sum;
            self->state.score.num_targets += outcome.score.num_targets;
            evaluate(self);
          },
          or_fail(self, "evaluating"));
}

// Begins the evaluation, if one is due at this step. Returns whether one is.
bool evaluate_if_due(Self self) {
  auto& state = self->state;
  const std::uint64_t every = state.deps.eval_every;
  const std::uint64_t step = step_of(state);
  if (every == 0 || step % every != 0 || state.evaluated_step == step || state.end.has_value() ||
      state.deps.eval_sequences == nullptr) {
    return false;
  }
  state.training = true;
  state.evaluated = 0;
  state.score = {};
  evaluate(self);
  return true;
}

void after_step(Self self) {
  if (!evaluate_if_due(self)) {
    after_evaluation(self);
  }
}

void after_evaluation(Self self) {
  auto& state = self->state;
  const std::uint64_t every = state.deps.commit_every;
  if (every != 0 && step_of(state) % every == 0 && step_of(state) < state.deps.total_steps) {
    begin_commit(self);
  } else {
    next_step(self);
  }
}

void record(Self self, const TrainOutcome& outcome, const Batch& batch) {
  auto& state = self->state;
  StepRecord record{"train", step_of(state), {}, {}};
  const engines::UpdateReport& update = outcome.updates.front();
  for (const auto& [name, value] : update.sums) {
    record.metrics[name] = value;
  }
  double tokens = 0.0;
  for (const engines::TrainSequence& sequence : batch) {
    tokens += static_cast<double>(sequence.ids.size());
  }
  record.metrics["gradient_norm"] = update.gradient_norm;
  record.metrics["learning_rate"] = update.learning_rate;
  record.metrics["sequences"] = static_cast<double>(batch.size());
  record.metrics["batch_tokens"] = tokens;
  record.metrics["train_seconds"] =
      std::chrono::duration<double>(TimePoint{self->clock().now()} - state.started_at).count();
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { after_step(self); }, or_fail(self, "recording a step"));
}

void train(Self self, Batch batch) {
  auto& state = self->state;
  state.training = true;
  state.started_at = self->clock().now();
  const PolicyVersion now = state.weights.version;
  TrainJob job;
  job.publish_as = {now.line, now.incarnation, now.step + 1};
  job.minibatches.push_back({batch, {}});
  self->request(state.deps.device, state.deps.train_deadline, atom::train_v, std::move(job))
      .then(
          [self, batch = std::move(batch)](TrainOutcome& outcome) {
            self->state.weights = std::move(outcome.snapshot);
            record(self, outcome, batch);
          },
          or_fail(self, "training"));
  read_ahead(self, now.step + 1);
}

// Trains on the next batch once it has been read, or ends the run.
void next_step(Self self) {
  auto& state = self->state;
  state.training = false;
  if (!state.end.has_value() && step_of(state) >= state.deps.total_steps) {
    state.end = RunEnd::kSteps;
  }
  if (!state.end.has_value() && state.ready.has_value() &&
      state.ready->size() < state.deps.sequences_per_step) {
    state.end = RunEnd::kData;  // too few sequences for a batch
  }
  if (state.end.has_value()) {
    begin_commit(self);
  } else if (state.ready.has_value()) {
    Batch batch = std::move(*state.ready);
    state.ready.reset();
    train(self, std::move(batch));
  } else {
    read_ahead(self, step_of(state));
  }
}

void on_read(Self self) {
  auto& state = self->state;
  const auto reading = std::exchange(state.reading, nullptr);
  if (state.end.has_value()) {
    return;  // the run is ending: drop the batch
  }
  if (!reading->batch.ok()) {
    fail(self, reading->batch.status());
    return;
  }
  state.ready = std::move(reading->batch).value();
  if (!state.training) {
    next_step(self);
  }
}

// -- commits --------------------------------------------------------------------------------------

void finish(Self self) {
  auto& state = self->state;
  const bool kept = state.best.has_value() && state.deps.best_options.keep;
  self->send(state.deps.owner, atom::finish_v,
             RunSummary{*state.end, step_of(state), kept ? state.best->weights : state.weights,
                        state.end_reason});
  self->quit();
}

void write_commit(Self self, std::shared_ptr<PendingCommit> work) {
  auto& state = self->state;
  state.committed_step = step_of(state);
  state.committed_evaluation = work->commit.evaluated_step;
  state.writing = std::move(work);
  state.deps.commit_port->run(
      [work = state.writing, store = state.deps.commits] {
        work->status = store->save(work->commit);
        work->commit = {};  // releases the captured weights here, not in a message handler
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
  if (!state.end.has_value()) {
    next_step(self);
  }
}

void begin_commit(Self self) {
  auto& state = self->state;
  state.training = true;
  if (state.writing != nullptr) {
    state.commit_waits = true;
    return;
  }
  if (state.end.has_value() && state.committed_step == step_of(state) &&
      state.committed_evaluation == state.evaluated_step) {
    finish(self);
    return;
  }
  auto work = std::make_shared<PendingCommit>();
  work->commit.weights = state.weights;
  work->commit.best = state.best;
  work->commit.evaluated_step = state.evaluated_step;
  work->commit.data_position = step_of(state) * state.deps.sequences_per_step;
  self->request(state.deps.device, kReplyDeadline, atom::capture_v)
      .then(
          [self, work](OptimizerState& optimizer) {
            work->commit.optimizer = std::move(optimizer.tensors);
            self->request(self->state.deps.recorder, kReplyDeadline, atom::capture_v)
                .then(
                    [self, work](const RecordMarks& marks) {
                      work->commit.records = marks;
                      write_commit(self, work);
                    },
                    or_fail(self, "committing: record files"));
          },
          or_fail(self, "committing: optimizer"));
}

void on_written(Self self) {
  auto& state = self->state;
  const Status status = std::exchange(state.writing, nullptr)->status;
  if (!status.ok()) {
    fail(self, status.with_context("commit of step " + std::to_string(state.committed_step)));
    return;
  }
  if (std::exchange(state.commit_waits, false) ||
      (state.end.has_value() && state.committed_step == step_of(state))) {
    begin_commit(self);
  }
}

SupervisedTrainerActor::behavior_type supervised_trainer(Self self, SupervisedDeps deps) {
  auto& state = self->state;
  state.weights = deps.weights;
  state.committed_step = deps.weights.version.step;
  state.evaluated_step = state.committed_evaluation = deps.evaluated_step;
  state.best = std::move(deps.best);
  if (deps.best_options.keep && state.best.has_value() && state.best->weights.base_digest.empty()) {
    state.best.reset();  // from a run that did not keep weights: look for the best from here on
  }
  state.deps = std::move(deps);
  return {
      [self](atom::start) {
        check_plateau(self);           // the commit may have been made at a plateau
        if (!evaluate_if_due(self)) {  // due if a stop prevented it before the commit
          next_step(self);
        }
      },
      [self](atom::stop) {
        self->state.end = self->state.end.value_or(RunEnd::kStopped);
        if (!self->state.training) {
          next_step(self);
        }
      },
      [self](atom::load) { on_read(self); },
      [self](atom::worked) { on_written(self); },
  };
}

}  // namespace

SupervisedTrainerActor spawn_supervised_trainer(caf::actor_system& system, SupervisedDeps deps) {
  return system.spawn(supervised_trainer, std::move(deps));
}

}  // namespace tidemill::actors
