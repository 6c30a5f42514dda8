// SPDX-License-Identifier: Apache-2.0
// How far a fine-tuning job has come when one of its runs begins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "actors/commit/run_commit.hpp"
#include "base/result.hpp"
#include "storage/jobs/job_store.hpp"

namespace tidemill::actors {

/// The name of the loss in the data of an event that reports a trained step. Events that report an
/// evaluation have none.
inline constexpr const char* kTrainLoss = "train_loss";

/// What earlier runs of a job have trained and reported. A run that resumes from a commit repeats
/// the steps after the commit, with the same results. It reports only steps later than the last
/// ones recorded here.
struct JobProgress {
  std::uint64_t step = 0;                            // of the commit from which the run resumes
  std::int64_t tokens = 0;                           // trained on up to that commit
  std::optional<std::uint64_t> last_trained_step;    // whose training has been reported
  std::optional<std::uint64_t> last_evaluated_step;  // whose evaluation has been reported
};

/// Returns on how many tokens a step was trained, from its metrics.
[[nodiscard]] std::int64_t trained_tokens(const std::map<std::string, double>& metrics);

/// Reads how far a job has come: from its events, from its last commit, and from the records in the
/// directory of its run.
/// Errors: as `JobStore::events` and `storage::for_each_line`.
[[nodiscard]] Result<JobProgress> read_job_progress(storage::JobStore& jobs, const std::string& job,
                                                    const std::filesystem::path& directory,
                                                    const std::optional<RunCommit>& last);

}  // namespace tidemill::actors
