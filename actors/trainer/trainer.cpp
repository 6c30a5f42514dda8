// SPDX-License-Identifier: Apache-2.0
// The trainer. One step is a chain of requests. The reply to each request continues in the function
// that is named next:
//
//   fetch -> train -> acknowledge -> publish -> observe -> record -> (evaluate) -> (commit)
//     -> fetch
//
// No version is published while a batch is leased: the batch is acknowledged first.
//
// A commit captures the stream, the optimizer and the record marks before the next step begins. It
// is written during the next step, and the next commit waits until it has been written.
//
// An evaluation runs during the following steps. Only a commit waits for it: a run that is restored
// from the commit does not evaluate that step again, so the evaluation must be recorded first. If
// the trainer looks for the best weights, the next step waits as well, so that an evaluation is of
// one version. A run that is asked to stop neither waits for an evaluation nor begins one. The
// resumed run makes up for it.
#include <deque>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/stream/stream_image.hpp"
#include "actors/trainer/batch.hpp"
#include "actors/trainer/spawn.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kReplyDeadline = std::chrono::minutes(2);
constexpr Duration kEvalDeadline = std::chrono::hours(4);
constexpr const char* kConsumer = "trainer";

// A commit on its way to the store; shared with the port.
struct PendingCommit {
  RunCommit commit;
  StreamCapture rows;  // encoded at the port
  Status status;
};

struct TrainerState {
  static inline const char* name = "trainer";
  TrainerState() = default;  // not an aggregate: CAF would build it from `self`

  TrainerDeps deps;
  PolicyVersion now;                     // of the weights being trained
  std::deque<engines::Snapshot> recent;  // that may have sampled rows, oldest first
  std::vector<TrainRow> batch;
  std::map<std::string, double> metrics;
  std::vector<double> idle_seconds;  // of the stream's tasks, at the last step
  Duration lease_time{0};
  TimePoint requested_at;  // when the batch was requested
  TimePoint received_at;   // when it arrived
  RecordMarks marks;
  std::uint64_t committed_step = 0;
  std::shared_ptr<PendingCommit> writing;  // at the port
  std::shared_ptr<PendingCommit> next;     // being captured
  std::optional<RunEnd> end;               // if set: commit and end after this step
  std::string end_reason;                  // for the summary
  bool ending = false;                     // the last step is done
  bool commit_waits = false;               // a commit waits for `writing` or the evaluation
  bool evaluating = false;                 // until the report is recorded
  bool step_waits = false;                 // the next step waits for the evaluation
  std::optional<BestSoFar> best;
  std::uint64_t evaluated_step = 0;        // of the last recorded evaluation
  std::uint64_t committed_evaluation = 0;  // `evaluated_step` of the last commit
  bool stop_requested = false;
  std::optional<StreamStatus> counts_at_step;  // the stream's counts when this step began
};

using Self = TrainerActor::stateful_pointer<TrainerState>;

void fetch(Self self);
void after_step(Self self);
void begin_commit(Self self);
void after_evaluation(Self self);

void fail(Self self, const Status& status) {
  self->quit(to_caf_error(status));
}

// Returns an error handler that ends the trainer with an error that says what it was doing.
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

// Continues what waited for the evaluation, which has been recorded or abandoned.
void end_evaluation(Self self) {
  auto& state = self->state;
  state.evaluating = false;
  if (std::exchange(state.step_waits, false)) {
    after_evaluation(self);
  } else if (state.writing == nullptr && std::exchange(state.commit_waits, false)) {
    begin_commit(self);
  }
}

void check_plateau(Self self) {
  auto& state = self->state;
  const auto why = plateau(state.deps.options.best, state.best);
  if (why.has_value() && !state.end.has_value()) {
    state.end = RunEnd::kPlateau;
    state.end_reason = *why;
  }
}

// Updates the best evaluation, if the next step waits for this one. A report without any score is
// ignored.
void update_best(Self self, const EvalReport& report) {
  auto& state = self->state;
  if (!state.step_waits || report.num_failed == report.num_prompts * report.num_samples) {
    return;
  }
  take_evaluation(state.deps.options.best, report.mean_at_k, state.recent.back(), state.best);
  check_plateau(self);
}

