// SPDX-License-Identifier: Apache-2.0
#include "actors/tuning/job_changes.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text/quote.hpp"

namespace tidemill::actors {
namespace {

using storage::JobRecord;
using storage::JobState;
using storage::JobStore;

// The most jobs whose adapters are served again after a start.
constexpr std::uint32_t kMaxServedJobs = 100;

}  // namespace

Result<RunEndOutcome> record_run_end(JobStore& jobs, const std::string& id,
                                     const storage::JobChange& change) {
  TIDEMILL_ASSIGN_OR_RETURN(JobRecord job, jobs.find(id));
  if (!may_follow(job.state, *change.state)) {
    return RunEndOutcome{std::move(job), false};
  }
  TIDEMILL_ASSIGN_OR_RETURN(job, jobs.change(id, change));
  return RunEndOutcome{std::move(job), true};
}

std::string unserved_text(const std::string& job, const Status& why) {
  if (why.code() != Errc::kResourceExhausted) {
    return "The model is not served: its adapter cannot be loaded.";
  }
  return "The model is not served: the memory for served adapters (serve.adapter_bytes) has no "
         "room for it. Its adapter is kept in the directory export/adapter of the run " +
         job +
         ". Delete models to free room (DELETE /v1/models/ID). The adapter can then be loaded with "
         "POST /v1/load_lora_adapter, or when the server starts again.";
}

Status check_not_in_use(JobStore& jobs, const std::string& model,
                        const std::function<std::string(const JobRecord&)>& model_name) {
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<JobRecord> unfinished, jobs.unfinished());
  const auto user = std::find_if(unfinished.begin(), unfinished.end(),
                                 [&](const JobRecord& job) { return model_name(job) == model; });
  return user == unfinished.end()
             ? Status()
             : invalid_argument("model: " + quote(model) + " is trained by the job " + user->id +
                                ", which is " + std::string(job_state_name(user->state)) +
                                "; cancel the job first");
}

Result<std::vector<JobRecord>> succeeded_jobs(JobStore& jobs) {
  std::vector<JobRecord> found;
  storage::PageQuery query;
  query.limit = kMaxServedJobs;
  for (bool more = true; more && found.size() < kMaxServedJobs;) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::JobPage page, jobs.list(query));
    for (const JobRecord& job : page.entries) {
      if (job.state == JobState::kSucceeded && !job.fine_tuned_model.empty() &&
          found.size() < kMaxServedJobs) {
        found.push_back(job);
      }
      query.after = job.id;
    }
    more = page.has_more;
  }
  return found;
}

}  // namespace tidemill::actors
