// SPDX-License-Identifier: Apache-2.0
// The requests and responses of /v1/fine_tuning/jobs.
// Source: `resources/fine_tuning/jobs/` and `types/fine_tuning/` of the openai Python package.
//
// Beyond OpenAI's API, a job may have the grader {"type": "tidemill", "reward": REWARD}, where
// REWARD is what the key `reward` of a run file takes, and a member `tidemill`: an object of dotted
// keys of a run file and the values that replace the server's.
#pragma once

#include <string>
#include <string_view>

#include "actors/gateway/openai/api_error.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::actors::openai {

/// The longest body of a request for a job.
inline constexpr std::size_t kMaxJobBytes = std::size_t{512} << 10U;

/// Parses the body of a request for a job. Checks its form, but not whether the model, the files,
/// the reward and the keys of `tidemill` exist and are valid. A reward of the kind `command` is
/// refused, because a client must not choose which programs the server runs.
/// Errors: 400 naming the field with its path, also for fields that are unknown or not supported.
[[nodiscard]] ApiResult<storage::JobSpec> parse_job(std::string_view body);

/// Parses the query of a request for a list of jobs (without `job`), or of events or checkpoints of
/// a job: `after` and `limit` (1 to 100, by default 20; for checkpoints 10 is OpenAI's default);
/// of a list of jobs also `metadata[KEY]`, the value that a job must have.
/// Errors: 400 naming the parameter.
[[nodiscard]] ApiResult<storage::PageQuery> parse_page_query(std::string_view target,
                                                             const std::string& job,
                                                             std::uint32_t default_limit = 20);

/// Returns a job object. The hyperparameters are those that the job uses, or before they are known
/// those that the client gave.
[[nodiscard]] Json to_json(const storage::JobRecord& job);
/// Returns a part of the list of jobs.
[[nodiscard]] Json to_json(const storage::JobPage& page);
/// Returns a part of the list of events of a job.
[[nodiscard]] Json to_json(const storage::JobEventPage& page);
/// Returns a part of the list of checkpoints of a job.
[[nodiscard]] Json to_json(const storage::JobCheckpointPage& page);

}  // namespace tidemill::actors::openai
