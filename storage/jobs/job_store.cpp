// SPDX-License-Identifier: Apache-2.0
#include "storage/jobs/job_store.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "base/text/quote.hpp"
#include "storage/jobs/job_directory_parts.hpp"
#include "storage/jobs/job_json.hpp"

namespace tidemill::storage {
namespace {

constexpr std::int64_t kNewest = std::numeric_limits<std::int64_t>::max();

// The columns that `read_job` reads.
#define TIDEMILL_JOB_COLUMNS                                                                      \
  "SELECT id, created_at, finished_at, state, spec, resolved, fine_tuned_model, trained_tokens, " \
  "estimated_finish, result_files, error_code, error_message, error_param FROM jobs "

Result<JobRecord> read_job(const Statement& row) {
  JobRecord job;
  job.id = row.text(0);
  const std::string location = "jobs.db: " + quote(job.id);
  job.created_at = row.integer(1);
  job.finished_at = row.integer(2);
  const auto state = parse_job_state(row.text(3));
  if (!state.has_value()) {
    return corrupt_data(location + ": unknown state");
  }
  job.state = *state;
  TIDEMILL_ASSIGN_OR_RETURN(job.spec, parse_spec(row.text(4), location));
  const std::string resolved = row.text(5);
  job.is_resolved = !resolved.empty();
  if (job.is_resolved) {
    TIDEMILL_ASSIGN_OR_RETURN(job.resolved, parse_hyperparameters(resolved, location));
  }
  job.fine_tuned_model = row.text(6);
  job.trained_tokens = row.integer(7);
  job.estimated_finish = row.integer(8);
  TIDEMILL_ASSIGN_OR_RETURN(job.result_files, parse_ids(row.text(9), location));
  job.error = {row.text(10), row.text(11), row.text(12)};
  return job;
}

Result<JobRecord> find_job(Database& database, const std::string& id) {
  TIDEMILL_ASSIGN_OR_RETURN(Statement row,
                            database.query(TIDEMILL_JOB_COLUMNS "WHERE id = ?1", id));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? read_job(row) : no_such("fine-tuning job", id);
}

Result<JobRecord> find_job_of_model(Database& database, const std::string& model) {
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement row,
      database.query(TIDEMILL_JOB_COLUMNS "WHERE fine_tuned_model = ?1 AND fine_tuned_model <> ''",
                     model));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? read_job(row) : no_such("fine-tuned model", model);
}

Result<JobEvent> read_event(const Statement& row) {
  const std::int64_t level = row.integer(2);
  const std::int64_t type = row.integer(3);
  if (level < 0 || level > 2 || type < 0 || type > 1) {
    return corrupt_data("jobs.db: " + quote(row.text(0)) + ": unknown level or type");
  }
  return JobEvent{
      row.text(0), row.integer(1), static_cast<EventLevel>(level), static_cast<EventType>(type),
      row.text(4), row.text(5)};
}

Result<JobCheckpoint> read_checkpoint(const Statement& row) {
  return JobCheckpoint{row.text(0), row.integer(1), row.integer(2), row.text(3), row.text(4)};
}

template <class Entry>
bool keeps_all(const Entry& /*entry*/) {
  return true;
}

// Reads the rows of a page, of which one more than `limit` was asked for. Leaves out those that
// `keeps` does not keep.
template <class Entry, class Read, class Keeps>
Status read_page(Statement& rows, std::uint32_t limit, Read read, Keeps keeps,
                 std::vector<Entry>& entries, bool& has_more) {
  for (;;) {
    TIDEMILL_ASSIGN_OR_RETURN(const bool found, rows.step());
    if (!found) {
      return {};
    }
    TIDEMILL_ASSIGN_OR_RETURN(Entry entry, read(rows));
    if (!keeps(entry)) {
      continue;
    }
    if (entries.size() == limit) {
      has_more = true;
      return {};
    }
    entries.push_back(std::move(entry));
  }
}

// Returns where a page begins: rows with smaller numbers belong to it.
Result<std::int64_t> number_before(Database& database, const char* sql, std::int64_t job,
                                   const std::string& after, const char* what) {
  if (after.empty()) {
    return kNewest;
  }
  TIDEMILL_ASSIGN_OR_RETURN(Statement row, database.query(sql, after, job));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? Result<std::int64_t>(row.integer(0)) : no_such(what, after);
}

Result<std::int64_t> count(Database& database, const char* sql, std::int64_t argument) {
  TIDEMILL_ASSIGN_OR_RETURN(Statement row, database.query(sql, argument));
  TIDEMILL_RETURN_IF_ERROR(row.step().status());
  return row.integer(0);
}

Status check_length(std::string_view name, const std::string& text) {
  return text.size() <= JobStore::kMaxDataBytes
             ? Status()
             : invalid_argument(std::string(name) + ": has " + std::to_string(text.size()) +
                                " bytes, and at most " + std::to_string(JobStore::kMaxDataBytes) +
                                " are stored");
}

Status check_event(const JobEvent& event) {
  TIDEMILL_RETURN_IF_ERROR(check_length("message", event.message));
  return check_length("data", event.data);
}

// Completes "a job that".
std::string_view condition_of(JobState state) {
  switch (state) {
    case JobState::kValidatingFiles: return "is being created";
    case JobState::kQueued: return "is queued";
    case JobState::kRunning: return "is running";
    case JobState::kPaused: return "is paused";
    case JobState::kSucceeded: return "has succeeded";
    case JobState::kFailed: return "has failed";
    case JobState::kCancelled: return "was cancelled";
  }
  return "";
}

// Completes "a job cannot" for a job that would be in `state`.
std::string_view transition_to(JobState state) {
  switch (state) {
    case JobState::kValidatingFiles: return "be created again";
    case JobState::kQueued: return "be queued";
    case JobState::kRunning: return "run";
    case JobState::kPaused: return "be paused";
    case JobState::kSucceeded: return "succeed";
    case JobState::kFailed: return "fail";
    case JobState::kCancelled: return "be cancelled";
  }
  return "";
}

// Applies a change to a job.
Status apply(const JobChange& change, JobRecord& job) {
  if (change.state.has_value()) {
    if (!may_follow(job.state, *change.state)) {
      return invalid_argument(job.id + ": a job that " + std::string(condition_of(job.state)) +
                              " cannot " + std::string(transition_to(*change.state)));
    }
    if (!change.event.has_value()) {
      return invalid_argument(job.id + ": a change of the state needs an event");
    }
    job.state = *change.state;
  }
  job.is_resolved = job.is_resolved || change.resolved.has_value();
  job.resolved = change.resolved.value_or(job.resolved);
  job.fine_tuned_model = change.fine_tuned_model.value_or(job.fine_tuned_model);
  job.trained_tokens = change.trained_tokens.value_or(job.trained_tokens);
  job.estimated_finish = change.estimated_finish.value_or(job.estimated_finish);
  job.result_files = change.result_files.value_or(job.result_files);
  job.error = change.error.value_or(job.error);
  if (change.state.has_value() && has_ended(job.state)) {
    job.finished_at = change.now;
    job.estimated_finish = 0;
  }
  TIDEMILL_RETURN_IF_ERROR(check_length("error.message", job.error.message));
  return change.event.has_value() ? check_event(*change.event) : Status();
}

Status update(Database& database, const JobRecord& job) {
  const std::string resolved = job.is_resolved ? to_json_text(job.resolved) : std::string();
  const std::string files = to_json_text(job.result_files);
  return database.execute(
      "UPDATE jobs SET finished_at = ?2, state = ?3, has_ended = ?4, resolved = ?5, "
      "fine_tuned_model = ?6, trained_tokens = ?7, estimated_finish = ?8, result_files = ?9, "
      "error_code = ?10, error_message = ?11, error_param = ?12 WHERE id = ?1",
      job.id, job.finished_at, job_state_name(job.state), std::int64_t{has_ended(job.state)},
      resolved, job.fine_tuned_model, job.trained_tokens, job.estimated_finish, files,
      job.error.code, job.error.message, job.error.param);
}

}  // namespace

