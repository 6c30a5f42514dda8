// SPDX-License-Identifier: Apache-2.0
// The tuner actor. The store is used only at the port, which runs one call after another, so the
// store decides which of two requests comes first.
//
//   create    adds a job to the store, and its id to `queue`
//   start_next takes ids from the queue while fewer than `max_running` runs exist, makes the job
//             "running" in the store and starts its run
//   on_report takes what runs report, in order. The last report of a run ends it.
//   change    a client cancels, pauses or resumes a job: the store changes it, and the run is
//             cancelled or stopped, or the id is put in the queue again
//
// A run that is stopped ends after its step. If that takes longer than `stop_time`, it is
// cancelled. A run that was stopped may end after its job has been resumed. The job then waits in
// the queue until the run has ended.
//
// If the disk is full, a run that ends for that reason pauses its job, which keeps its last commit.
// If the store has no room for the end of a run either, the actor keeps it in `unwritten`, shows it
// to clients, and writes it again every `kRetryTime` and before the next request to change a job.
#include <algorithm>
#include <any>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <caf/all.hpp>

#include "actors/end_with.hpp"
#include "actors/errors.hpp"
#include "actors/tuning/job_changes.hpp"
#include "actors/tuning/run_reports.hpp"
#include "actors/tuning/spawn.hpp"
#include "actors/work/alarm.hpp"
#include "base/text/mebibytes.hpp"

namespace tidemill::actors {
namespace {

using storage::EventLevel;
using storage::EventType;
using storage::JobChange;
using storage::JobEvent;
using storage::JobRecord;
using storage::JobState;
using storage::JobStore;

// How long the device may take to load an adapter beside all else that it does.
constexpr auto kLoadTime = std::chrono::seconds(600);
// How long the actor waits before it tries again what a full disk has prevented.
constexpr auto kRetryTime = std::chrono::seconds(5);

// The end of a run for which the store had no room.
struct UnwrittenEnd {
  JobChange change;
  bool is_at_port = false;  // is being written again
};

struct TunerState {
  static inline const char* name = "tuner";
  TunerState() = default;

