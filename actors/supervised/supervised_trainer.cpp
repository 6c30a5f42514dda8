// SPDX-License-Identifier: Apache-2.0
// The supervised trainer. `RunPhases` decides what it does next; `handle` passes it what happened
// and takes the actions. One step is a chain: fetch -> train -> record. The next batch is read
// while the current one is trained on. Step k reads from draw k * sequences_per_step on, so a
// resumed run reads exactly the data that comes next.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/supervised/spawn.hpp"
#include "actors/trainer/commit_chain.hpp"
#include "actors/trainer/run_phases.hpp"
#include "actors/work/release_at.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kReplyDeadline = std::chrono::minutes(2);

using Batch = std::vector<engines::TrainSequence>;

// Shared with the work at the port.
struct PendingRead {
  std::shared_ptr<SequenceReader> reader;
  Result<Batch> batch = Batch{};
};

struct SupervisedState {
  static inline const char* name = "supervised_trainer";
  SupervisedState() = default;  // not an aggregate: CAF would build it from `self`

  SupervisedDeps deps;
  RunPhases phases;
  engines::Snapshot weights;             // of the last step
  std::shared_ptr<PendingRead> reading;  // at the port
  std::optional<Batch> ready;            // read, but not yet trained on
  TimePoint started_at;
  CommitChain commits;
  std::size_t evaluated = 0;  // sequences scored in this evaluation
  TargetScore score;          // of those sequences
};

using Self = SupervisedTrainerActor::stateful_pointer<SupervisedState>;

void handle(Self self, RunEvent event);

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

void record_evaluation(Self self) {
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
    // The weights that were the best so far may have no other owner.
    std::optional<BestSoFar> before = state.phases.best();
    state.phases.take_evaluation(loss, state.weights);
    release_at(*state.deps.read_port, std::move(before));
    record.metrics["eval_best"] = state.phases.best()->value;
    record.metrics["eval_best_step"] = static_cast<double>(state.phases.best()->step);
  }
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { handle(self, RunEvent::kEvaluationRecorded); },
            or_fail(self, "recording an evaluation"));
}

// Scores the next held-out sequences, as many as a step has. Records the evaluation after the last.
void score_next(Self self) {
  auto& state = self->state;
  const Batch& all = *state.deps.eval_sequences;
  if (state.phases.stop_requested()) {
    handle(self, RunEvent::kEvaluationAbandoned);
    return;
  }
  if (state.evaluated == all.size()) {
    record_evaluation(self);
    return;
  }
  const std::size_t count =
      std::min<std::size_t>(state.deps.sequences_per_step, all.size() - state.evaluated);
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(state.evaluated);
  TrainRequest job;
  job.score_only = true;
  job.minibatches.push_back({{first, first + static_cast<std::ptrdiff_t>(count)}, {}});
  self->request(state.deps.training, state.deps.train_deadline, atom::train_v, std::move(job))
      .then(
          [self, count](const TrainOutcome& outcome) {
            self->state.evaluated += count;
            self->state.score.logprob_sum += outcome.score.logprob_sum;
            self->state.score.num_targets += outcome.score.num_targets;
            score_next(self);
          },
          or_fail(self, "evaluating"));
}

void evaluate(Self self) {
  self->state.evaluated = 0;
  self->state.score = {};
  score_next(self);
}

// -- steps ----------------------------------------------------------------------------------------

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
      .then([self](const RecordMarks&) { handle(self, RunEvent::kStepRecorded); },
            or_fail(self, "recording a step"));
}

void train(Self self) {
  auto& state = self->state;
  Batch batch = *std::exchange(state.ready, std::nullopt);
  state.started_at = self->clock().now();
  const PolicyVersion now = state.weights.version;
  TrainRequest job;
  job.publish_as = {now.line, now.incarnation, now.step + 1};
  job.minibatches.push_back({batch, {}});
  self->request(state.deps.training, state.deps.train_deadline, atom::train_v, std::move(job))
      .then(
          [self, batch = std::move(batch)](TrainOutcome& outcome) {
            engines::Snapshot before =
                std::exchange(self->state.weights, std::move(outcome.snapshot));
            release_at(*self->state.deps.read_port, std::move(before));
            record(self, outcome, batch);
          },
          or_fail(self, "training"));
  read_ahead(self, now.step + 1);
}

