// SPDX-License-Identifier: Apache-2.0
// Private to actors/tuning. What the tuner does with the store of jobs beyond single calls. Each
// function runs at the port of the store.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "storage/jobs/job_store.hpp"

namespace tidemill::actors {

/// A job whose run has ended.
struct EndedJob {
  storage::JobRecord job;
  bool is_changed = true;  // false: a client has cancelled or paused it before
};

/// Writes how the run of a job has ended. Changes nothing if the state of the job no longer permits
/// that, because a client has cancelled or paused it. Errors: those of `JobStore::change`.
[[nodiscard]] Result<EndedJob> end_job(storage::JobStore& jobs, const std::string& id,
                                       const storage::JobChange& change);

/// Checks that no job that has not ended uses the name `model`. `model_name` returns the name of a
/// job's model. Errors: `kInvalidArgument` naming the job; those of `JobStore::unfinished`.
[[nodiscard]] Status check_not_in_use(
    storage::JobStore& jobs, const std::string& model,
    const std::function<std::string(const storage::JobRecord&)>& model_name);

/// Returns the last 100 jobs that have models, newest first. Errors: those of `JobStore::list`.
[[nodiscard]] Result<std::vector<storage::JobRecord>> succeeded_jobs(storage::JobStore& jobs);

}  // namespace tidemill::actors
