// SPDX-License-Identifier: Apache-2.0
#include "actors/supervisor/worker_table.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace tidemill::actors {
namespace {

Status why_it_ended(const Status& why) {
  return why.ok() ? Status(Errc::kInternal, "it ended before the run did") : why;
}

WorkerEnd fails_run(Status failure) {
  return {WorkerEnd::Action::kFailRun, Duration{0}, std::move(failure), ""};
}

}  // namespace

bool would_repeat(const Status& failure) {
  const Errc code = failure.code();
  return code == Errc::kInvalidArgument || code == Errc::kCorruptData ||
         code == Errc::kResourceExhausted || code == Errc::kUnimplemented;
}

void WorkerTable::add(const std::string& name, const std::string& kind, FailurePolicy policy,
                      TimePoint now) {
  const bool added =
      workers_.emplace(name, Worker{{name, kind, WorkerState::kRunning, 0}, policy, now}).second;
  TIDEMILL_CHECK(added) << "two workers named " << name;
}

const WorkerStatus* WorkerTable::find(const std::string& name) const {
  const auto found = workers_.find(name);
  return found == workers_.end() ? nullptr : &found->second.status;
}

void WorkerTable::restarted(const std::string& name, TimePoint now) {
  Worker& worker = workers_.at(name);
  worker.status.state = WorkerState::kRunning;
  worker.started_at = now;
}

bool WorkerTable::is_last_of_kind(const WorkerStatus& worker) const {
  return std::ranges::none_of(workers_, [&](const auto& entry) {
    const WorkerStatus& other = entry.second.status;
    return other.kind == worker.kind && other.name != worker.name &&
           other.state != WorkerState::kDraining;
  });
}

Status WorkerTable::check_not_last(const std::string& name) const {
  const WorkerStatus* worker = find(name);
  if (worker == nullptr) {
    return {Errc::kNotFound, "the run has no worker " + name};
  }
  if (is_last_of_kind(*worker)) {
    return invalid_argument(name + " is the last worker of its kind: add another one first");
  }
  return {};
}

Status WorkerTable::drain(const std::string& name) {
  TIDEMILL_RETURN_IF_ERROR(check_not_last(name));
  WorkerStatus& worker = workers_.at(name).status;
  if (worker.state != WorkerState::kRunning) {
    return {Errc::kUnavailable, name + " is not running"};
  }
  worker.state = WorkerState::kDraining;
  return {};
}

Status WorkerTable::remove(const std::string& name) {
  TIDEMILL_RETURN_IF_ERROR(check_not_last(name));
  workers_.erase(name);
  return {};
}

WorkerEnd WorkerTable::restart(Worker& worker, const Status& why, TimePoint now) const {
  WorkerStatus& status = worker.status;
  if (would_repeat(why)) {
    return fails_run(why.with_context(status.name));
  }
  if (now - worker.started_at >= limits_.stable_after) {
    status.deaths = 0;
  }
  if (++status.deaths > limits_.max_restarts) {
    const std::string often = " died " + std::to_string(status.deaths) + " times in a row";
    return fails_run(why_it_ended(why).with_context(status.name + often));
  }
  status.state = WorkerState::kWaiting;
  // The delay doubles with each end in a row: a worker that always fails then costs little.
  const std::uint32_t doublings = std::min(status.deaths - 1, 6U);
  return {WorkerEnd::Action::kRestart,
          limits_.delay * (1U << doublings),
          {},
          status.name + " died and will be restarted: " + why.message()};
}

WorkerEnd WorkerTable::ended(const std::string& name, const Status& why, TimePoint now) {
  const auto found = workers_.find(name);
  if (found == workers_.end()) {
    return {};  // it was removed
  }
  Worker& worker = found->second;
  WorkerEnd end;
  if (worker.status.state == WorkerState::kDraining) {
    end.wanted = why.ok();
    end.note =
        why.ok() ? name + " was drained" : name + " died while it was drained: " + why.message();
  } else if (worker.policy == FailurePolicy::kRestart) {
    return restart(worker, why, now);
  } else if (worker.policy == FailurePolicy::kFailRun) {
    return fails_run(why_it_ended(why).with_context(name));
  } else if (is_last_of_kind(worker.status)) {
    return fails_run(why_it_ended(why).with_context(name + ", the last worker of its kind"));
  } else {
    end.note = name + " died and is dropped: " + why_it_ended(why).message();
  }
  workers_.erase(found);
  return end;
}

std::vector<WorkerStatus> WorkerTable::workers() const {
  std::vector<WorkerStatus> all;
  for (const auto& [name, worker] : workers_) {
    all.push_back(worker.status);
  }
  return all;
}

}  // namespace tidemill::actors
