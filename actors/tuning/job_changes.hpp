// SPDX-License-Identifier: Apache-2.0
// Private to actors/tuning. Compound operations of the tuner on the job store. Each function runs
// at the port of the store.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "storage/jobs/job_store.hpp"

namespace tidemill::actors {

/// A job whose run has ended, and whether the store now says so.
struct RunEndOutcome {
  storage::JobRecord job;
  bool was_recorded = true;  // false: a client has cancelled or paused the job before
};

/// Records how the run of a job has ended. If a client has cancelled or paused the job meanwhile,
/// changes nothing and returns the job as it is. Errors: those of `JobStore::change`.
[[nodiscard]] Result<RunEndOutcome> record_run_end(storage::JobStore& jobs, const std::string& id,
                                                   const storage::JobChange& change);

/// Returns what clients are told about the model of a job that is not served, and what they can do.
/// `why` is why the device has not loaded the adapter.
[[nodiscard]] std::string unserved_text(const std::string& job, const Status& why);

/// Checks that no job that has not ended uses the name `model`. `model_name` returns the name of a
/// job's model. Errors: `kInvalidArgument` naming the job; those of `JobStore::unfinished`.
[[nodiscard]] Status check_not_in_use(
    storage::JobStore& jobs, const std::string& model,
    const std::function<std::string(const storage::JobRecord&)>& model_name);

/// Returns the last 100 jobs that have models, newest first. Errors: those of `JobStore::list`.
[[nodiscard]] Result<std::vector<storage::JobRecord>> succeeded_jobs(storage::JobStore& jobs);

}  // namespace tidemill::actors