void evaluate(Self self) {
  auto& state = self->state;
  if (state.evaluating) {
    return;  // the previous evaluation is still running: skip this one
  }
  state.evaluating = true;
  const std::uint64_t step = state.now.step;
  self->request(state.deps.evaluator, kEvalDeadline, atom::start_v, step)
      .then(
          [self, step](const EvalReport& report) {
            if (self->state.stop_requested) {
              end_evaluation(self);  // the last commit may lack it, so it is not recorded
              return;
            }
            update_best(self, report);
            StepRecord record{"eval", report.step, {}, {}};
            record.metrics["eval_mean_at_k"] = report.mean_at_k;
            record.metrics["eval_pass_at_k"] = report.pass_at_k;
            record.metrics["eval_prompts"] = static_cast<double>(report.num_prompts);
            record.metrics["eval_samples"] = static_cast<double>(report.num_samples);
            const auto& parts = self->state.deps.reward_parts;
            for (std::size_t i = 0; i < std::min(parts.size(), report.part_means.size()); ++i) {
              record.metrics["eval_" + parts[i] + "_mean"] = report.part_means[i];
            }
            record.metrics["eval_failed"] = static_cast<double>(report.num_failed);
            if (const auto& best = self->state.best; best.has_value()) {
              record.metrics["eval_best"] = best->value;
              record.metrics["eval_best_step"] = static_cast<double>(best->step);
            }
            self->request(self->state.deps.recorder, kReplyDeadline, atom::record_v,
                          std::move(record))
                .then(
                    [self, step](const RecordMarks&) {
                      self->state.evaluated_step = step;
                      end_evaluation(self);
                    },
                    or_fail(self, "recording an evaluation"));
          },
          [self](const caf::error& error) {
            if (self->state.stop_requested) {
              end_evaluation(self);
              return;
            }
            fail(self, from_caf_error(error).with_context("evaluating"));
          });
}

void record(Self self) {
  auto& state = self->state;
  StepRecord record{"train", state.now.step, std::move(state.metrics), {}};
  for (const TrainRow& row : state.batch) {
    record.samples.push_back(
        sample_record(row, state.deps.decode(row.response_ids), state.deps.reward_parts));
  }
  state.batch.clear();
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { after_step(self); }, or_fail(self, "recording a step"));
}

// Adds the stream's row counts, and for how long the stages were idle since the last step.
void observe(Self self) {
  self->request(self->state.deps.stream, kReplyDeadline, atom::status_v)
      .then(
          [self](StreamStatus& status) {
            auto& state = self->state;
            add_stream_metrics(status, state.idle_seconds, state.metrics);
            state.idle_seconds = std::move(status.idle_seconds);
            record(self);
          },
          or_fail(self, "asking the stream for its counts"));
}

void publish(Self self, engines::Snapshot snapshot) {
  auto& state = self->state;
  state.now = snapshot.version;
  state.counts_at_step.reset();
  state.recent.push_back(snapshot);
  while (state.recent.size() > state.deps.options.max_staleness + 2) {
    state.recent.pop_front();
  }
  self->send(state.deps.stream, atom::publish_v, state.now.step);
  self->request(state.deps.keeper, kReplyDeadline, atom::publish_v, std::move(snapshot))
      .then([self](const PolicyVersion&) { observe(self); }, or_fail(self, "publishing weights"));
}

