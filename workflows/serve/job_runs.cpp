// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve/job_runs.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "actors/commit/checkpoint_commits.hpp"
#include "actors/tuning/job_progress.hpp"
#include "actors/tuning/run_note.hpp"
#include "base/files/file.hpp"
#include "base/files/without_directory.hpp"
#include "base/json/json.hpp"
#include "base/text/clip.hpp"
#include "base/text/quote.hpp"
#include "base/text/time_text.hpp"
#include "workflows/rl/run_rl.hpp"
#include "workflows/serve/job_config.hpp"
#include "workflows/serve/run_folders.hpp"
#include "workflows/serve/step_notes.hpp"
#include "workflows/sft/run_sft.hpp"

namespace tidemill::workflows {
namespace {

using actors::RunBegan;
using actors::RunEnded;
using actors::RunProgress;
using actors::RunReport;
using actors::RunWarning;
using storage::JobRecord;

constexpr const char* kConfigFile = "run.yaml";
constexpr std::size_t kMaxConfigBytes = std::size_t{2} << 20U;
// The shortest time between two reports of progress. Each is a durable change of the store.
constexpr Duration kReportInterval = std::chrono::milliseconds(250);
constexpr std::size_t kReadBytes = std::size_t{1} << 20U;
// The most warnings of a run that become events of its job, and their longest text.
constexpr std::uint64_t kMaxWarnings = 100;
constexpr std::size_t kMaxWarningBytes = 2000;

// Returns the number of lines of a stored file.
Result<std::uint64_t> count_lines(const ReadableFile& file) {
  std::string buffer;
  std::uint64_t lines = 0;
  char last = '\n';
  for (std::uint64_t offset = 0; offset < file.size_bytes(); offset += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(kReadBytes, file.size_bytes() - offset));
    TIDEMILL_RETURN_IF_ERROR(
        file.read_at(offset, std::as_writable_bytes(std::span(buffer.data(), buffer.size()))));
    lines += static_cast<std::uint64_t>(std::count(buffer.begin(), buffer.end(), '\n'));
    last = buffer.back();
  }
  return lines + (last != '\n' ? 1 : 0);
}

// Replaces paths of the server's files by the ids and names that clients know.
Status without_paths(const ServeOptions& server, const Status& status) {
  const std::filesystem::path jobs(server.serve.jobs_path.value_or(""));
  const std::filesystem::path model(server.model.path);
  const std::filesystem::path whole = absolute_path(model);
  Status shown = status;
  for (const auto& directory :
       {jobs / "files", jobs / "runs", jobs, whole.parent_path(), model.parent_path()}) {
    shown = directory.has_relative_path() ? without_directory(shown, directory) : shown;
  }
  return shown;
}

std::string line_of(const Json& value) {
  std::string line = value.to_line();
  line.pop_back();  // the newline
  return line;
}

// Says which metrics of a record clients see, under OpenAI's names where there is a counterpart. An
// evaluation takes all rows of the validation file, so its loss has both of OpenAI's names.
Json metrics_of(const actors::StepRecord& record) {
  Json::Object data{{"step", static_cast<std::int64_t>(record.step)}};
  for (const auto& [name, value] : record.metrics) {
    const std::string shown = name == "loss"        ? actors::kTrainLoss
                              : name == "eval_loss" ? "valid_loss"
                                                    : name;
    data.push_back({shown, value});
    if (name == "eval_loss") {
      data.push_back({"full_valid_loss", value});
    }
  }
  return data;
}

std::string progress_message(const actors::StepRecord& record, std::uint64_t steps) {
  const auto value = [&record](const char* name) {
    const auto found = record.metrics.find(name);
    return found == record.metrics.end() ? std::string()
                                         : std::to_string(found->second).substr(0, 8);
  };
  std::string text = "Step " + std::to_string(record.step) + "/" + std::to_string(steps) + ":";
  for (const auto& [name, label] :
       {std::pair("loss", " training loss="), std::pair("reward_mean", " mean reward="),
        std::pair("eval_loss", " validation loss="),
        std::pair("eval_mean_at_k", " validation reward=")}) {
    if (const std::string number = value(name); !number.empty()) {
      text += label + number;
    }
  }
  return text;
}

// Turns the records of a run into reports. A run that continues from a commit repeats the steps
// after it, with the same results: each step is reported once.
class Progress {
public:
  Progress(const Clock& clock, StepNotes notes, std::function<void(RunReport)> report)
      : clock_(clock), notes_(std::move(notes)), report_(std::move(report)) {}

