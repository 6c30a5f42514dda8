// SPDX-License-Identifier: Apache-2.0
#include "actors/device/device_work.hpp"

#include <chrono>
#include <string>

#include "base/check.hpp"

namespace tidemill::actors {

using engines::RolloutRequest;
using engines::RolloutResult;
using engines::Snapshot;

namespace {

// How often the errors of predictions are computed for `DeviceUsage`. Units: iterations.
constexpr std::uint64_t kErrorInterval = 64;

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string job_text(JobId id) {
  return "job " + std::to_string(id.value);
}

}  // namespace

DeviceWork::DeviceWork(DeviceDeps deps)
    : deps_(std::move(deps)),
      executor_(deps_.rollout, deps_.executor, deps_.clock),
      incarnation_(deps_.rollout->serving_version().incarnation) {
  if (deps_.train != nullptr) {
    jobs_[JobId{}] = {nullptr, deps_.train, deps_.make_loss, nullptr, 0};
    executor_.add(*deps_.train);
  }
}

void DeviceWork::on_rollout(RolloutResult result) {
  const auto it = generating_.find(result.id);
  if (it == generating_.end()) {
    return;  // given up
  }
  streaming_.erase(it->second);
  outcomes.add<RolloutResult>(it->second, std::move(result));
  generating_.erase(it);
}

void DeviceWork::on_tokens(const engines::RolloutTokens& tokens) {
  const auto it = generating_.find(tokens.id);
  if (it == generating_.end() || !streaming_.contains(it->second)) {
    return;
  }
  TokenEvent event;
  event.id = tokens.id;
  event.first = tokens.first;
  event.ids.assign(tokens.ids.begin(), tokens.ids.end());
  event.behavior_logprobs.assign(tokens.behavior_logprobs.begin(), tokens.behavior_logprobs.end());
  event.versions.assign(tokens.versions.begin(), tokens.versions.end());
  event.top_logprobs.assign(tokens.top_logprobs.begin(), tokens.top_logprobs.end());
  token_events.emplace_back(it->second, std::move(event));
}

void DeviceWork::stream(Ticket ticket, RolloutRequest request) {
  streaming_.insert(ticket);
  submit(ticket, std::move(request));
}

void DeviceWork::submit(Ticket ticket, RolloutRequest request) {
  const SampleId id = request.id;
  // A second request for a sample follows a lost lease. The first requester has given up.
  if (generating_.contains(id)) {
    deps_.rollout->cancel(id);
  }
  if (Status status = deps_.rollout->submit(std::move(request), *this); status.ok()) {
    generating_.emplace(id, ticket);
  } else {
    streaming_.erase(ticket);
    outcomes.add<RolloutResult>(ticket, std::move(status));
  }
}

// Ends all requests with `why`.
void DeviceWork::give_up_requests(const Status& why) {
  streaming_.clear();
  for (const auto& [id, ticket] : std::exchange(generating_, {})) {
    outcomes.add<RolloutResult>(ticket, why);
    deps_.rollout->cancel(id);
  }
}

// The requests before the first weights of a newer incarnation came from actors of an older one,
// which have ended. The new weights would have to wait for their responses.
void DeviceWork::load(Ticket ticket, Snapshot snapshot) {
  const PolicyVersion version = snapshot.version;
  Status status = deps_.rollout->load(std::move(snapshot), engines::WeightArrival::kFinish);
  if (status.ok() && version.incarnation > incarnation_) {
    incarnation_ = version.incarnation;
    give_up_requests({Errc::kUnavailable, "the request was given up for incarnation " +
                                              std::to_string(incarnation_) +
                                              ", whose weights were loaded"});
  }
  outcomes.add<PolicyVersion>(
      ticket, status.ok() ? Result<PolicyVersion>(version) : Result<PolicyVersion>(status));
}

void DeviceWork::change_adapters(Ticket ticket, const AdapterRequest& request) {
  const Status status = change_adapters(request);
  outcomes.add<AdapterList>(ticket, status.ok()
                                        ? Result<AdapterList>(AdapterList{deps_.adapters->loaded()})
                                        : Result<AdapterList>(status));
}

Status DeviceWork::change_adapters(const AdapterRequest& request) const {
  switch (request.action) {
    case AdapterAction::kList: return {};
    case AdapterAction::kUnload: return deps_.adapters->unload(request.name);
    case AdapterAction::kLoad: break;
  }
  TIDEMILL_ASSIGN_OR_RETURN(engines::AdapterFiles files, deps_.open_adapter(request));
  const bool has_version = request.path.empty() || request.version != PolicyVersion();
  return deps_.adapters->load({request.name,
                               has_version ? std::optional(request.version) : std::nullopt,
                               std::move(files), request.created});
}

void DeviceWork::open(Ticket ticket, const JobOpening& opening) {
  outcomes.add<JobId>(ticket, open(opening));
}

Result<JobId> DeviceWork::open(const JobOpening& opening) {
  if (opening.id == JobId{} || jobs_.contains(opening.id)) {
    return invalid_argument(job_text(opening.id) + " exists");
  }
  if (!(opening.weight > 0.0)) {
    return invalid_argument("weight: must be greater than 0");
  }
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<engines::TrainingJob> job,
                            deps_.open_job(opening.options));
  executor_.add(*job, opening.weight);
  engines::TrainingJob* const borrowed = job.get();
  jobs_[opening.id] = {std::move(job), borrowed, opening.make_loss, nullptr, 0};
  return opening.id;
}

