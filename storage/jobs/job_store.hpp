// SPDX-License-Identifier: Apache-2.0
// The fine-tuning jobs of a server, in its database.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "storage/jobs/job_directory.hpp"
#include "storage/jobs/job_record.hpp"

namespace tidemill::storage {

/// The limits of a job store.
struct JobLimits {
  /// If the store is full, a new job evicts the oldest job that has ended, with its events,
  /// checkpoints and the directory of its run.
  std::uint32_t max_jobs = 10'000;
  /// Maximum per job. Beyond it, a new event evicts the oldest metrics event, or the oldest message
  /// if there are no metrics.
  std::uint32_t max_events = 10'000;
  std::uint32_t max_checkpoints = 1'000;  // of each job; further ones are refused
};

/// A change of a job. An absent member leaves its field unchanged.
struct JobChange {
  std::int64_t now = 0;           // Unix time, seconds; becomes `finished_at` if the job ends
  std::optional<JobState> state;  // must be able to follow the current one
  /// What has happened. A change of the state needs an event. Its id is ignored.
  std::optional<JobEvent> event;
  std::optional<JobHyperparameters> resolved;
  std::optional<std::string> fine_tuned_model;
  std::optional<std::int64_t> trained_tokens;
  std::optional<std::int64_t> estimated_finish;  // reset to 0 when the job ends
  std::optional<std::vector<std::string>> result_files;
  std::optional<JobError> error;
  std::optional<JobCheckpoint> checkpoint;  // added as by `JobStore::add_checkpoint`
};

/// The jobs of a job directory, their events and checkpoints. The changes of a successful call are
/// durable; a failed call changes nothing.
///
/// Errors, of all calls: `kNotFound` for an unknown id; `kResourceExhausted` if the disk or the
/// database is full; `kCorruptData` or `kUnavailable` if the database is damaged or cannot be read.
/// Threads: safe to use concurrently. Calls wait for the disk.
class JobStore {
public:
  /// Maximum bytes of the JSON text of an event or a checkpoint, and of a message.
  static constexpr std::size_t kMaxDataBytes = std::size_t{64} << 10U;
  /// Maximum bytes of the JSON text of a `JobSpec`.
  static constexpr std::size_t kMaxSpecBytes = std::size_t{1} << 20U;

  JobStore(std::shared_ptr<JobDirectory> directory, const JobLimits& limits)
      : directory_(std::move(directory)), limits_(limits) {}

  /// Adds a job in state `kValidatingFiles`, with the event that says so. `now` is the Unix time in
  /// seconds. If `spec.seed` is negative, the store chooses a random one.
  /// Errors: `kNotFound` naming the field if a file does not exist; `kInvalidArgument` naming the
  /// field if a file has the wrong purpose; `kInvalidArgument` if the spec is too large;
  /// `kResourceExhausted` if `JobLimits::max_jobs` jobs have not ended.
  [[nodiscard]] Result<JobRecord> create(const JobSpec& spec, std::int64_t now);

  /// Returns the job with this id.
  [[nodiscard]] Result<JobRecord> find(const std::string& id);
  /// Returns a page of all jobs, newest first. Ignores `query.job`. A list by metadata takes time
  /// in proportion to the number of all jobs.
  [[nodiscard]] Result<JobPage> list(const PageQuery& query);
  /// Returns the jobs that have not ended, oldest first, at most `JobLimits::max_jobs`.
  [[nodiscard]] Result<std::vector<JobRecord>> unfinished();

  /// Changes a job, and adds the event and the checkpoint, in one transaction. Returns the changed
  /// job. If the disk is full, a change to `kPaused`, or to a state in which the job has ended,
  /// uses the disk space that the directory reserves.
  /// Errors: `kInvalidArgument` if the state cannot follow the current one, or a text is too long;
  /// those of `add_checkpoint`.
  [[nodiscard]] Result<JobRecord> change(const std::string& id, const JobChange& change);

  /// Removes the model `name` and the checkpoint of that name from the job that has made them, and
  /// adds an event. Returns the changed job. Errors: `kNotFound` if no job has a model of this
  /// name.
  [[nodiscard]] Result<JobRecord> remove_model(const std::string& name, std::int64_t now);

  /// Adds an event. Returns it with its id. Errors: `kInvalidArgument` if a text is too long.
  [[nodiscard]] Result<JobEvent> add_event(const std::string& job, JobEvent event);
  /// Returns a page of the events of `query.job`, newest first.
  [[nodiscard]] Result<JobEventPage> events(const PageQuery& query);

  /// Adds a checkpoint. If the job already has one for this step, replaces its contents and keeps
  /// its id, so a job that repeats steps after a crash lists each checkpoint once. Errors:
  /// `kInvalidArgument` if a text is too long; `kResourceExhausted` beyond
  /// `JobLimits::max_checkpoints`.
  [[nodiscard]] Result<JobCheckpoint> add_checkpoint(const std::string& job,
                                                     JobCheckpoint checkpoint);
  /// Returns a page of the checkpoints of `query.job`, the latest added first.
  [[nodiscard]] Result<JobCheckpointPage> checkpoints(const PageQuery& query);

private:
  [[nodiscard]] Result<JobRecord> try_change(const std::string& id, const JobChange& change);
  [[nodiscard]] Status check_file(std::string_view field, const std::string& id);
  [[nodiscard]] Result<std::vector<std::string>> make_room();
  [[nodiscard]] Result<JobEvent> insert_event(std::int64_t job, JobEvent event);
  [[nodiscard]] Result<JobCheckpoint> insert_checkpoint(std::int64_t job, JobCheckpoint checkpoint);
  [[nodiscard]] Status limit_events(std::int64_t job, std::int64_t newest);
  [[nodiscard]] Result<std::int64_t> number_of_job(const std::string& id);

  std::shared_ptr<JobDirectory> directory_;
  JobLimits limits_;
};

}  // namespace tidemill::storage