// -- jobs -----------------------------------------------------------------------------------------

Status JobStore::check_file(std::string_view field, const std::string& id) {
  auto& database = *directory_->parts().database;
  TIDEMILL_ASSIGN_OR_RETURN(Statement row,
                            database.query("SELECT purpose FROM files WHERE id = ?1", id));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  if (!found) {
    return no_such("file", id).with_context(field);
  }
  return row.text(0) == kFineTunePurpose
             ? Status()
             : invalid_argument(std::string(field) + ": the purpose of the file must be " +
                                quote(kFineTunePurpose) + ", and is " + quote(row.text(0)));
}

// Removes the oldest jobs that have ended until there is room for one more.
// Evicts the oldest jobs that have ended, if a new one needs their room. Returns their ids.
Result<std::vector<std::string>> JobStore::make_room() {
  auto& database = *directory_->parts().database;
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::int64_t jobs,
      count(database, "SELECT count(*) FROM jobs WHERE number > ?1", std::int64_t{0}));
  const std::int64_t excess = jobs + 1 - std::int64_t{limits_.max_jobs};
  std::vector<std::string> evicted;
  if (excess <= 0) {
    return evicted;
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement rows,
      database.query("SELECT id FROM jobs WHERE has_ended = 1 ORDER BY number LIMIT ?1", excess));
  for (;;) {
    TIDEMILL_ASSIGN_OR_RETURN(const bool found, rows.step());
    if (!found) {
      break;
    }
    evicted.push_back(rows.text(0));
  }
  if (static_cast<std::int64_t>(evicted.size()) < excess) {
    return Status(Errc::kResourceExhausted, "the server has " + std::to_string(limits_.max_jobs) +
                                                " jobs that have not ended, its limit");
  }
  for (const std::string& id : evicted) {
    TIDEMILL_RETURN_IF_ERROR(database.execute("DELETE FROM jobs WHERE id = ?1", id));
  }
  return evicted;
}

