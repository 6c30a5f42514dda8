// SPDX-License-Identifier: Apache-2.0
// The trainer. One step is a chain of requests, each continuing in the next function below:
//
//   fetch -> train -> acknowledge -> publish -> observe -> record -> (evaluate) -> (commit)
//     -> fetch
//
// No version is published while a batch is leased: the acknowledgement comes first. A commit
// captures stream, optimizer and record marks before the next step begins; only its writing goes on
// beside it, and the next commit waits for that. Evaluation goes on beside the steps; only a commit
// waits for it, so that what a run restored from there would not evaluate again is on record. Where
// the best weights are looked for, the next step waits too: an evaluation is then of one version. A
// run that is asked to stop waits for none, and begins none: the resumed run makes up for it.
#include <deque>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/trainer/batch.hpp"
#include "actors/trainer/spawn.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kAnswerDeadline = std::chrono::minutes(2);
constexpr Duration kEvalDeadline = std::chrono::hours(4);
constexpr const char* kConsumer = "trainer";

// A commit on its way to the store; shared with the port.
struct CommitInWork {
  RunCommit commit;
  Status status;
};

struct TrainerState {
  static inline const char* name = "trainer";
  TrainerState() = default;  // not an aggregate: CAF would build it from `self`

  TrainerDeps deps;
  PolicyVersion now;                     // of the weights in the trainer
  std::deque<engines::Snapshot> recent;  // as far back as rows may be stale, oldest first
  std::vector<TrainRow> batch;
  std::map<std::string, double> figures;
  std::vector<double> idle_seconds;  // of the stream's tasks, at the last step
  Duration lease_time{0};
  TimePoint asked;    // when the batch was asked for
  TimePoint fetched;  // when it came
  RecordMarks marks;
  std::uint64_t committed_step = 0;
  std::shared_ptr<CommitInWork> writing;  // handed to the port
  std::shared_ptr<CommitInWork> next;     // being captured
  std::optional<RunEnd> end;              // set: after the step in work, commit and finish
  std::string end_reason;                 // for the summary
  bool ending = false;                    // that step is done
  bool commit_waits = false;              // for `writing` or the evaluation
  bool evaluating = false;                // until its report is recorded
  bool step_waits = false;                // for the evaluation of its weights
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;        // of the last evaluation on record
  std::uint64_t committed_evaluation = 0;  // what the last commit says of it
  bool stop_asked = false;
  std::optional<StreamStatus> at_step;  // the stream's counts when the next step was begun
};

using Self = TrainerActor::stateful_pointer<TrainerState>;

void fetch(Self self);
void after_step(Self self);
void begin_commit(Self self);
void after_evaluation(Self self);

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