  void continue_from(const actors::JobProgress& progress) {
    const std::lock_guard lock(mutex_);
    job_progress_ = progress;
  }

  void begin(const storage::JobHyperparameters& resolved, const RunFacts& facts) {
    const std::lock_guard lock(mutex_);
    steps_ = facts.steps;
    started_ = clock_.now();
    notes_.begin(job_progress_.step + 1, steps_, started_);
    report_(RunBegan{resolved, facts.steps, facts.max_bytes, facts.step});
  }

  void add(const actors::StepRecord& record) {
    const std::lock_guard lock(mutex_);
    const bool is_training = record.kind == "train";
    if (is_training && record.step > job_progress_.step) {
      job_progress_.step = record.step;
      job_progress_.tokens += actors::trained_tokens(record.metrics);
    }
    first_step_ = is_training && first_step_ == 0 ? record.step : first_step_;
    const Json data = metrics_of(record);
    (is_training ? trained_ : evaluated_) = {record.step, *data.if_object()};
    auto& reported =
        is_training ? job_progress_.last_trained_step : job_progress_.last_evaluated_step;
    const TimePoint now = clock_.now();
    if (is_training) {
      notes_.begin(record.step + 1, steps_, now);
    }
    const bool is_soon = is_training && record.step < steps_ && now - reported_ < kReportInterval;
    const bool is_repeated = reported.has_value() && record.step <= *reported;
    if (is_repeated || is_soon) {
      return;
    }
    reported = record.step;
    reported_ = now;
    report_(RunProgress{record.step, steps_, job_progress_.tokens, seconds_left(record.step, now),
                        progress_message(record, steps_), line_of(data)});
  }

  // Reports how far the step is, if it takes long. Called several times a second.
  void note_step() {
    const std::lock_guard lock(mutex_);
    if (const auto note = notes_.note(clock_.now())) {
      report_(*note);
    }
  }

  // Returns the metrics of the last step, and of its evaluation.
  [[nodiscard]] std::string last_metrics() {
    const std::lock_guard lock(mutex_);
    Json::Object metrics = trained_.metrics;
    if (evaluated_.step >= trained_.step) {
      for (const Json::Member& member : evaluated_.metrics) {
        if (member.name != "step" || metrics.empty()) {
          metrics.push_back(member);
        }
      }
    }
    return line_of(metrics);
  }

private:
  // The last record of a kind.
  struct Recorded {
    std::uint64_t step = 0;
    Json::Object metrics;
  };

  [[nodiscard]] double seconds_left(std::uint64_t step, TimePoint now) const {
    const double taken = std::chrono::duration<double>(now - started_).count();
    const auto done = static_cast<double>(step - std::min(step, first_step_) + 1);
    return taken / done * static_cast<double>(steps_ - std::min(step, steps_));
  }