void acknowledge(Self self, TrainOutcome& outcome) {
  auto& state = self->state;
  state.metrics = batch_metrics(state.batch, outcome, state.now.step);
  add_part_metrics(state.batch, state.deps.reward_parts, state.metrics);
  state.metrics["wait_seconds"] = seconds(state.received_at - state.requested_at);
  state.metrics["train_seconds"] = seconds(TimePoint{self->clock().now()} - state.received_at);
  AckRequest ack{task_id(SampleTask::kTrain), kConsumer, {}};
  for (const TrainRow& row : state.batch) {
    ack.rows.push_back({row.lease, {}, {}});
  }
  self->request(state.deps.stream, kReplyDeadline, atom::ack_v, std::move(ack))
      .then(
          [self,
           snapshot = std::move(outcome.snapshot)](const storage::Settlement& settlement) mutable {
            if (!settlement.refused.empty()) {
              // The batch had rows whose leases were lost. Only the last commit is free of them.
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
  state.received_at = self->clock().now();
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

// Ends the run if too many groups have left untrained since this step began.
void check_progress(Self self, const StreamStatus& counts) {
  auto& state = self->state;
  const std::uint64_t filtered = counts.filtered_groups - state.counts_at_step->filtered_groups;
  const std::uint64_t lost = counts.lost_groups - state.counts_at_step->lost_groups;
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
                                        " of them lost; last reason: " + counts.last_lost_reason});
    return;
  }
  state.end = RunEnd::kNoSignal;
  state.end_reason = untrained + ", " + std::to_string(filtered) +
                     " of them filtered for lack of a signal; a higher rollout.temperature or "
                     "other data may give rewards that differ within a group";
  fetch(self);
}

void request_progress(Self self) {
  self->request(self->state.deps.stream, kReplyDeadline, atom::status_v)
      .then([self](const StreamStatus& counts) { check_progress(self, counts); },
            or_fail(self, "asking for the stream's counts"));
}

void on_lease(Self self, const LeaseReply& reply) {
  auto& state = self->state;
  if (reply.rows.empty() && !reply.whole) {
    if (reply.ended) {
      state.end = state.end.value_or(RunEnd::kData);
      fetch(self);
    } else {
      request_progress(self);
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
  if (!state.counts_at_step.has_value()) {
    self->request(state.deps.stream, kReplyDeadline, atom::status_v)
        .then(
            [self](const StreamStatus& counts) {
              self->state.counts_at_step = counts;
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
  self->request(state.deps.stream, options.batch_wait + kReplyDeadline, atom::lease_v,
                std::move(request))
      .then([self](const LeaseReply& reply) { on_lease(self, reply); },
            or_fail(self, "leasing a batch"));
}

// Begins the evaluation, if one is due at this step. Returns whether the next step waits for it.
bool evaluate_if_due(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  const std::uint64_t step = state.now.step;
  const bool due = options.eval_every != 0 && step % options.eval_every == 0;
  if (!due || state.evaluated_step == step || state.end.has_value() || !state.deps.evaluator) {
    return false;
  }
  evaluate(self);
  state.step_waits = options.best.enabled();
  return state.step_waits;
}

void after_step(Self self) {
  if (!evaluate_if_due(self)) {
    after_evaluation(self);
  }
}

// Evaluates the committed step if a stop prevented that, and begins the first step.
void start_first_step(Self self) {
  if (!evaluate_if_due(self)) {
    fetch(self);
  }
}

void after_evaluation(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  const std::uint64_t step = state.now.step;
  state.requested_at = self->clock().now();
  const bool due = options.commit_every != 0 && step % options.commit_every == 0;
  if (due && step < options.total_steps) {
    begin_commit(self);  // `fetch` commits the last step
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
        work->commit.stream = encode_stream_image(std::exchange(work->rows, {}));
        work->status = store->save(work->commit);
        work->commit = {};  // releases the captured weights here, not in a message handler
        return Duration{0};
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v));
  if (!state.ending) {
    fetch(self);
  }
}

void capture_records(Self self) {
  self->request(self->state.deps.recorder, kReplyDeadline, atom::capture_v)
      .then(
          [self](const RecordMarks& marks) {
            self->state.next->commit.records = marks;
            write_commit(self);
          },
          or_fail(self, "committing: record files"));
}

void capture_optimizer(Self self) {
  self->request(self->state.deps.device, kReplyDeadline, atom::capture_v)
      .then(
          [self](OptimizerState& state) {
            self->state.next->commit.optimizer = std::move(state.tensors);
            capture_records(self);
          },
          or_fail(self, "committing: optimizer"));
}

void capture_stream(Self self) {
  self->request(self->state.deps.stream, kReplyDeadline, atom::capture_v)
      .then(
          [self](StreamCapture& rows) {
            self->state.next->rows = std::move(rows);
            capture_optimizer(self);
          },
          or_fail(self, "committing: stream"));
}

void begin_commit(Self self) {
  auto& state = self->state;
  if (state.writing != nullptr || (state.evaluating && !state.stop_requested)) {
    state.commit_waits = true;
    return;
  }
  if (state.ending && state.committed_step == state.now.step &&
      state.committed_evaluation == state.evaluated_step) {
    finish(self);
    return;
  }
  state.next = std::make_shared<PendingCommit>();
  state.next->commit.weights = state.recent.back();
  state.next->commit.best = state.best;
  if (!state.deps.options.fixed_batches) {
    capture_stream(self);
    return;
  }
  // A commit holds one set of weights, so every row that older versions must generate has to be
  // finished. That may take as long as any response takes, hence the long deadline.
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
  LeaseUpdate rows{.task = task_id(SampleTask::kTrain), .consumer = kConsumer};
  for (const TrainRow& row : state.batch) {
    rows.rows.push_back(row.lease);
  }
  if (!rows.rows.empty()) {
    self->request(state.deps.stream, kReplyDeadline, atom::renew_v, std::move(rows))
        .then([](const storage::Settlement&) {}, [](const caf::error&) {});
  }
  const Duration third = state.lease_time / 3;
  self->delayed_send(self, std::max<Duration>(third, std::chrono::milliseconds(500)),
                     atom::renew_v);
}

void stop(Self self) {
  auto& state = self->state;
  state.stop_requested = true;
  state.end = state.end.value_or(RunEnd::kStopped);
  // A step or a commit no longer waits for an evaluation.
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
    state.best.reset();  // from a run that did not keep weights: look for the best from here on
  }
  state.deps = std::move(deps);
  return {
      [self](atom::start) {
        self->state.requested_at = self->clock().now();
        self->send(self, atom::renew_v);
        check_plateau(self);  // the commit may have been made at a plateau
        start_first_step(self);
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