void DeviceWork::close(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || found->second.owned == nullptr) {
    return;
  }
  if (found->second.work != nullptr) {
    fail(found->second, {Errc::kUnavailable, job_text(id) + " was closed"});
  }
  executor_.remove(*found->second.job);
  jobs_.erase(found);
}

// Returns a job that is open. The actor sends it one request at a time.
Result<DeviceWork::Job*> DeviceWork::find_job(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) {
    return Status(Errc::kNotFound, job_text(id) + " is not open");
  }
  TIDEMILL_CHECK(found->second.work == nullptr) << job_text(id);
  return &found->second;
}

template <class Value, class MakeWork>
void DeviceWork::start(Ticket ticket, JobId id, const MakeWork& make_work) {
  const Result<Job*> found = find_job(id);
  if (!found.ok()) {
    outcomes.add<Value>(ticket, found.status());
    return;
  }
  Job& job = *found.value();
  job.work = make_work(job);
  job.ticket = ticket;
  advance(job);
}

void DeviceWork::train(Ticket ticket, JobId id, TrainRequest request) {
  start<TrainOutcome>(ticket, id, [&](const Job& job) {
    return make_train_work(*job.job, job.make_loss, std::move(request));
  });
}

void DeviceWork::pass(Ticket ticket, JobId id, std::shared_ptr<const PassRequest> request) {
  start<PassOutcome>(ticket, id,
                     [&](const Job& job) { return make_pass_work(*job.job, std::move(request)); });
}

void DeviceWork::step(Ticket ticket, JobId id, std::shared_ptr<const engines::OptimStep> step) {
  start<engines::UpdateReport>(
      ticket, id, [&](const Job& job) { return make_step_work(*job.job, std::move(step)); });
}

void DeviceWork::save(Ticket ticket, JobId id, PolicyVersion version) {
  start<Snapshot>(ticket, id, [&](const Job& job) { return make_save_work(*job.job, version); });
}

void DeviceWork::capture(Ticket ticket, JobId id) {
  start<OptimizerState>(ticket, id, [](const Job& job) { return make_capture_work(*job.job); });
}

void DeviceWork::restore(Ticket ticket, JobId id, const TrainingState& saved) {
  const Result<Job*> found = find_job(id);
  Status status = found.status();
  if (status.ok()) {
    status = found.value()->job->load(saved.weights, saved.optimizer.tensors);
  }
  outcomes.add<PolicyVersion>(ticket, status.ok() ? Result<PolicyVersion>(saved.weights.version)
                                                  : Result<PolicyVersion>(status));
}

// Goes on with the pending request of a job that has no work.
void DeviceWork::advance(Job& job) {
  if (const Status status = job.work->advance(); !status.ok()) {
    fail(job, status);
  } else if (job.work->finished()) {
    job.work->settle(job.ticket, {}, outcomes);
    job.work.reset();
  }
}

void DeviceWork::fail(Job& job, const Status& failure) {
  job.work->settle(job.ticket, failure, outcomes);
  job.work.reset();
}

Duration DeviceWork::iterate() {
  Duration spent{0};
  if (executor_.has_work()) {
    const engines::Iteration iteration = executor_.iterate(&interrupted_);
    spent = iteration.report.virtual_duration;
    take_results(iteration);
    count(iteration);
  }
  more = executor_.has_work();
  usage.jobs = jobs_.size();
  if (!deps_.rollout->has_work()) {
    usage.running = 0;
    usage.kv_use = 0.0;
    usage.waiting = generating_.size();  // for a version that is not served yet
  }
  return spent;
}

// A failure of training ends the request and not the device.
void DeviceWork::take_results(const engines::Iteration& iteration) {
  engine_status = iteration.rollout_status;
  for (auto& [id, job] : jobs_) {
    const bool failed = iteration.failed_job.has_value() && iteration.failed_job->job == job.job;
    if (failed && job.work == nullptr) {
      engine_status = iteration.failed_job->status;  // no request waits for this work
    } else if (failed) {
      fail(job, iteration.failed_job->status);
    } else if (job.work != nullptr && !job.job->has_work()) {
      advance(job);
    }
  }
}

void DeviceWork::count(const engines::Iteration& iteration) {
  const engines::StepReport& report = iteration.report;
  if (iteration.rolled_out) {
    usage.running = static_cast<std::uint64_t>(report.running);
    usage.waiting = static_cast<std::uint64_t>(report.waiting);
    usage.kv_use = report.kv_use;
  }
  usage.preemptions += static_cast<std::uint64_t>(report.preemptions);
  usage.prefill_tokens += static_cast<std::uint64_t>(report.prefill_tokens);
  usage.decode_tokens += static_cast<std::uint64_t>(report.decode_tokens);
  usage.cached_tokens += static_cast<std::uint64_t>(report.cached_tokens);
  usage.train_tokens += static_cast<std::uint64_t>(report.train_tokens);
  if (!deps_.executor.goal.has_value()) {
    return;
  }
  usage.rollout_seconds += seconds(iteration.rollout_time);
  usage.train_seconds += seconds(iteration.train_time);
  if (num_iterations_++ % kErrorInterval == 0) {
    usage.iteration_error_p50 = executor_.rollout_prediction_errors().quantile(0.5);
    usage.iteration_error_p99 = executor_.rollout_prediction_errors().quantile(0.99);
    usage.unit_error_p50 = executor_.unit_prediction_errors().quantile(0.5);
    usage.unit_error_p99 = executor_.unit_prediction_errors().quantile(0.99);
  }
}

}  // namespace tidemill::actors