// An error lambda that ends the trainer, saying what it was doing.
auto or_fail(Self self, const char* doing) {
  return [self, doing](const caf::error& error) {
    fail(self, from_caf_error(error).with_context(doing));
  };
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void finish(Self self) {
  auto& state = self->state;
  RunSummary summary;
  summary.end = *state.end;
  summary.steps = state.now.step;
  const bool kept = state.best.has_value() && state.deps.options.best.keep;
  summary.weights = kept ? state.best->weights : state.recent.back();
  summary.reason = state.end_reason;
  self->send(state.deps.owner, atom::finish_v, std::move(summary));
  self->quit();
}

// The evaluation in work is recorded, or left out.
void end_evaluation(Self self) {
  auto& state = self->state;
  state.evaluating = false;
  if (std::exchange(state.step_waits, false)) {
    after_evaluation(self);
  } else if (state.writing == nullptr && std::exchange(state.commit_waits, false)) {
    begin_commit(self);
  }
}

void look_for_plateau(Self self) {
  auto& state = self->state;
  const auto why = plateau(state.deps.options.best, state.best);
  if (why.has_value() && !state.end.has_value()) {
    state.end = RunEnd::kPlateau;
    state.end_reason = *why;
  }
}

// Judges the weights that the trainer stands still for. Where nothing could be scored there is
// nothing to judge.
void judge_weights(Self self, const EvalReport& report) {
  auto& state = self->state;
  if (!state.step_waits || report.num_failed == report.num_prompts * report.num_samples) {
    return;
  }
  take_evaluation(state.deps.options.best, report.mean_at_k, state.recent.back(), state.best);
  look_for_plateau(self);
}

void evaluate(Self self) {
  auto& state = self->state;
  if (state.evaluating) {
    return;  // the last one is still running: this one is left out
  }
  state.evaluating = true;
  const std::uint64_t step = state.now.step;
  self->request(state.deps.evaluator, kEvalDeadline, atom::start_v, step)
      .then(
          [self, step](const EvalReport& report) {
            if (self->state.stop_asked) {
              end_evaluation(self);  // the commit may be without it: no record either
              return;
            }
            judge_weights(self, report);
            StepRecord record{"eval", report.step, {}, {}};
            record.figures["eval_mean_at_k"] = report.mean_at_k;
            record.figures["eval_pass_at_k"] = report.pass_at_k;
            record.figures["eval_prompts"] = static_cast<double>(report.num_prompts);
            record.figures["eval_samples"] = static_cast<double>(report.num_samples);
            const auto& parts = self->state.deps.reward_parts;
            for (std::size_t i = 0; i < std::min(parts.size(), report.part_means.size()); ++i) {
              record.figures["eval_" + parts[i] + "_mean"] = report.part_means[i];
            }
            record.figures["eval_failed"] = static_cast<double>(report.num_failed);
            if (const auto& best = self->state.best; best.has_value()) {
              record.figures["eval_best"] = best->value;
              record.figures["eval_best_step"] = static_cast<double>(best->step);
            }
            self->request(self->state.deps.recorder, kAnswerDeadline, atom::record_v,
                          std::move(record))
                .then(
                    [self, step](const RecordMarks&) {
                      self->state.evaluated_step = step;
                      end_evaluation(self);
                    },
                    or_fail(self, "recording an evaluation"));
          },
          [self](const caf::error& error) {
            if (self->state.stop_asked) {
              end_evaluation(self);
              return;
            }
            fail(self, from_caf_error(error).with_context("evaluating"));
          });
}

void record(Self self) {
  auto& state = self->state;
  StepRecord record{"train", state.now.step, std::move(state.figures), {}};
  for (const TrainRow& row : state.batch) {
    record.samples.push_back(
        sample_record(row, state.deps.decode(row.response_ids), state.deps.reward_parts));
  }
  state.batch.clear();
  self->request(state.deps.recorder, kAnswerDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { after_step(self); }, or_fail(self, "recording a step"));
}

// Adds what the stream counts: rows in all, and since the last step what the stages waited.
void observe(Self self) {
  self->request(self->state.deps.stream, kAnswerDeadline, atom::status_v)
      .then(
          [self](StreamStatus& status) {
            auto& state = self->state;
            add_stream_figures(status, state.idle_seconds, state.figures);
            state.idle_seconds = std::move(status.idle_seconds);
            record(self);
          },
          or_fail(self, "asking the stream for its counts"));
}

void publish(Self self, engines::Snapshot snapshot) {
  auto& state = self->state;
  state.now = snapshot.version;
  state.at_step.reset();
  state.recent.push_back(snapshot);
  while (state.recent.size() > state.deps.options.max_staleness + 2) {
    state.recent.pop_front();
  }
  self->send(state.deps.stream, atom::publish_v, state.now.step);
  self->request(state.deps.keeper, kAnswerDeadline, atom::publish_v, std::move(snapshot))
      .then([self](const PolicyVersion&) { observe(self); }, or_fail(self, "publishing weights"));
}

void acknowledge(Self self, TrainOutcome& outcome) {
  auto& state = self->state;
  state.figures = batch_figures(state.batch, outcome, state.now.step);
  add_part_figures(state.batch, state.deps.reward_parts, state.figures);
  state.figures["wait_seconds"] = seconds(state.fetched - state.asked);
  state.figures["train_seconds"] = seconds(TimePoint{self->clock().now()} - state.fetched);
  Completion completion{task_id(SampleTask::kTrain), kConsumer, {}};
  for (const TrainRow& row : state.batch) {
    completion.rows.push_back({row.lease, {}, {}});
  }
  self->request(state.deps.stream, kAnswerDeadline, atom::ack_v, std::move(completion))
      .then(
          [self,
           snapshot = std::move(outcome.snapshot)](const storage::Settlement& settlement) mutable {
            if (!settlement.refused.empty()) {
              // Trained on rows that were no longer ours: only the last commit is clean.
              fail(self, {Errc::kInternal, "the stream refused " +
                                               std::to_string(settlement.refused.size()) +
                                               " trained rows"});
              return;
            }
            publish(self, std::move(snapshot));
          },
          or_fail(self, "acknowledging a batch"));
}

void send_job(Self self, TrainJob job) {
  auto& state = self->state;
  self->request(state.deps.device, state.deps.options.train_deadline, atom::train_v, std::move(job))
      .then([self](TrainOutcome& outcome) { acknowledge(self, outcome); },
            or_fail(self, "training"));
}

void send_with_probe(Self self, TrainJob job) {
  auto& state = self->state;
  engines::RolloutRequest request = probe_request(state.batch, state.deps.options, state.recent);
  self->request(state.deps.device, state.deps.options.train_deadline, atom::generate_v, request)
      .then(
          [self, request, job = std::move(job)](const engines::RolloutResult& result) mutable {
            add_probe(request, result, self->state.recent, job);
            send_job(self, std::move(job));
          },
          or_fail(self, "generating a probe"));
}

void train(Self self) {
  auto& state = self->state;
  state.fetched = self->clock().now();
  for (const TrainRow& row : state.batch) {
    if (row.oldest_step + state.deps.options.max_staleness < state.now.step) {
      fail(self, {Errc::kStaleVersion, "row=" + std::to_string(row.lease.row.value) + " of step " +
                                           std::to_string(row.oldest_step) + " delivered at step " +
                                           std::to_string(state.now.step)});
      return;
    }
  }
  TrainJob job = make_train_job(state.batch, state.deps.options, state.now, state.recent);
  if (state.batch.empty() || has_comparison(job)) {
    send_job(self, std::move(job));
  } else {
    send_with_probe(self, std::move(job));
  }
}

// Ends a run that trains nothing any more: `counts` against those when the step was begun.
void judge_progress(Self self, const StreamStatus& counts) {
  auto& state = self->state;
  const std::uint64_t filtered = counts.filtered_groups - state.at_step->filtered_groups;
  const std::uint64_t lost = counts.lost_groups - state.at_step->lost_groups;
  const std::uint64_t limit =
      std::uint64_t{state.deps.options.max_untrained_batches} * state.deps.options.groups_per_step;
  if (filtered + lost < limit || state.end.has_value()) {
    fetch(self);
    return;
  }
  const std::string untrained = std::to_string(filtered + lost) +
                                " groups left untrained since step " +
                                std::to_string(state.now.step);
  if (lost > filtered) {
    fail(self, {Errc::kUnavailable, untrained + ", " + std::to_string(lost) +
                                        " of them lost; the last one: " + counts.last_loss});
    return;
  }
  state.end = RunEnd::kNoSignal;
  state.end_reason = untrained + ", " + std::to_string(filtered) +
                     " of them filtered for want of a signal; a higher rollout.temperature, or "
                     "other data, gives rewards that differ within a group";
  fetch(self);
}

void ask_progress(Self self) {
  self->request(self->state.deps.stream, kAnswerDeadline, atom::status_v)
      .then([self](const StreamStatus& counts) { judge_progress(self, counts); },
            or_fail(self, "asking for the stream's counts"));
}

void on_lease(Self self, const LeaseReply& reply) {
  auto& state = self->state;
  if (reply.rows.empty() && !reply.whole) {
    if (reply.ended) {
      state.end = state.end.value_or(RunEnd::kData);
      fetch(self);
    } else {
      ask_progress(self);
    }
    return;
  }
  state.lease_time = reply.lease_time;
  state.batch.clear();
  for (const storage::LeasedRow& leased : reply.rows) {
    auto row = read_train_row(leased);
    if (!row.ok()) {
      fail(self, row.status());
      return;
    }
    state.batch.push_back(std::move(row).value());
  }
  train(self);
}

void fetch(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  if (!state.end.has_value() && state.now.step >= options.total_steps) {
    state.end = RunEnd::kSteps;
  }
  if (state.end.has_value()) {
    state.ending = true;
    begin_commit(self);
    return;
  }
  if (!state.at_step.has_value()) {
    self->request(state.deps.stream, kAnswerDeadline, atom::status_v)
        .then(
            [self](const StreamStatus& counts) {
              self->state.at_step = counts;
              fetch(self);
            },
            or_fail(self, "asking for the stream's counts"));
    return;
  }
  LeaseRequest request;
  request.task = task_id(SampleTask::kTrain);
  request.consumer = kConsumer;
  request.max_units = options.groups_per_step;
  request.min_units = options.groups_per_step;
  request.wait = options.batch_wait;
  if (options.fixed_batches) {
    request.before_group = (state.now.step + 1) * options.groups_per_step;
  }
  self->request(state.deps.stream, options.batch_wait + kAnswerDeadline, atom::lease_v,
                std::move(request))
      .then([self](const LeaseReply& reply) { on_lease(self, reply); },
            or_fail(self, "leasing a batch"));
}

// Begins the evaluation that is due at this step, if there is one. Returns whether to wait for it.
bool evaluate_if_due(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  const std::uint64_t step = state.now.step;
  const bool due = options.eval_every != 0 && step % options.eval_every == 0;
  if (!due || state.evaluated_step == step || state.end.has_value() || !state.deps.evaluator) {
    return false;
  }
  evaluate(self);
  state.step_waits = options.best.watches();
  return state.step_waits;
}

void after_step(Self self) {
  if (!evaluate_if_due(self)) {
    after_evaluation(self);
  }
}

// Makes up for the evaluation that a stop kept from the commit.
void go_on(Self self) {
  if (!evaluate_if_due(self)) {
    fetch(self);
  }
}

void after_evaluation(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  const std::uint64_t step = state.now.step;
  state.asked = self->clock().now();
  const bool due = options.commit_every != 0 && step % options.commit_every == 0;
  if (due && step < options.total_steps) {
    begin_commit(self);  // the last step's commit is made by `fetch`
  } else {
    fetch(self);
  }
}

// -- commits --------------------------------------------------------------------------------------

void write_commit(Self self) {
  auto& state = self->state;
  state.committed_step = state.now.step;
  state.committed_evaluation = state.evaluated_step;
  state.next->commit.evaluated_step = state.evaluated_step;
  state.writing = std::exchange(state.next, nullptr);
  state.deps.commit_port->run(
      [work = state.writing, store = state.deps.commits] {
        work->status = store->save(work->commit);
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
  if (!state.ending) {
    fetch(self);
  }
}

void capture_records(Self self) {
  self->request(self->state.deps.recorder, kAnswerDeadline, atom::capture_v)
      .then(
          [self](const RecordMarks& marks) {
            self->state.next->commit.records = marks;
            write_commit(self);
          },
          or_fail(self, "committing: record files"));
}

void capture_optimizer(Self self) {
  self->request(self->state.deps.device, kAnswerDeadline, atom::capture_v)
      .then(
          [self](OptimizerState& state) {
            self->state.next->commit.optimizer = std::move(state.tensors);
            capture_records(self);
          },
          or_fail(self, "committing: optimizer"));
}

void capture_stream(Self self) {
  self->request(self->state.deps.stream, kAnswerDeadline, atom::capture_v)
      .then(
          [self](StreamImage& image) {
            self->state.next->commit.stream = std::move(image);
            capture_optimizer(self);
          },
          or_fail(self, "committing: stream"));
}

void begin_commit(Self self) {
  auto& state = self->state;
  if (state.writing != nullptr || (state.evaluating && !state.stop_asked)) {
    state.commit_waits = true;
    return;
  }
  if (state.ending && state.committed_step == state.now.step &&
      state.committed_evaluation == state.evaluated_step) {
    finish(self);
    return;
  }
  state.next = std::make_shared<CommitInWork>();
  state.next->commit.weights = state.recent.back();
  state.next->commit.best = state.best;
  if (!state.deps.options.fixed_batches) {
    capture_stream(self);
    return;
  }
  // One weight set is enough only once every row of an older version is finished.
  // They may take as long as any response, so this is no short request.
  self->request(state.deps.keeper, state.deps.options.train_deadline, atom::waits_v, state.now.step)
      .then([self](const PolicyVersion&) { capture_stream(self); },
            or_fail(self, "committing: rows of older versions"));
}

void on_written(Self self) {
  auto& state = self->state;
  const Status status = std::exchange(state.writing, nullptr)->status;
  if (!status.ok()) {
    fail(self, status.with_context("commit of step " + std::to_string(state.committed_step)));
    return;
  }
  if (std::exchange(state.commit_waits, false) || state.ending) {
    begin_commit(self);
  }
}

void renew(Self self) {
  auto& state = self->state;
  Return rows{task_id(SampleTask::kTrain), kConsumer, {}, {}};
  for (const TrainRow& row : state.batch) {
    rows.rows.push_back(row.lease);
  }
  if (!rows.rows.empty()) {
    self->request(state.deps.stream, kAnswerDeadline, atom::renew_v, std::move(rows))
        .then([](const storage::Settlement&) {}, [](const caf::error&) {});
  }
  const Duration third = state.lease_time / 3;
  self->delayed_send(self, std::max<Duration>(third, std::chrono::milliseconds(500)),
                     atom::renew_v);
}

void stop(Self self) {
  auto& state = self->state;
  state.stop_asked = true;
  state.end = state.end.value_or(RunEnd::kStopped);
  // Who waits for an evaluation gives it up.
  if (std::exchange(state.step_waits, false)) {
    after_evaluation(self);
  } else if (state.writing == nullptr && std::exchange(state.commit_waits, false)) {
    begin_commit(self);
  }
}

TrainerActor::behavior_type trainer(Self self, TrainerDeps deps) {
  auto& state = self->state;
  state.now = deps.weights.version;
  state.committed_step = state.now.step;
  state.recent.push_back(deps.weights);
  state.evaluated_step = state.committed_evaluation = deps.evaluated_step;
  state.best = std::move(deps.best);
  if (deps.options.best.keep && state.best.has_value() && state.best->weights.base_digest.empty()) {
    state.best.reset();  // of a run that did not keep them: the best is looked for from here on
  }
  state.deps = std::move(deps);
  return {
      [self](atom::start) {
        self->state.asked = self->clock().now();
        self->send(self, atom::renew_v);
        look_for_plateau(self);  // the commit that it goes on from may stand at one
        go_on(self);
      },
      [self](atom::stop) { stop(self); },
      [self](atom::renew) { renew(self); },
      [self](atom::worked) { on_written(self); },
  };
}

}  // namespace

TrainerActor spawn_trainer(caf::actor_system& system, TrainerDeps deps) {
  return system.spawn(trainer, std::move(deps));
}

}  // namespace tidemill::actors