Result<JobRecord> JobStore::create(const JobSpec& spec, std::int64_t now) {
  auto& parts = directory_->parts();
  auto& database = *parts.database;
  std::unique_lock lock(parts.mutex);
  JobRecord job;
  job.id = parts.make_id(kJobIdPrefix);
  job.created_at = now;
  job.spec = spec;
  if (spec.seed < 0) {
    job.spec.seed = static_cast<std::int64_t>(parts.random_bits() & 0x7FFFFFFFU);
  }
  const std::string text = to_json_text(job.spec);
  if (text.size() > kMaxSpecBytes) {
    return invalid_argument("the request has more than " + std::to_string(kMaxSpecBytes) +
                            " bytes");
  }
  Transaction transaction(database);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  TIDEMILL_RETURN_IF_ERROR(check_file("training_file", spec.training_file));
  if (!spec.validation_file.empty()) {
    TIDEMILL_RETURN_IF_ERROR(check_file("validation_file", spec.validation_file));
  }
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> evicted, make_room());
  TIDEMILL_RETURN_IF_ERROR(database.execute(
      "INSERT INTO jobs(id, created_at, finished_at, state, has_ended, training_file, "
      "validation_file, spec, resolved, fine_tuned_model, trained_tokens, estimated_finish, "
      "result_files, error_code, error_message, error_param, num_events) "
      "VALUES(?1, ?2, 0, ?3, 0, ?4, ?5, ?6, '', '', -1, 0, '[]', '', '', '', 0)",
      job.id, now, job_state_name(job.state), spec.training_file, spec.validation_file, text));
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(job.id));
  JobEvent created;
  created.created_at = now;
  created.message = "Created fine-tuning job: " + job.id;
  TIDEMILL_RETURN_IF_ERROR(insert_event(number, std::move(created)).status());
  TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  lock.unlock();
  for (const std::string& id : evicted) {
    // What remains after a crash or a failure is set aside by the owner of the runs.
    (void)remove_tree(parts.files, parts.root / "runs", id);
  }
  return job;
}

Result<std::int64_t> JobStore::number_of_job(const std::string& id) {
  auto& database = *directory_->parts().database;
  TIDEMILL_ASSIGN_OR_RETURN(Statement row,
                            database.query("SELECT number FROM jobs WHERE id = ?1", id));
  TIDEMILL_ASSIGN_OR_RETURN(const bool found, row.step());
  return found ? Result<std::int64_t>(row.integer(0)) : no_such("fine-tuning job", id);
}

Result<JobRecord> JobStore::find(const std::string& id) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  return find_job(*parts.database, id);
}

Result<JobPage> JobStore::list(const PageQuery& query) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::int64_t before,
      number_before(*parts.database, "SELECT number FROM jobs WHERE id = ?1 AND ?2 = ?2", 0,
                    query.after, "fine-tuning job"));
  const bool filters = !query.metadata.empty();
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement rows,
      parts.database->query(TIDEMILL_JOB_COLUMNS "WHERE number < ?1 ORDER BY number DESC LIMIT ?2",
                            before, filters ? kNewest : std::int64_t{query.limit} + 1));
  const auto keeps = [&](const JobRecord& job) {
    return std::includes(job.spec.metadata.begin(), job.spec.metadata.end(), query.metadata.begin(),
                         query.metadata.end());
  };
  JobPage page;
  TIDEMILL_RETURN_IF_ERROR(
      read_page(rows, query.limit, read_job, keeps, page.entries, page.has_more));
  return page;
}