  const Clock& clock_;
  StepNotes notes_;
  std::function<void(RunReport)> report_;
  std::mutex mutex_;
  std::uint64_t steps_ = 0;
  std::uint64_t first_step_ = 0;
  actors::JobProgress job_progress_;
  TimePoint started_;
  TimePoint reported_;
  Recorded trained_;
  Recorded evaluated_;
};

// Says that the limit of the memory is a job's part, and not the key `device.memory_bytes`.
Status of_job_memory(const Status& status) {
  constexpr std::string_view kField = "device.memory_bytes: ";
  const std::size_t at = status.message().find(kField);
  if (status.code() != Errc::kInvalidArgument || at == std::string::npos) {
    return status;
  }
  if (at > 0) {
    std::string text = status.message();
    return invalid_argument(text.replace(at, kField.size(), "for one job, "));
  }
  return invalid_argument("the job is too large for its part of the server's memory: " +
                          status.message().substr(kField.size()));
}

// Adds which limit of the server makes a row too long.
Status with_job_tokens(const JobRunDeps& deps, const Status& status) {
  if (status.ok() || status.message().find("(data.on_long_prompt: ") == std::string::npos) {
    return status;
  }
  const bool is_context = deps.max_tokens < deps.server.serve.tuning.job_tokens;
  return {status.code(), status.message() + "; a sequence of a job has at most " +
                             std::to_string(deps.max_tokens) + " tokens (" +
                             (is_context ? "the model's context" : "serve.tuning.job_tokens") +
                             ")"};
}

class JobRun final : public actors::TuningRun {
public:
  JobRun(std::shared_ptr<const JobRunDeps> deps, JobRecord job,
         std::function<void(RunReport)> report)
      : deps_(std::move(deps)),
        job_(std::move(job)),
        report_(std::move(report)),
        minibatch_progress_(std::make_shared<MinibatchProgress>()),
        progress_(
            deps_->clock,
            StepNotes(minibatch_progress_, job_.spec.method == storage::JobMethod::kSupervised),
            report_),
        thread_([this] {
          auto ended = run();
          note_end(ended);
          if (!ended.ok() && cancelled_) {
            report_(RunReport(Result<RunEnded>(RunEnded{true, {}, 0, "{}"})));
            return;
          }
          report_(RunReport(ended.ok() ? std::move(ended) : shown_to_client(ended.status())));
        }) {}
  ~JobRun() override {
    cancelled_ = true;
    thread_.join();
  }
  void request_stop() override { stopped_ = true; }
  void cancel() override { cancelled_ = true; }

private:
  [[nodiscard]] Result<RunEnded> run();
  void begin(const std::filesystem::path& directory, const storage::JobHyperparameters& resolved,
             const RunFacts& facts);
  void note(const std::filesystem::path& directory, const storage::RunStateNote& state);
  void note_end(const Result<RunEnded>& ended);
  void warn(const std::string& line);
  [[nodiscard]] Status shown_to_client(const Status& failure) const;
  [[nodiscard]] Result<std::string> config_text(const std::filesystem::path& directory,
                                                const JobInputs& inputs);
  [[nodiscard]] Result<JobInputs> inputs() const;

  std::shared_ptr<const JobRunDeps> deps_;
  JobRecord job_;
  std::function<void(RunReport)> report_;
  std::shared_ptr<MinibatchProgress> minibatch_progress_;
  Progress progress_;
  bool limits_sequences_ = false;  // the server, not the job, limits the length of a sequence
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::uint64_t> steps_ = 0;  // of the whole run; 0 before its first step
  std::atomic<std::uint64_t> warnings_ = 0;
  std::thread thread_;  // last: it uses the other members
};

// Writes state.json, which `tidemill show` and `tidemill runs` read.
void JobRun::note(const std::filesystem::path& directory, const storage::RunStateNote& state) {
  if (const Status written = actors::write_run_note(deps_->files, directory, state);
      !written.ok()) {
    deps_->log(job_.id + ": " + written.message());
  }
}

void JobRun::begin(const std::filesystem::path& directory,
                   const storage::JobHyperparameters& resolved, const RunFacts& facts) {
  steps_ = facts.steps;
  note(directory, {"running", facts.steps, ""});
  progress_.begin(resolved, facts);
}

void JobRun::note_end(const Result<RunEnded>& ended) {
  const std::filesystem::path directory = run_directory(deps_->server, job_.id);
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return;  // it could not be made
  }
  if (ended.ok()) {
    note(directory, {ended.value().stopped ? "stopped" : "finished", steps_, ""});
  } else if (cancelled_) {
    note(directory, {"stopped", steps_, "the run was ended within a step"});
  } else {
    note(directory, {"failed", steps_, ended.status().message()});
  }
}

// Names files as the client has, and says what the client can do.
Status JobRun::shown_to_client(const Status& failure) const {
  Status shown = without_paths(deps_->server, of_job_memory(failure));
  if (limits_sequences_) {
    shown = with_job_tokens(*deps_, shown);
  }
  for (const std::string& id : {job_.spec.training_file, job_.spec.validation_file}) {
    const auto file = deps_->store->find(id);
    if (!id.empty() && file.ok() && shown.message().starts_with(id + ':')) {
      shown = {shown.code(), file.value().filename + shown.message().substr(id.size())};
    }
  }
  return shown;
}

// Logs a warning and reports it, unless the run has reported `kMaxWarnings`. Called from any
// thread.
void JobRun::warn(const std::string& line) {
  deps_->log(job_.id + ": " + line);
  const std::uint64_t count = ++warnings_;
  if (count <= kMaxWarnings) {
    const Status shown = without_paths(deps_->server, invalid_argument(line));
    report_(RunWarning{clipped(shown.message(), kMaxWarningBytes)});
  } else if (count == kMaxWarnings + 1) {
    report_(RunWarning{"The run has more warnings. They are in the log of the server."});
  }
}

