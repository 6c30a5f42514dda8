// SPDX-License-Identifier: Apache-2.0
// Uploaded files, fine-tuning jobs, their events and their checkpoints, as plain data. The names
// and the meaning of the members are those of OpenAI's API. The job structs can be sent in
// messages; `StoredFile` and `FilePage` cannot.
//
// An empty string or a time of 0 means absent, unless a comment says otherwise. All times are Unix
// times in seconds. Members that are "JSON text" hold one JSON document in one line, or nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill::storage {

// -- files ----------------------------------------------------------------------------------------

/// The purpose of a file that a client uploads for fine-tuning.
inline constexpr std::string_view kFineTunePurpose = "fine-tune";
/// The purpose of a file that the server makes: the metrics of a job.
inline constexpr std::string_view kResultsPurpose = "fine-tune-results";

/// The metadata of a stored file.
struct StoredFile {
  std::string id;  // "file-" and 24 letters and digits
  std::string filename;
  std::string purpose;
  std::uint64_t bytes = 0;
  std::int64_t created_at = 0;
  friend bool operator==(const StoredFile&, const StoredFile&) = default;
};

// -- jobs -----------------------------------------------------------------------------------------

/// The states of a job. `may_follow` lists the transitions.
enum class JobState : std::uint8_t {
  kValidatingFiles,  // is being created; a server queues it in the same step
  kQueued,           // waits to run; the rows of its files have not been checked
  kRunning,          // checks the rows first, so bad rows fail a running job
  kPaused,           // by a request; a resumed job is queued
  kSucceeded,
  kFailed,
  kCancelled,
};

/// Returns the name of a state in the API, such as "validating_files".
[[nodiscard]] std::string_view job_state_name(JobState state) noexcept;
/// Returns the state of this name, or nullopt.
[[nodiscard]] std::optional<JobState> parse_job_state(std::string_view name) noexcept;
/// Returns whether a job in this state never changes its state again.
[[nodiscard]] bool has_ended(JobState state) noexcept;
/// Returns whether a job may change from state `from` to state `to`:
///
///   validating_files -> queued, failed, cancelled
///   queued           -> running, paused, failed, cancelled
///   running          -> paused, queued (the server has restarted), succeeded, failed, cancelled
///   paused           -> queued, failed, cancelled
[[nodiscard]] bool may_follow(JobState from, JobState to) noexcept;

/// How a job trains.
enum class JobMethod : std::uint8_t { kSupervised, kReinforcement };
/// Returns "supervised" or "reinforcement".
[[nodiscard]] std::string_view job_method_name(JobMethod method) noexcept;

/// The hyperparameters of a job. 0 means that the server chooses the value ("auto").
struct JobHyperparameters {
  std::int64_t batch_size = 0;
  std::int64_t n_epochs = 0;
  double learning_rate_multiplier = 0.0;
  std::int64_t eval_interval = 0;  // steps between evaluations; of reinforcement
  std::int64_t eval_samples = 0;   // responses to each prompt of an evaluation; of reinforcement
  friend bool operator==(const JobHyperparameters&, const JobHyperparameters&) = default;
};

/// What computes the rewards of a reinforcement job.
enum class GraderKind : std::uint8_t {
  kNone,         // of a supervised job
  kStringCheck,  // compares two texts
  kReward,       // a reward of a run file (docs/rewards.md)
};
/// How a `kStringCheck` compares `input` with `reference`.
enum class StringOperation : std::uint8_t {
  kEq,     // equal
  kNe,     // not equal
  kLike,   // the input contains the reference
  kIlike,  // as `kLike`, without regard to case
};
/// Returns "eq", "ne", "like" or "ilike".
[[nodiscard]] std::string_view string_operation_name(StringOperation operation) noexcept;

/// A grader.
struct JobGrader {
  GraderKind kind = GraderKind::kNone;
  // Of a string check. The texts may contain templates, such as "{{sample.output_text}}".
  std::string name;
  StringOperation operation = StringOperation::kEq;
  std::string input;
  std::string reference;
  std::string reward;  // of a `kReward`: JSON text, an object or a list as the key `reward` takes
  friend bool operator==(const JobGrader&, const JobGrader&) = default;
};

/// What a client asks for.
struct JobSpec {
  std::string model;
  std::string training_file;    // id of a file
  std::string validation_file;  // id of a file, or empty
  std::string suffix;
  std::int64_t seed = -1;  // -1: the store draws one
  std::map<std::string, std::string> metadata;
  JobMethod method = JobMethod::kSupervised;
  JobHyperparameters hyperparameters;  // as given
  JobGrader grader;
  std::string overrides;  // JSON text: an object of dotted keys of a run file and their values
  friend bool operator==(const JobSpec&, const JobSpec&) = default;
};