Result<std::vector<JobRecord>> JobStore::unfinished() {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement rows,
      parts.database->query(TIDEMILL_JOB_COLUMNS "WHERE has_ended = 0 ORDER BY number"));
  std::vector<JobRecord> jobs;
  bool has_more = false;
  TIDEMILL_RETURN_IF_ERROR(
      read_page(rows, limits_.max_jobs, read_job, keeps_all<JobRecord>, jobs, has_more));
  return jobs;
}

Result<JobRecord> JobStore::change(const std::string& id, const JobChange& change) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  auto changed = try_change(id, change);
  if (!change.state.has_value()) {
    return changed;
  }
  const bool may_take = *change.state == JobState::kPaused || has_ended(*change.state);
  while (changed.status().code() == Errc::kResourceExhausted && may_take &&
         parts.reserve.give_back()) {
    changed = try_change(id, change);
  }
  if (changed.ok()) {
    parts.reserve.refill();
  }
  return changed;
}

// Changes a job if there is room. Requires the mutex.
Result<JobRecord> JobStore::try_change(const std::string& id, const JobChange& change) {
  auto& parts = directory_->parts();
  Transaction transaction(*parts.database);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  TIDEMILL_ASSIGN_OR_RETURN(JobRecord job, find_job(*parts.database, id));
  TIDEMILL_RETURN_IF_ERROR(apply(change, job));
  TIDEMILL_RETURN_IF_ERROR(update(*parts.database, job));
  if (change.event.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(id));
    TIDEMILL_RETURN_IF_ERROR(insert_event(number, *change.event).status());
  }
  if (change.checkpoint.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(id));
    TIDEMILL_RETURN_IF_ERROR(insert_checkpoint(number, *change.checkpoint).status());
  }
  TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  return job;
}

Result<JobRecord> JobStore::remove_model(const std::string& name, std::int64_t now) {
  auto& parts = directory_->parts();
  auto& database = *parts.database;
  const std::lock_guard lock(parts.mutex);
  Transaction transaction(database);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  TIDEMILL_ASSIGN_OR_RETURN(JobRecord job, find_job_of_model(database, name));
  job.fine_tuned_model.clear();
  TIDEMILL_RETURN_IF_ERROR(update(database, job));
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(job.id));
  TIDEMILL_RETURN_IF_ERROR(
      database.execute("DELETE FROM checkpoints WHERE job = ?1 AND model = ?2", number, name));
  JobEvent deleted;
  deleted.created_at = now;
  deleted.message = "The model " + name + " was deleted.";
  TIDEMILL_RETURN_IF_ERROR(insert_event(number, std::move(deleted)).status());
  TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  return job;
}

// -- events ---------------------------------------------------------------------------------------

Result<JobEvent> JobStore::insert_event(std::int64_t job, JobEvent event) {
  auto& parts = directory_->parts();
  auto& database = *parts.database;
  event.id = parts.make_id("ftevent-");
  TIDEMILL_RETURN_IF_ERROR(
      database.execute("INSERT INTO events(id, job, created_at, level, type, message, data) "
                       "VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                       event.id, job, event.created_at, static_cast<std::int64_t>(event.level),
                       static_cast<std::int64_t>(event.type), event.message, event.data));
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t newest,
                            count(database, "SELECT max(number) FROM events WHERE job = ?1", job));
  TIDEMILL_RETURN_IF_ERROR(
      database.execute("UPDATE jobs SET num_events = num_events + 1 WHERE number = ?1", job));
  TIDEMILL_RETURN_IF_ERROR(limit_events(job, newest));
  return event;
}

// Removes events beyond the limit: the oldest metrics, or else the oldest messages.
Status JobStore::limit_events(std::int64_t job, std::int64_t newest) {
  auto& database = *directory_->parts().database;
  std::int64_t removed = 0;
  for (const EventType type : {EventType::kMetrics, EventType::kMessage}) {
    TIDEMILL_ASSIGN_OR_RETURN(
        const std::int64_t events,
        count(database, "SELECT num_events FROM jobs WHERE number = ?1", job));
    const std::int64_t excess = events - removed - std::int64_t{limits_.max_events};
    if (excess > 0) {
      TIDEMILL_RETURN_IF_ERROR(database.execute(
          "DELETE FROM events WHERE number IN (SELECT number FROM events WHERE job = ?1 AND "
          "type = ?2 AND number < ?3 ORDER BY number LIMIT ?4)",
          job, static_cast<std::int64_t>(type), newest, excess));
      removed += database.num_changed();
    }
  }
  return removed == 0
             ? Status()
             : database.execute("UPDATE jobs SET num_events = num_events - ?2 WHERE number = ?1",
                                job, removed);
}