Result<JobInputs> JobRun::inputs() const {
  const storage::JobSpec& spec = job_.spec;
  JobInputs inputs;
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile training,
                            deps_->store->open_bytes(spec.training_file));
  TIDEMILL_ASSIGN_OR_RETURN(inputs.num_rows, count_lines(training));
  inputs.training_path = training.path().string();
  if (!spec.validation_file.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile validation,
                              deps_->store->open_bytes(spec.validation_file));
    inputs.validation_path = validation.path().string();
  }
  inputs.memory_bytes = deps_->memory_bytes;
  inputs.max_tokens = deps_->max_tokens;
  return inputs;
}

// Returns the configuration in the directory of the run, which is written when the run first
// starts.
Result<std::string> JobRun::config_text(const std::filesystem::path& directory,
                                        const JobInputs& inputs) {
  const std::filesystem::path path = directory / kConfigFile;
  auto written = read_text_file(path, kMaxConfigBytes);
  if (written.ok() || written.status().code() != Errc::kNotFound) {
    return written;
  }
  TIDEMILL_ASSIGN_OR_RETURN(std::string text, job_config(deps_->server, job_.spec, inputs));
  TIDEMILL_RETURN_IF_ERROR(write_file(deps_->files, path, text));
  return text;
}

Result<RunEnded> JobRun::run() {
  const std::filesystem::path directory = run_directory(deps_->server, job_.id);
  TIDEMILL_RETURN_IF_ERROR(make_directory(deps_->files, directory.parent_path()));
  TIDEMILL_RETURN_IF_ERROR(make_directory(deps_->files, directory));
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(deps_->files, directory));
  TIDEMILL_ASSIGN_OR_RETURN(const JobInputs all, inputs());
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, config_text(directory, all));
  TIDEMILL_ASSIGN_OR_RETURN(JobWorkflow workflow, deps_->parse_run(text, job_.id));
  limits_sequences_ = limit_sequences(deps_->max_tokens, workflow);
  std::error_code ignored;
  const bool exists = std::filesystem::exists(directory / "checkpoints" / "store.json", ignored);
  TIDEMILL_ASSIGN_OR_RETURN(
      std::unique_ptr<storage::CheckpointStore> opened,
      storage::CheckpointStore::open(
          {directory, exists ? "" : job_.id, storage::OnDamage::kUseNewestIntact}, deps_->files));
  const std::shared_ptr<storage::CheckpointStore> store = std::move(opened);
  const auto commits = actors::make_checkpoint_commits(store, directory, text);
  TIDEMILL_ASSIGN_OR_RETURN(const std::optional<actors::RunCommit> last, commits->load());
  TIDEMILL_ASSIGN_OR_RETURN(const actors::JobProgress progress,
                            actors::read_job_progress(*deps_->jobs, job_.id, directory, last));
  if (!exists && progress.last_trained_step.has_value()) {
    warn("The commits of the run are gone. The job starts again from its first step.");
  }
  progress_.continue_from(progress);
  const storage::JobHyperparameters resolved = resolve(job_.spec, all.num_rows);
  RunEnvironment run{deps_->system,
                     deps_->clock,
                     deps_->files,
                     directory,
                     commits,
                     last.has_value() ? last->weights.version.incarnation + 1 : 0,
                     local_time_text(job_.created_at),  // a run that continues sees the same
                     [this](const actors::StepRecord& record) { progress_.add(record); },
                     [&](const RunFacts& facts) { begin(directory, resolved, facts); },
                     [this](const std::string& line) { warn(line); },
                     [](const std::string&) {},
                     [this] {
                       progress_.note_step();
                       return stopped_.load();
                     },
                     {}};
  run.cancel_asked = [this] { return cancelled_.load(); };
  run.shared_device = deps_->device;
  run.shared_device->progress = minibatch_progress_;
  run.shared_device->public_name = tuned_model_name(deps_->model, job_);
  run.shared_device->created = job_.created_at;
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary,
                            std::holds_alternative<SftOptions>(workflow)
                                ? run_sft(std::get<SftOptions>(workflow), run)
                                : run_rl(std::get<RlOptions>(workflow), run));
  RunEnded ended;
  ended.stopped = summary.end == actors::RunEnd::kStopped;
  ended.adapter = (directory / "export" / "adapter").string();
  ended.steps = summary.weights.version.step;
  ended.metrics = progress_.last_metrics();
  return ended;
}

}  // namespace

