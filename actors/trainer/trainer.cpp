// SPDX-License-Identifier: Apache-2.0
// The trainer. `RunPhases` decides what it does next; `handle` passes it what happened and takes
// the actions. One step is a chain of requests. The reply to each request continues in the function
// that is named next:
//
//   fetch -> train -> acknowledge -> publish -> observe -> record
//
// A commit is another chain, between two steps; see actors/trainer/commit_chain.hpp.
//
// No version is published while a batch is leased: the batch is acknowledged first.
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include <caf/all.hpp>

#include "actors/errors.hpp"
#include "actors/stream/sample_columns.hpp"
#include "actors/trainer/batch.hpp"
#include "actors/trainer/commit_chain.hpp"
#include "actors/trainer/run_phases.hpp"
#include "actors/trainer/spawn.hpp"
#include "actors/work/release_at.hpp"

namespace tidemill::actors {
namespace {

constexpr Duration kReplyDeadline = std::chrono::minutes(2);
constexpr Duration kEvalDeadline = std::chrono::hours(72);
constexpr const char* kConsumer = "trainer";
constexpr std::uint32_t kProbeAttempts = 3;

struct TrainerState {
  static inline const char* name = "trainer";
  TrainerState() = default;  // not an aggregate: CAF would build it from `self`

  TrainerDeps deps;
  RunPhases phases;
  PolicyVersion now;                     // of the weights being trained
  std::deque<engines::Snapshot> recent;  // that may have sampled rows, oldest first
  std::vector<TrainRow> batch;
  std::map<std::string, double> metrics;
  std::vector<double> idle_seconds;  // of the stream's tasks, at the last step
  Duration lease_time{0};
  TimePoint requested_at;  // when the batch was requested
  TimePoint received_at;   // when it arrived
  CommitChain commits;
  std::optional<StreamStatus> counts_at_step;  // the stream's counts when this step began
};

using Self = TrainerActor::stateful_pointer<TrainerState>;

void handle(Self self, RunEvent event, const std::string& reason = {});

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

// -- evaluations ----------------------------------------------------------------------------------

void record_evaluation(Self self, const EvalReport& report) {
  auto& state = self->state;
  const bool scored = report.num_failed < report.num_prompts * report.num_samples;
  if (state.deps.options.best.enabled() && scored) {
    // The weights that were the best so far may have no other owner.
    std::optional<BestSoFar> before = state.phases.best();
    state.phases.take_evaluation(report.mean_at_k, state.recent.back());
    release_at(*state.deps.io_port, std::move(before));
  }
  StepRecord record{"eval", report.step, {}, {}};
  record.metrics["eval_mean_at_k"] = report.mean_at_k;
  record.metrics["eval_pass_at_k"] = report.pass_at_k;
  record.metrics["eval_prompts"] = static_cast<double>(report.num_prompts);
  record.metrics["eval_samples"] = static_cast<double>(report.num_samples);
  const auto& parts = state.deps.reward_parts;
  for (std::size_t i = 0; i < std::min(parts.size(), report.part_means.size()); ++i) {
    record.metrics["eval_" + parts[i] + "_mean"] = report.part_means[i];
  }
  record.metrics["eval_failed"] = static_cast<double>(report.num_failed);
  if (const auto& best = state.phases.best(); best.has_value()) {
    record.metrics["eval_best"] = best->value;
    record.metrics["eval_best_step"] = static_cast<double>(best->step);
  }
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { handle(self, RunEvent::kEvaluationRecorded); },
            or_fail(self, "recording an evaluation"));
}

// After a stop the evaluator abandons the evaluation. A reply that was on its way is ignored: the
// last commit may lack the evaluation, so it is not recorded.
void evaluate(Self self) {
  auto& state = self->state;
  self->request(state.deps.evaluator, kEvalDeadline, atom::start_v, state.now.step)
      .then(
          [self](const EvalReport& report) {
            if (self->state.phases.stop_requested()) {
              handle(self, RunEvent::kEvaluationAbandoned);
            } else {
              record_evaluation(self, report);
            }
          },
          [self](const caf::error& error) {
            if (self->state.phases.stop_requested()) {
              handle(self, RunEvent::kEvaluationAbandoned);
            } else {
              fail(self, from_caf_error(error).with_context("evaluating"));
            }
          });
}

// -- steps ----------------------------------------------------------------------------------------

void record(Self self) {
  auto& state = self->state;
  StepRecord record{"train", state.now.step, std::move(state.metrics), {}};
  for (const TrainRow& row : state.batch) {
    record.samples.push_back(sample_record(row, state.deps.reward_parts));
  }
  state.batch.clear();
  self->request(state.deps.recorder, kReplyDeadline, atom::record_v, std::move(record))
      .then([self](const RecordMarks&) { handle(self, RunEvent::kStepRecorded); },
            or_fail(self, "recording a step"));
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
    release_at(*state.deps.io_port, std::move(state.recent.front()));
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

void send_job(Self self, TrainRequest job) {
  auto& state = self->state;
  self->request(state.deps.training, state.deps.options.train_deadline, atom::train_v,
                std::move(job))
      .then([self](TrainOutcome& outcome) { acknowledge(self, outcome); },
            or_fail(self, "training"));
}

// A device that ends or is quarantined gives up the probe with its other requests. Another device
// then generates it.
void send_with_probe(Self self, const std::shared_ptr<TrainRequest>& job,
                     std::uint32_t attempt = 1) {
  auto& state = self->state;
  engines::RolloutRequest request = probe_request(state.batch, state.deps.options, state.recent);
  self->request(state.deps.serving, state.deps.options.train_deadline, atom::generate_v, request)
      .then(
          [self, request, job](const engines::RolloutResult& result) {
            add_probe(request, result, self->state.recent, *job);
            send_job(self, std::move(*job));
          },
          [self, job, attempt](const caf::error& error) {
            const Status why = from_caf_error(error);
            if (why.code() == Errc::kUnavailable && attempt < kProbeAttempts) {
              send_with_probe(self, job, attempt + 1);
            } else {
              fail(self, why.with_context("generating a probe"));
            }
          });
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
  TrainRequest job = make_train_request(state.batch, state.deps.options, state.now, state.recent);
  if (state.batch.empty() || has_comparison(job)) {
    send_job(self, std::move(job));
  } else {
    send_with_probe(self, std::make_shared<TrainRequest>(std::move(job)));
  }
}

// Ends the run if too many groups have left untrained since this step began.
void check_progress(Self self, const StreamStatus& counts) {
  auto& state = self->state;
  const std::uint64_t filtered = counts.filtered_groups - state.counts_at_step->filtered_groups;
  const std::uint64_t lost = counts.lost_groups - state.counts_at_step->lost_groups;
  const std::uint64_t limit =
      std::uint64_t{state.deps.options.max_untrained_batches} * state.deps.options.groups_per_step;
  if (filtered + lost < limit || state.phases.end().has_value()) {
    handle(self, RunEvent::kNoBatchYet);
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
  handle(self, RunEvent::kNoSignal,
         untrained + ", " + std::to_string(filtered) +
             " of them filtered for lack of a signal; a higher rollout.temperature or other data "
             "may give rewards that differ within a group");
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
      handle(self, RunEvent::kDataEnded);
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
  handle(self, RunEvent::kBatch);
}

void fetch(Self self) {
  auto& state = self->state;
  const TrainerOptions& options = state.deps.options;
  if (!state.counts_at_step.has_value()) {
    self->request(state.deps.stream, kReplyDeadline, atom::status_v)
        .then(
            [self](const StreamStatus& counts) {
              self->state.counts_at_step = counts;
              handle(self, RunEvent::kNoBatchYet);
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

// -- commits --------------------------------------------------------------------------------------

void capture_parts(Self self) {
  auto& state = self->state;
  RunCommit commit;
  commit.weights = state.recent.back();
  commit.best = state.phases.best();
  state.commits.capture(self, std::move(commit), [self] { handle(self, RunEvent::kCaptured); });
}

void capture(Self self) {
  auto& state = self->state;
  if (!state.deps.options.fixed_batches) {
    capture_parts(self);
    return;
  }
  // A commit holds one set of weights, so every row that older versions must generate has to be
  // finished. That may take as long as any response takes, hence the long deadline.
  self->request(state.deps.keeper, state.deps.options.train_deadline, atom::waits_v, state.now.step)
      .then([self](const PolicyVersion&) { capture_parts(self); },
            or_fail(self, "committing: rows of older versions"));
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
  self->send(state.deps.listener, atom::finish_v, state.phases.summary(state.recent.back()));
  self->quit();
}

void act(Self self, RunAction action) {
  switch (action) {
    case RunAction::kFetch: fetch(self); break;
    case RunAction::kTrain: train(self); break;
    case RunAction::kEvaluate: evaluate(self); break;
    case RunAction::kCapture: capture(self); break;
    case RunAction::kWrite:
      self->state.commits.write(self, self->state.phases.evaluated_step());
      break;
    case RunAction::kFinish: finish(self); break;
  }
}

void handle(Self self, RunEvent event, const std::string& reason) {
  auto& state = self->state;
  const Phase before = state.phases.phase();
  if (event == RunEvent::kStepRecorded && state.commits.is_overdue(self->clock().now())) {
    state.phases.set_commit_overdue();
  }
  const std::vector<RunAction> actions = state.phases.on(event, reason);
  // The time that a step waits for its batch begins when the step before it is done.
  const bool step_done =
      before == Phase::kReady || before == Phase::kTraining || before == Phase::kEvaluating;
  if (step_done && state.phases.phase() != before) {
    state.requested_at = self->clock().now();
  }
  for (const RunAction action : actions) {
    act(self, action);
  }
}

void stop(Self self) {
  auto& state = self->state;
  if (state.phases.evaluating()) {
    self->send(state.deps.evaluator, atom::stop_v);
  }
  handle(self, RunEvent::kStop);
}

void renew(Self self) {
  auto& state = self->state;
  LeaseUpdate rows{.task = task_id(SampleTask::kTrain), .consumer = kConsumer};
  for (const TrainRow& row : state.batch) {
    rows.rows.push_back({row.lease});
  }
  if (!rows.rows.empty()) {
    self->request(state.deps.stream, kReplyDeadline, atom::renew_v, std::move(rows))
        .then([](const storage::Settlement&) {}, [](const caf::error&) {});
  }
  const Duration third = state.lease_time / 3;
  self->delayed_send(self, std::max<Duration>(third, std::chrono::milliseconds(500)),
                     atom::renew_v);
}

RunPhaseOptions phase_options(const TrainerDeps& deps) {
  RunPhaseOptions options;
  options.kind = RunKind::kReinforcement;
  options.total_steps = deps.options.total_steps;
  options.commit_every = deps.options.commit_every;
  options.eval_every = deps.evaluator ? deps.options.eval_every : 0;
  options.best = deps.options.best;
  return options;
}

TrainerActor::behavior_type trainer(Self self, TrainerDeps deps) {
  auto& state = self->state;
  state.now = deps.weights.version;
  state.recent.push_back(std::move(deps.weights));
  state.phases =
      RunPhases(phase_options(deps), {state.now.step, deps.evaluated_step, std::move(deps.best)});
  state.commits =
      CommitChain({deps.stream, deps.training, deps.recorder, deps.commits, deps.commit_port},
                  deps.options.commit_interval, self->clock().now());
  state.deps = std::move(deps);
  return {
      [self](atom::start) {
        self->send(self, atom::renew_v);
        handle(self, RunEvent::kStart);
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
