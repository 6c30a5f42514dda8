// SPDX-License-Identifier: Apache-2.0
#include "actors/tuning/job_progress.hpp"

#include <algorithm>

#include "base/json/json.hpp"
#include "storage/run_files/lines.hpp"
#include "storage/run_files/metrics_line.hpp"

namespace tidemill::actors {
namespace {

constexpr std::uint32_t kEventsOfPage = 1000;

// Returns how many tokens the steps before a commit were trained on, as its records say.
Result<std::int64_t> committed_tokens(const std::filesystem::path& directory,
                                      const storage::RecordMarks& marks) {
  std::int64_t tokens = 0;
  if (marks.metrics_bytes > 0) {
    TIDEMILL_RETURN_IF_ERROR(
        storage::for_each_line(directory / storage::kMetricsFile, marks.metrics_bytes,
                               [&tokens](std::string_view text) -> Status {
                                 TIDEMILL_ASSIGN_OR_RETURN(const storage::MetricsLine line,
                                                           storage::parse_metrics_line(text));
                                 tokens += line.kind == "train" ? trained_tokens(line.metrics) : 0;
                                 return {};
                               }));
  }
  return tokens;
}

// Finds the last steps that events have reported.
Status find_reported(storage::JobStore& jobs, const std::string& job, JobProgress& progress) {
  storage::PageQuery query{job, "", kEventsOfPage};
  for (;;) {
    TIDEMILL_ASSIGN_OR_RETURN(const storage::JobEventPage page, jobs.events(query));
    for (const storage::JobEvent& event : page.entries) {
      if (event.type != storage::EventType::kMetrics) {
        continue;
      }
      TIDEMILL_ASSIGN_OR_RETURN(const Json data, parse_json(event.data));
      const Json* step = data.find("step");
      const std::int64_t* number = step == nullptr ? nullptr : step->if_integer();
      if (number != nullptr && *number >= 0) {
        auto& last = data.find(kTrainLoss) != nullptr ? progress.last_trained_step
                                                      : progress.last_evaluated_step;
        last = std::max(last.value_or(0), static_cast<std::uint64_t>(*number));
      }
    }
    if (!page.has_more ||
        (progress.last_trained_step.has_value() && progress.last_evaluated_step.has_value())) {
      return {};
    }
    query.after = page.entries.back().id;
  }
}

}  // namespace

std::int64_t trained_tokens(const std::map<std::string, double>& metrics) {
  const auto metric = [&metrics](const char* name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? 0.0 : found->second;
  };
  return static_cast<std::int64_t>(metric("batch_tokens") + metric("response_tokens"));
}

Result<JobProgress> read_job_progress(storage::JobStore& jobs, const std::string& job,
                                      const std::filesystem::path& directory,
                                      const std::optional<RunCommit>& last) {
  JobProgress progress;
  if (last.has_value()) {
    progress.step = last->weights.version.step;
    TIDEMILL_ASSIGN_OR_RETURN(progress.tokens, committed_tokens(directory, last->records));
  }
  TIDEMILL_RETURN_IF_ERROR(find_reported(jobs, job, progress));
  return progress;
}

}  // namespace tidemill::actors