actors::StartTuningRun make_job_runs(JobRunDeps deps) {
  return [shared = std::make_shared<const JobRunDeps>(std::move(deps))](
             const JobRecord& job, std::function<void(RunReport)> report) {
    return std::make_unique<JobRun>(shared, job, std::move(report));
  };
}

namespace {

// Returns whether `path` is `key`, or inside it.
bool is_within(std::string_view path, std::string_view key) {
  return path.starts_with(key) &&
         (path.size() == key.size() || path[key.size()] == '.' || path[key.size()] == '[');
}

// Removes the reward `command`, which requests may not use, from what an error offers.
std::string without_command(std::string text) {
  for (const std::string_view offer : {", command", "; did you mean command?"}) {
    if (const std::size_t at = text.find(offer); at != std::string::npos) {
      text.erase(at, offer.size());
    }
  }
  return text;
}

// Returns an error about a key of the configuration, "KEY: ..." or "SECTION: KEY: ...", as one
// about the field of the request that has set the key.
Status of_field(const Status& status, const storage::JobSpec& spec) {
  if (status.ok()) {
    return status;
  }
  std::string text = status.message();
  const std::size_t colon = std::min(text.find(": "), text.size());
  const std::string key = text.substr(0, colon);
  if (is_within(key, "reward")) {
    return {status.code(), "method.reinforcement.grader." + without_command(std::move(text))};
  }
  const auto overrides = parse_json(spec.overrides);
  const Json::Object* members = overrides.ok() ? overrides.value().if_object() : nullptr;
  const auto is_set = [members](const std::string& path) {
    return members != nullptr &&
           std::any_of(members->begin(), members->end(), [&path](const Json::Member& member) {
             return is_within(path, member.name) || is_within(member.name, path);
           });
  };
  const std::size_t next = text.find(": ", colon + 1);
  if (next != std::string::npos && is_set(key + '.' + text.substr(colon + 2, next - colon - 2))) {
    return {status.code(), "tidemill." + text.replace(colon, 2, ".")};
  }
  return {status.code(), (is_set(key) ? "tidemill." : "method: ") + text};
}

// Returns an error without the location before its first ": ".
Status without_location(const Status& status) {
  const std::size_t begin = status.message().find(": ");
  return begin == std::string::npos ? status
                                    : Status(status.code(), status.message().substr(begin + 2));
}

}  // namespace

Status check_job(const JobCheck& check, const storage::JobSpec& spec) {
  if (spec.model != check.model) {
    return {Errc::kNotFound, "model: must be " + quote(check.model) +
                                 "; a job trains a new adapter and cannot continue from another "
                                 "one"};
  }
  JobInputs inputs;
  inputs.training_path = "training.jsonl";
  inputs.validation_path = spec.validation_file.empty() ? "" : "validation.jsonl";
  const auto training = check.store->open_bytes(spec.training_file);
  if (!training.ok()) {
    return without_paths(check.server, training.status()).with_context("training_file");
  }
  TIDEMILL_ASSIGN_OR_RETURN(inputs.num_rows, count_lines(training.value()));
  inputs.max_tokens = max_job_tokens(check.server, check.files.config);
  storage::JobSpec seeded = spec;
  seeded.seed = std::max<std::int64_t>(spec.seed, 0);
  TIDEMILL_ASSIGN_OR_RETURN(const std::string text, job_config(check.server, seeded, inputs));
  const auto parsed = check.parse_run(text, "job");
  if (!parsed.ok()) {
    return of_field(without_location(parsed.status()), spec);
  }
  TIDEMILL_RETURN_IF_ERROR(check_rows(spec, inputs.num_rows));
  TIDEMILL_RETURN_IF_ERROR(
      of_field(check_options(parsed.value(), check.server, check.files.config), spec));
  const TrainOptions& train = std::visit(
      [](const auto& job) -> const auto& { return job.train.common; }, parsed.value());
  return of_field(check_rank(train, {check.server.model, check.files}, check.share), spec);
}

}  // namespace tidemill::workflows