/// Why a job has failed.
struct JobError {
  std::string code;  // empty: no error
  std::string message;
  std::string param;
  friend bool operator==(const JobError&, const JobError&) = default;
};

/// A job.
struct JobRecord {
  std::string id;  // "ftjob-" and 24 letters and digits
  std::int64_t created_at = 0;
  std::int64_t finished_at = 0;
  JobSpec spec;  // its seed is at least 0
  JobState state = JobState::kValidatingFiles;
  bool is_resolved = false;
  JobHyperparameters resolved;  // the values that the job uses; if `is_resolved`
  std::string fine_tuned_model;
  std::int64_t trained_tokens = -1;  // -1: absent
  std::int64_t estimated_finish = 0;
  std::vector<std::string> result_files;  // ids
  JobError error;
  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

/// The level of an event.
enum class EventLevel : std::uint8_t { kInfo, kWarn, kError };
/// Returns "info", "warn" or "error".
[[nodiscard]] std::string_view event_level_name(EventLevel level) noexcept;

/// The kind of an event.
enum class EventType : std::uint8_t { kMessage, kMetrics };
/// Returns "message" or "metrics".
[[nodiscard]] std::string_view event_type_name(EventType type) noexcept;

/// Something that has happened to a job.
struct JobEvent {
  std::string id;  // "ftevent-" and 24 letters and digits; empty in an event to be added
  std::int64_t created_at = 0;
  EventLevel level = EventLevel::kInfo;
  EventType type = EventType::kMessage;
  std::string message;
  std::string data;  // JSON text: an object
  friend bool operator==(const JobEvent&, const JobEvent&) = default;
};

/// Weights that a job has made and that can be used.
struct JobCheckpoint {
  std::string id;  // "ftckpt-" and 24 letters and digits; empty in a checkpoint to be added
  std::int64_t created_at = 0;
  std::int64_t step_number = 0;
  std::string metrics;                      // JSON text: an object of numbers
  std::string fine_tuned_model_checkpoint;  // the name of the model
  friend bool operator==(const JobCheckpoint&, const JobCheckpoint&) = default;
};

// -- lists ----------------------------------------------------------------------------------------

/// A part of a list.
struct PageQuery {
  std::string job;    // of a list of events or checkpoints: the id of the job
  std::string after;  // the id of the entry before the first one; empty: from the newest one
  std::uint32_t limit = 20;
  /// Of a list of jobs: only those that have all these metadata.
  std::map<std::string, std::string> metadata = {};
};

/// The entries of a part of a list, newest first.
struct JobPage {
  std::vector<JobRecord> entries;
  bool has_more = false;  // older entries exist
};
struct JobEventPage {
  std::vector<JobEvent> entries;
  bool has_more = false;
};
struct JobCheckpointPage {
  std::string job;
  std::vector<JobCheckpoint> entries;
  bool has_more = false;
};
struct FilePage {
  std::vector<StoredFile> entries;
  bool has_more = false;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobHyperparameters& x) {
  return f(x.batch_size, x.n_epochs, x.learning_rate_multiplier, x.eval_interval, x.eval_samples);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobGrader& x) {
  return f(x.kind, x.name, x.operation, x.input, x.reference, x.reward);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobSpec& x) {
  return f(x.model, x.training_file, x.validation_file, x.suffix, x.seed, x.metadata, x.method,
           x.hyperparameters, x.grader, x.overrides);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobError& x) {
  return f(x.code, x.message, x.param);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobRecord& x) {
  return f(x.id, x.created_at, x.finished_at, x.spec, x.state, x.is_resolved, x.resolved,
           x.fine_tuned_model, x.trained_tokens, x.estimated_finish, x.result_files, x.error);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobEvent& x) {
  return f(x.id, x.created_at, x.level, x.type, x.message, x.data);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobCheckpoint& x) {
  return f(x.id, x.created_at, x.step_number, x.metrics, x.fine_tuned_model_checkpoint);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PageQuery& x) {
  return f(x.job, x.after, x.limit, x.metadata);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobPage& x) {
  return f(x.entries, x.has_more);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobEventPage& x) {
  return f(x.entries, x.has_more);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, JobCheckpointPage& x) {
  return f(x.job, x.entries, x.has_more);
}

}  // namespace tidemill::storage