// Reads the next batch, unless it has been read ahead.
void fetch(Self self) {
  auto& state = self->state;
  if (!state.ready.has_value()) {
    read_ahead(self, step_of(state));
  } else if (state.ready->size() < state.deps.sequences_per_step) {
    handle(self, RunEvent::kDataEnded);  // too few sequences for a batch
  } else {
    handle(self, RunEvent::kBatch);
  }
}

void on_read(Self self) {
  auto& state = self->state;
  const auto reading = std::exchange(state.reading, nullptr);
  if (state.phases.end().has_value()) {
    return;  // the run is ending: drop the batch
  }
  if (!reading->batch.ok()) {
    fail(self, reading->batch.status());
    return;
  }
  state.ready = std::move(reading->batch).value();
  if (state.phases.phase() == Phase::kFetching) {
    fetch(self);
  }
}

// -- commits --------------------------------------------------------------------------------------

void capture(Self self) {
  auto& state = self->state;
  RunCommit commit;
  commit.weights = state.weights;
  commit.best = state.phases.best();
  commit.data_position = step_of(state) * state.deps.sequences_per_step;
  state.commits.capture(self, std::move(commit), [self] { handle(self, RunEvent::kCaptured); });
}

void on_written(Self self) {
  auto& state = self->state;
  const Status written = state.commits.take_written(state.phases.committed_step());
  if (!written.ok()) {
    fail(self, written);
    return;
  }
  handle(self, RunEvent::kCommitWritten);
}

// -- what happened, and what to do ----------------------------------------------------------------

void finish(Self self) {
  auto& state = self->state;
  self->send(state.deps.listener, atom::finish_v, state.phases.summary(state.weights));
  self->quit();
}

void handle(Self self, RunEvent event) {
  auto& state = self->state;
  if (event == RunEvent::kStepRecorded && state.commits.is_overdue(self->clock().now())) {
    state.phases.set_commit_overdue();
  }
  for (const RunAction action : state.phases.on(event)) {
    switch (action) {
      case RunAction::kFetch: fetch(self); break;
      case RunAction::kTrain: train(self); break;
      case RunAction::kEvaluate: evaluate(self); break;
      case RunAction::kCapture: capture(self); break;
      case RunAction::kWrite: state.commits.write(self, state.phases.evaluated_step()); break;
      case RunAction::kFinish: finish(self); break;
    }
  }
}

RunPhaseOptions phase_options(const SupervisedDeps& deps) {
  RunPhaseOptions options;
  options.kind = RunKind::kSupervised;
  options.total_steps = deps.total_steps;
  options.commit_every = deps.commit_every;
  options.eval_every = deps.eval_sequences == nullptr ? 0 : deps.eval_every;
  options.best = deps.best_options;
  return options;
}

SupervisedTrainerActor::behavior_type supervised_trainer(Self self, SupervisedDeps deps) {
  auto& state = self->state;
  state.weights = std::move(deps.weights);
  state.phases = RunPhases(phase_options(deps),
                           {state.weights.version.step, deps.evaluated_step, std::move(deps.best)});
  state.commits = CommitChain({{}, deps.training, deps.recorder, deps.commits, deps.commit_port},
                              deps.commit_interval, self->clock().now());
  state.deps = std::move(deps);
  return {
      [self](atom::start) { handle(self, RunEvent::kStart); },
      [self](atom::stop) { handle(self, RunEvent::kStop); },
      [self](atom::load) { on_read(self); },
      [self](atom::worked) { on_written(self); },
  };
}

}  // namespace

SupervisedTrainerActor spawn_supervised_trainer(caf::actor_system& system, SupervisedDeps deps) {
  return system.spawn(supervised_trainer, std::move(deps));
}

}  // namespace tidemill::actors