  TunerDeps deps;
  std::shared_ptr<RunReports> reports = std::make_shared<RunReports>();
  std::map<std::string, std::unique_ptr<TuningRun>> runs;  // by job; null while it is being started
  std::deque<std::string> queue;                           // ids of jobs that are to be started
  std::uint64_t last_ticket = 0;
  std::map<std::uint64_t, std::function<void()>> pending;  // what follows work at the port
  std::map<std::string, UnwrittenEnd> unwritten;           // by job
  std::deque<JobRecord> to_serve;  // jobs of an earlier server; the first one's adapter is loading
  bool is_continued = false;       // the jobs of an earlier server are in the queue
  Alarm retry;
  std::map<std::string, TimePoint> cancel_at;  // of runs that have been asked to stop
  Alarm cancellation;
  bool stopping = false;
};

using Self = TunerActor::stateful_pointer<TunerState>;

JobEvent event_of(Self self, std::string message, EventLevel level = EventLevel::kInfo) {
  JobEvent event;
  event.created_at = self->state.deps.unix_time();
  event.level = level;
  event.message = std::move(message);
  return event;
}

JobChange change_to(Self self, JobState next, std::string message,
                    EventLevel level = EventLevel::kInfo) {
  JobChange change;
  change.now = self->state.deps.unix_time();
  change.state = next;
  change.estimated_finish = 0;  // that of the run before; a running job is given a new one
  change.event = event_of(self, std::move(message), level);
  return change;
}

// Runs `call` with the store at the port, then `then` with its result in the actor.
template <class Call, class Then>
void at_store(Self self, Call call, Then then) {
  auto& state = self->state;
  using Value = std::invoke_result_t<Call, JobStore&>;
  const auto result = std::make_shared<std::optional<Value>>();
  const std::uint64_t ticket = ++state.last_ticket;
  state.pending.emplace(ticket,
                        [result, then = std::move(then)]() mutable { then(std::move(**result)); });
  state.deps.port->run(
      [result, jobs = state.deps.jobs, call = std::move(call)] {
        result->emplace(call(*jobs));
        return Duration::zero();
      },
      caf::actor_cast<caf::strong_actor_ptr>(self), caf::make_message(atom::worked_v, ticket));
}

// Makes a job look as it does once the end of its run is written.
void show_end(Self self, JobRecord& job) {
  const auto found = self->state.unwritten.find(job.id);
  if (found != self->state.unwritten.end() && may_follow(job.state, *found->second.change.state)) {
    job.state = *found->second.change.state;
    job.error = found->second.change.error.value_or(job.error);
    job.fine_tuned_model = found->second.change.fine_tuned_model.value_or(job.fine_tuned_model);
  }
}
void show_end(Self self, storage::JobPage& page) {
  for (JobRecord& job : page.entries) {
    show_end(self, job);
  }
}
void show_end(Self /*self*/, const storage::JobEventPage& /*page*/) {}
void show_end(Self /*self*/, const storage::JobCheckpointPage& /*page*/) {}

// Replies with what `call` returns.
template <class Value, class Call>
caf::typed_response_promise<Value> reply_from_store(Self self, Call call) {
  auto promise = self->make_response_promise<Value>();
  at_store(self, std::move(call), [self, promise](Result<Value> result) mutable {
    if (result.ok()) {
      show_end(self, result.value());
      promise.deliver(std::move(result).value());
    } else {
      promise.deliver(to_caf_error(result.status()));
    }
  });
  return promise;
}

// Adds what a run has reported to its job, unless the job has been cancelled meanwhile. Logs a
// failure.
void add_report(Self self, const std::string& id, JobChange change) {
  at_store(
      self,
      [id, change = std::move(change)](JobStore& jobs) -> Result<JobRecord> {
        TIDEMILL_ASSIGN_OR_RETURN(JobRecord job, jobs.find(id));
        return has_ended(job.state) ? Result<JobRecord>(std::move(job)) : jobs.change(id, change);
      },
      [self, id](const Result<JobRecord>& changed) {
        if (!changed.ok()) {
          self->state.deps.log(id + ": " + changed.status().message());
        }
      });
}

void start_next(Self self);

// Lets `retry` be called when the disk may have room again.
void retry_later(Self self) {
  self->state.retry.set(self, TimePoint{self->clock().now()} + Duration{kRetryTime});
}

// Removes what jobs that have ended no longer need. Logs a failure.
void remove_leftovers(Self self) {
  auto& state = self->state;
  if (!state.deps.remove_leftovers) {
    return;
  }
  std::set<std::string> running;
  for (const auto& [id, run] : state.runs) {
    running.insert(id);
  }
  at_store(
      self,
      [remove = state.deps.remove_leftovers, running = std::move(running)](JobStore& jobs) {
        return remove(jobs, running);
      },
      [self](const Status& status) {
        if (!status.ok()) {
          self->state.deps.log("files of fine-tuning jobs: " + status.message());
        }
      });
}

void start_run(Self self, const JobRecord& job) {
  auto& state = self->state;
  state.runs[job.id] = state.deps.start_run(
      job, [id = job.id, reports = state.reports,
            weak = caf::actor_cast<caf::weak_actor_ptr>(self)](RunReport report) {
        reports->push(id, std::move(report));
        if (const auto tuner = caf::actor_cast<caf::strong_actor_ptr>(weak)) {
          caf::anon_send(caf::actor_cast<TunerActor>(tuner), atom::wake_v);
        }
      });
}

void end_run(Self self, const std::string& id);

// Starts the jobs in the queue for which there is room.
void start_next(Self self) {
  auto& state = self->state;
  while (!state.stopping && state.runs.size() < state.deps.max_running) {
    const auto next = std::find_if(state.queue.begin(), state.queue.end(), [&](const auto& id) {
      return !state.runs.contains(id);  // its last run has ended
    });
    if (next == state.queue.end()) {
      return;
    }
    const std::string id = *next;
    state.queue.erase(next);
    state.runs[id] = nullptr;
    at_store(
        self,
        [id, change = change_to(self, JobState::kRunning, "The job has started.")](JobStore& jobs) {
          return jobs.change(id, change);
        },
        [self, id](const Result<JobRecord>& job) {
          if (job.ok() && !self->state.stopping) {
            start_run(self, job.value());
            return;
          }
          if (job.status().code() == Errc::kResourceExhausted) {
            self->state.runs.erase(id);
            self->state.queue.push_front(id);
            retry_later(self);
            return;
          }
          end_run(self, id);  // cancelled or paused meanwhile, or the store has failed
        });
  }
}

// Removes a run that has ended. Starts what waited for it.
void end_run(Self self, const std::string& id) {
  auto& state = self->state;
  state.runs.erase(id);
  state.cancel_at.erase(id);
  if (state.stopping && state.runs.empty()) {
    self->quit();
    return;
  }
  remove_leftovers(self);
  start_next(self);
}

// Returns the request to serve the adapter of a job, which was made at `created`.
AdapterRequest load_request(const std::string& name, const std::string& path,
                            std::int64_t created) {
  AdapterRequest request{AdapterAction::kLoad, name, path, {}};
  request.created = created;
  return request;
}

// Unloads an adapter whose job no longer has it.
void unload(Self self, const std::string& name) {
  caf::anon_send(self->state.deps.device, atom::adapters_v,
                 AdapterRequest{AdapterAction::kUnload, name, "", {}});
}

// Writes how a run has ended, and starts what waits for its place. If a client has cancelled or
// paused the job meanwhile, it stays so, and its adapter is unloaded.
void write_end(Self self, const std::string& id, const JobChange& change) {
  at_store(
      self, [id, change](JobStore& jobs) { return record_run_end(jobs, id, change); },
      [self, id, change](const Result<RunEndOutcome>& ended) {
        auto& state = self->state;
        const bool has_room = ended.status().code() != Errc::kResourceExhausted;
        const bool is_first = state.unwritten.erase(id) == 0;
        if (!ended.ok() && (has_room || is_first)) {
          state.deps.log(id + ": " + ended.status().message());
        }
        if (!has_room) {
          state.unwritten[id] = {change};
          retry_later(self);
        } else if (const bool is_written = ended.ok() && ended.value().was_recorded;
                   !is_written && change.fine_tuned_model.has_value()) {
          unload(self, *change.fine_tuned_model);
        } else if (is_written && ended.value().job.state == JobState::kFailed) {
          unload(self, state.deps.model_name(ended.value().job));  // a version that it published
        }
        end_run(self, id);
      });
}

// Writes again what the store had no room for.
void write_ends(Self self) {
  for (auto& [id, end] : self->state.unwritten) {
    if (!std::exchange(end.is_at_port, true)) {
      write_end(self, id, end.change);
    }
  }
}

// Makes a job "succeeded". Its adapter is served, unless `loaded` says why not. Clients are told
// that it was made at `now`.
void succeed(Self self, const JobRecord& job, const RunEnded& ended, std::int64_t now,
             const Status& loaded) {
  JobChange change = change_to(self, JobState::kSucceeded, "The job has completed successfully.");
  if (!loaded.ok()) {
    change.event->level = EventLevel::kWarn;
    change.event->message += ' ' + unserved_text(job.id, loaded);
    self->state.deps.log(job.id + ": the model is not served: " + loaded.message() +
                         "; the adapter is in " + ended.adapter);
  }
  change.now = now;
  change.fine_tuned_model = self->state.deps.model_name(job);
  storage::JobCheckpoint checkpoint;
  checkpoint.created_at = change.now;
  checkpoint.step_number = static_cast<std::int64_t>(ended.steps);
  checkpoint.metrics = ended.metrics;
  checkpoint.fine_tuned_model_checkpoint = *change.fine_tuned_model;
  change.checkpoint = std::move(checkpoint);
  write_end(self, job.id, change);
}

void fail(Self self, const std::string& id, const Status& why) {
  if (self->state.stopping) {
    end_run(self, id);  // the device may have ended before the run; the job continues later
    return;
  }
  JobChange change = change_to(self, JobState::kFailed, "The job has failed: " + why.message(),
                               EventLevel::kError);
  change.error = storage::JobError{std::string(errc_name(why.code())), why.message(), ""};
  self->state.deps.log(id + ": " + change.event->message);
  write_end(self, id, change);
}

// Pauses a job for which the disk, or another resource, has no room.
void pause(Self self, const std::string& id, const Status& why) {
  if (self->state.stopping) {
    end_run(self, id);
    return;
  }
  JobChange change = change_to(
      self, JobState::kPaused,
      "The job was paused: " + why.message() + "; resume it once there is room", EventLevel::kWarn);
  change.error = storage::JobError{std::string(errc_name(why.code())), why.message(), ""};
  write_end(self, id, change);
}

// Has the device load the adapter of a run that has ended, and then ends the job. A device without
// room for it is asked again once it has unloaded the version that the run has published.
void load_result(Self self, const JobRecord& job, const RunEnded& ended, std::int64_t now,
                 bool is_repeated = false) {
  const std::string name = self->state.deps.model_name(job);
  self->request(self->state.deps.device, kLoadTime, atom::adapters_v,
                load_request(name, ended.adapter, now))
      .then([self, job, ended, now](const AdapterList&) { succeed(self, job, ended, now, {}); },
            [self, job, ended, now, name, is_repeated](const caf::error& error) {
              const Status why = from_caf_error(error);
              if (why.code() != Errc::kResourceExhausted) {
                fail(self, job.id, why.with_context("the adapter could not be served"));
              } else if (is_repeated) {
                succeed(self, job, ended, now, why);
              } else {
                unload(self, name);
                load_result(self, job, ended, now, true);
              }
            });
}

// Ends the job of a run that has ended, once the device serves its adapter.
void serve_result(Self self, const std::string& id, const RunEnded& ended) {
  at_store(
      self, [id](JobStore& jobs) { return jobs.find(id); },
      [self, id, ended](const Result<JobRecord>& job) {
        if (job.ok()) {
          load_result(self, job.value(), ended, self->state.deps.unix_time());
        } else {
          fail(self, id, job.status());
        }
      });
}

void on_report(Self self, const std::string& id, const RunBegan& began) {
  JobChange change;
  change.now = self->state.deps.unix_time();
  change.resolved = began.resolved;
  change.event =
      event_of(self, "The files are valid. The job takes " + std::to_string(began.steps) +
                         (began.steps == 1 ? " step" : " steps") + " and at most " +
                         mebibytes_text(began.memory_bytes) + " of memory. A step trains on " +
                         began.step + ".");
  add_report(self, id, std::move(change));
}

void on_report(Self self, const std::string& id, const StepNote& note) {
  JobChange change;
  change.now = self->state.deps.unix_time();
  if (note.seconds_left.has_value()) {
    change.estimated_finish = change.now + static_cast<std::int64_t>(*note.seconds_left);
  }
  change.event = event_of(self, note.message);
  add_report(self, id, std::move(change));
}

void on_report(Self self, const std::string& id, const RunProgress& progress) {
  JobChange change;
  change.now = self->state.deps.unix_time();
  change.trained_tokens = progress.trained_tokens;
  change.estimated_finish = change.now + static_cast<std::int64_t>(progress.seconds_left);
  change.event = event_of(self, progress.message);
  change.event->type = EventType::kMetrics;
  change.event->data = progress.data;
  add_report(self, id, std::move(change));
}

void on_report(Self self, const std::string& id, const RunWarning& warning) {
  JobChange change;
  change.now = self->state.deps.unix_time();
  change.event = event_of(self, warning.message, EventLevel::kWarn);
  add_report(self, id, std::move(change));
}

// Ends a run that was stopped or cancelled. What a cancelled job has published is unloaded.
void stopped(Self self, const std::string& id) {
  at_store(
      self, [id](JobStore& jobs) { return jobs.find(id); },
      [self, id](const Result<JobRecord>& job) {
        if (job.ok() && job.value().state == JobState::kCancelled && !self->state.stopping) {
          unload(self, self->state.deps.model_name(job.value()));
        }
        if (job.ok() && job.value().state == JobState::kPaused) {
          JobChange change;
          change.now = self->state.deps.unix_time();
          change.event = event_of(self, "The run of the paused job has ended.");
          add_report(self, id, std::move(change));
        }
        end_run(self, id);
      });
}

void on_report(Self self, const std::string& id, const Result<RunEnded>& ended) {
  if (ended.status().code() == Errc::kResourceExhausted) {
    pause(self, id, ended.status());
  } else if (!ended.ok()) {
    fail(self, id, ended.status());
  } else if (ended.value().stopped) {
    stopped(self, id);
  } else {
    serve_result(self, id, ended.value());
  }
}

// Has a run end after its step.
void stop_run(Self self, const std::string& id, TuningRun& run) {
  auto& state = self->state;
  run.request_stop();
  const TimePoint due = TimePoint{self->clock().now()} + state.deps.stop_time;
  state.cancellation.set(self, state.cancel_at.emplace(id, due).first->second);
}

// Cancels the runs that should have stopped by now.
void cancel_late_runs(Self self) {
  auto& state = self->state;
  const TimePoint now{self->clock().now()};
  if (!state.cancellation.take(now)) {
    return;
  }
  std::optional<TimePoint> next;
  for (auto entry = state.cancel_at.begin(); entry != state.cancel_at.end();) {
    if (const auto& [id, due] = *entry; due > now) {
      next = earlier(next, due);
      ++entry;
      continue;
    }
    const std::string message =
        "The run has been ended within a step. The job repeats the steps since its last commit.";
    state.deps.log(entry->first + ": " + message);
    JobChange change;
    change.now = state.deps.unix_time();
    change.event = event_of(self, message, EventLevel::kWarn);
    add_report(self, entry->first, std::move(change));
    state.runs.at(entry->first)->cancel();
    entry = state.cancel_at.erase(entry);
  }
  state.cancellation.set(self, next);
}

// Changes the state of a job as a client asks.
caf::typed_response_promise<JobRecord> change_state(Self self, const std::string& id, JobState next,
                                                    const char* message) {
  auto promise = self->make_response_promise<JobRecord>();
  write_ends(self);
  JobChange wanted = change_to(self, next, message);
  wanted.error = storage::JobError();  // of the run before
  at_store(
      self,
      [id, change = std::move(wanted)](JobStore& jobs) -> Result<JobRecord> {
        TIDEMILL_ASSIGN_OR_RETURN(JobRecord job, jobs.find(id));
        if (change.state == job.state && job.state != JobState::kQueued) {
          return job;  // a client repeats a request whose response it has lost
        }
        // The store lets a running job be queued again, for a server that starts again.
        if (change.state == JobState::kQueued && job.state != JobState::kPaused) {
          return invalid_argument(id +
                                  ": only a paused job can be resumed; the state of this one is " +
                                  std::string(storage::job_state_name(job.state)));
        }
        return jobs.change(id, change);
      },
      [self, id, next, promise](Result<JobRecord> changed) mutable {
        auto& state = self->state;
        if (!changed.ok()) {
          // The store knows no better if it had no room for the end of the run.
          promise.deliver(to_caf_error(
              state.unwritten.contains(id)
                  ? Status(Errc::kResourceExhausted,
                           id + ": the disk is full, so the state of the job cannot change")
                  : changed.status()));
          return;
        }
        const std::string model = state.deps.model_name(changed.value());
        promise.deliver(std::move(changed).value());
        std::erase(state.queue, id);
        if (next == JobState::kQueued) {
          state.queue.push_back(id);
          start_next(self);
        } else if (const auto run = state.runs.find(id);
                   run != state.runs.end() && run->second != nullptr) {
          if (next == JobState::kCancelled) {
            run->second->cancel();
          } else {
            stop_run(self, id, *run->second);
          }
        } else if (next == JobState::kCancelled && run == state.runs.end()) {
          unload(self, model);  // what it had published before it was paused
        }
      });
  return promise;
}

caf::typed_response_promise<JobRecord> create(Self self, storage::JobSpec spec) {
  auto promise = self->make_response_promise<JobRecord>();
  if (self->state.deps.complete) {
    spec = self->state.deps.complete(std::move(spec));
  }
  at_store(
      self,
      [spec = std::move(spec), check = self->state.deps.check, now = self->state.deps.unix_time(),
       queued = change_to(self, JobState::kQueued, "The job is queued.")](
          JobStore& jobs) -> Result<JobRecord> {
        TIDEMILL_RETURN_IF_ERROR(check(spec));
        TIDEMILL_ASSIGN_OR_RETURN(JobRecord created, jobs.create(spec, now));
        TIDEMILL_RETURN_IF_ERROR(jobs.change(created.id, queued).status());
        return created;
      },
      [self, promise](Result<JobRecord> created) mutable {
        if (!created.ok()) {
          promise.deliver(to_caf_error(created.status()));
          return;
        }
        self->state.queue.push_back(created.value().id);
        promise.deliver(std::move(created).value());
        start_next(self);
      });
  return promise;
}

// Logs that a model of an earlier server is not served, and tells its owner.
void report_unserved(Self self, const JobRecord& job, const Status& why) {
  self->state.deps.log(job.fine_tuned_model + ": is not served: " + why.message());
  JobEvent event = event_of(self, unserved_text(job.id, why), EventLevel::kWarn);
  at_store(
      self,
      [id = job.id, event = std::move(event)](JobStore& jobs) {
        return jobs.add_event(id, event).status();
      },
      [self](const Status& added) {
        if (!added.ok()) {
          self->state.deps.log("fine-tuning jobs: " + added.message());
        }
      });
}

// Loads the adapters of `to_serve` one after another, until one does not fit. Reports that one and
// those after it.
void serve_adapters(Self self) {
  auto& to_serve = self->state.to_serve;
  if (to_serve.empty() || self->state.stopping) {
    return;
  }
  const JobRecord job = to_serve.front();
  const auto go_on = [self, job](const Status& loaded) {
    auto& left = self->state.to_serve;
    const bool is_deleted = left.empty() || left.front().id != job.id;
    if (is_deleted && loaded.ok()) {
      unload(self, job.fine_tuned_model);
    } else if (!is_deleted) {
      left.pop_front();
    }
    if (!loaded.ok()) {
      report_unserved(self, job, loaded);
    }
    if (loaded.code() == Errc::kResourceExhausted) {
      for (const JobRecord& older : std::exchange(left, {})) {
        report_unserved(self, older, loaded);
      }
    }
    serve_adapters(self);
  };
  self->request(
          self->state.deps.device, kLoadTime, atom::adapters_v,
          load_request(job.fine_tuned_model, self->state.deps.adapter_path(job), job.finished_at))
      .then([go_on](const AdapterList&) { go_on({}); },
            [go_on](const caf::error& error) { go_on(from_caf_error(error)); });
}

// Deletes the model of a job.
caf::typed_response_promise<JobRecord> remove_model(Self self, const std::string& name) {
  auto promise = self->make_response_promise<JobRecord>();
  write_ends(self);
  at_store(
      self,
      [name, now = self->state.deps.unix_time(),
       model_name = self->state.deps.model_name](JobStore& jobs) -> Result<JobRecord> {
        TIDEMILL_RETURN_IF_ERROR(check_not_in_use(jobs, name, model_name));
        return jobs.remove_model(name, now);
      },
      [self, name, promise](const Result<JobRecord>& removed) mutable {
        if (!removed.ok()) {
          promise.deliver(to_caf_error(removed.status()));
          return;
        }
        const JobRecord& job = removed.value();
        std::erase_if(self->state.to_serve, [&](const JobRecord& one) { return one.id == job.id; });
        remove_leftovers(self);
        self->request(self->state.deps.device, kLoadTime, atom::adapters_v,
                      AdapterRequest{AdapterAction::kUnload, name, "", {}})
            .then([promise, job](const AdapterList&) mutable { promise.deliver(job); },
                  [promise, job](const caf::error& error) mutable {
                    // An adapter that did not fit, or that was unloaded, is not loaded.
                    if (from_caf_error(error).code() == Errc::kNotFound) {
                      promise.deliver(job);
                    } else {
                      promise.deliver(error);
                    }
                  });
      });
  return promise;
}

// Continues the jobs of an earlier server.
void continue_jobs(Self self) {
  struct Found {
    std::vector<JobRecord> to_queue;
    std::vector<JobRecord> succeeded;
  };
  at_store(
      self,
      [again = change_to(self, JobState::kQueued, "The server has started again.")](
          JobStore& jobs) -> Result<Found> {
        Found found;
        TIDEMILL_ASSIGN_OR_RETURN(const std::vector<JobRecord> unfinished, jobs.unfinished());
        for (const JobRecord& job : unfinished) {
          if (job.state == JobState::kRunning || job.state == JobState::kValidatingFiles) {
            TIDEMILL_RETURN_IF_ERROR(jobs.change(job.id, again).status());
          }
          if (job.state != JobState::kPaused) {
            found.to_queue.push_back(job);
          }
        }
        TIDEMILL_ASSIGN_OR_RETURN(found.succeeded, succeeded_jobs(jobs));
        return found;
      },
      [self](Result<Found> found) {
        if (!found.ok()) {
          self->state.deps.log("fine-tuning jobs: " + found.status().message());
          if (found.status().code() == Errc::kResourceExhausted) {
            retry_later(self);
          }
          return;
        }
        self->state.is_continued = true;
        remove_leftovers(self);
        for (const JobRecord& job : found.value().to_queue) {
          self->state.queue.push_back(job.id);
        }
        start_next(self);
        self->state.to_serve.assign(found.value().succeeded.begin(), found.value().succeeded.end());
        serve_adapters(self);
      });
}

// Tries again what a full disk has prevented.
void retry(Self self) {
  if (self->state.stopping) {
    return;
  }
  write_ends(self);
  if (self->state.is_continued) {
    start_next(self);
  } else {
    continue_jobs(self);
  }
}

void stop(Self self) {
  auto& state = self->state;
  state.stopping = true;
  state.queue.clear();
  for (const auto& [id, run] : state.runs) {
    if (run != nullptr) {
      stop_run(self, id, *run);
    }
  }
  if (state.runs.empty()) {
    self->quit();
  }
}

caf::error is_stopping() {
  return to_caf_error({Errc::kUnavailable, "the server is shutting down"});
}

TunerActor::behavior_type tuner(Self self, TunerDeps deps) {
  end_with(self, deps.device);
  self->state.deps = std::move(deps);
  return {
      [self](atom::create, storage::JobSpec& spec) -> caf::result<JobRecord> {
        return self->state.stopping ? caf::result<JobRecord>(is_stopping())
                                    : create(self, std::move(spec));
      },
      [self](atom::list, const storage::PageQuery& query) {
        return reply_from_store<storage::JobPage>(
            self, [query](JobStore& jobs) { return jobs.list(query); });
      },
      [self](atom::get, const std::string& id) {
        return reply_from_store<JobRecord>(self, [id](JobStore& jobs) { return jobs.find(id); });
      },
      [self](atom::cancel, const std::string& id) {
        return change_state(self, id, JobState::kCancelled, "The job was cancelled.");
      },
      [self](atom::pause, const std::string& id) {
        return change_state(self, id, JobState::kPaused, "The job was paused.");
      },
      [self](atom::resume, const std::string& id) -> caf::result<JobRecord> {
        return self->state.stopping
                   ? caf::result<JobRecord>(is_stopping())
                   : change_state(self, id, JobState::kQueued,
                                  self->state.runs.contains(id)
                                      ? "The job was resumed. It continues once its last run has "
                                        "ended."
                                      : "The job was resumed.");
      },
      [self](atom::remove, const std::string& name) { return remove_model(self, name); },
      [self](atom::events, const storage::PageQuery& query) {
        return reply_from_store<storage::JobEventPage>(
            self, [query](JobStore& jobs) { return jobs.events(query); });
      },
      [self](atom::checkpoint, const storage::PageQuery& query) {
        return reply_from_store<storage::JobCheckpointPage>(
            self, [query](JobStore& jobs) { return jobs.checkpoints(query); });
      },
      [self](atom::start) { continue_jobs(self); },
      [self](atom::stop) { stop(self); },
      [self](atom::wake) {
        if (self->state.retry.take(TimePoint{self->clock().now()})) {
          retry(self);
        }
        cancel_late_runs(self);
        for (auto& [id, report] : self->state.reports->take()) {
          std::visit([self, &id = id](const auto& one) { on_report(self, id, one); }, report);
        }
      },
      [self](atom::worked, std::uint64_t ticket) {
        auto& pending = self->state.pending;
        const auto found = pending.find(ticket);
        const std::function<void()> then = std::move(found->second);
        pending.erase(found);
        then();
      },
  };
}

}  // namespace

TunerActor spawn_tuner(caf::actor_system& system, TunerDeps deps) {
  return system.spawn(tuner, std::move(deps));
}

}  // namespace tidemill::actors