Result<JobEvent> JobStore::add_event(const std::string& job, JobEvent event) {
  TIDEMILL_RETURN_IF_ERROR(check_event(event));
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  Transaction transaction(*parts.database);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(job));
  TIDEMILL_ASSIGN_OR_RETURN(JobEvent added, insert_event(number, std::move(event)));
  TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  return added;
}

Result<JobEventPage> JobStore::events(const PageQuery& query) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t job, number_of_job(query.job));
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::int64_t before,
      number_before(*parts.database, "SELECT number FROM events WHERE id = ?1 AND job = ?2", job,
                    query.after, "event"));
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement rows,
      parts.database->query("SELECT id, created_at, level, type, message, data FROM events WHERE "
                            "job = ?1 AND number < ?2 ORDER BY number DESC LIMIT ?3",
                            job, before, std::int64_t{query.limit} + 1));
  JobEventPage page;
  TIDEMILL_RETURN_IF_ERROR(
      read_page(rows, query.limit, read_event, keeps_all<JobEvent>, page.entries, page.has_more));
  return page;
}

// -- checkpoints ----------------------------------------------------------------------------------

Result<JobCheckpoint> JobStore::insert_checkpoint(std::int64_t job, JobCheckpoint checkpoint) {
  TIDEMILL_RETURN_IF_ERROR(check_length("metrics", checkpoint.metrics));
  TIDEMILL_RETURN_IF_ERROR(
      check_length("fine_tuned_model_checkpoint", checkpoint.fine_tuned_model_checkpoint));
  auto& parts = directory_->parts();
  auto& database = *parts.database;
  checkpoint.id = parts.make_id("ftckpt-");
  TIDEMILL_RETURN_IF_ERROR(database.execute(
      "INSERT INTO checkpoints(id, job, created_at, step_number, metrics, model) "
      "VALUES(?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT(job, step_number) DO UPDATE SET "
      "created_at = excluded.created_at, metrics = excluded.metrics, model = excluded.model",
      checkpoint.id, job, checkpoint.created_at, checkpoint.step_number, checkpoint.metrics,
      checkpoint.fine_tuned_model_checkpoint));
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::int64_t checkpoints,
      count(database, "SELECT count(*) FROM checkpoints WHERE job = ?1", job));
  if (checkpoints > std::int64_t{limits_.max_checkpoints}) {
    return Status(
        Errc::kResourceExhausted,
        "the job has " + std::to_string(limits_.max_checkpoints) + " checkpoints, its limit");
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement row,
      database.query("SELECT id FROM checkpoints WHERE job = ?1 AND step_number = ?2", job,
                     checkpoint.step_number));
  TIDEMILL_RETURN_IF_ERROR(row.step().status());
  checkpoint.id = row.text(0);
  return checkpoint;
}

Result<JobCheckpoint> JobStore::add_checkpoint(const std::string& job, JobCheckpoint checkpoint) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  Transaction transaction(*parts.database);
  TIDEMILL_RETURN_IF_ERROR(transaction.begun());
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t number, number_of_job(job));
  auto added = insert_checkpoint(number, std::move(checkpoint));
  if (!added.ok()) {
    return added.status().with_context(job);
  }
  TIDEMILL_RETURN_IF_ERROR(transaction.commit());
  return added;
}

Result<JobCheckpointPage> JobStore::checkpoints(const PageQuery& query) {
  auto& parts = directory_->parts();
  const std::lock_guard lock(parts.mutex);
  TIDEMILL_ASSIGN_OR_RETURN(const std::int64_t job, number_of_job(query.job));
  TIDEMILL_ASSIGN_OR_RETURN(
      const std::int64_t before,
      number_before(*parts.database, "SELECT number FROM checkpoints WHERE id = ?1 AND job = ?2",
                    job, query.after, "checkpoint"));
  TIDEMILL_ASSIGN_OR_RETURN(
      Statement rows,
      parts.database->query(
          "SELECT id, created_at, step_number, metrics, model FROM checkpoints WHERE job = ?1 AND "
          "number < ?2 ORDER BY number DESC LIMIT ?3",
          job, before, std::int64_t{query.limit} + 1));
  JobCheckpointPage page;
  page.job = query.job;
  TIDEMILL_RETURN_IF_ERROR(read_page(rows, query.limit, read_checkpoint, keeps_all<JobCheckpoint>,
                                     page.entries, page.has_more));
  return page;
}

#undef TIDEMILL_JOB_COLUMNS

}  // namespace tidemill::storage
