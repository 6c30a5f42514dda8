// SPDX-License-Identifier: Apache-2.0
// What all workflows that train a model share: opening, restoring and exporting it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/commit/run_commit.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "actors/data/dataset_sequences.hpp"
#include "actors/device/messages.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/trainer/best_weights.hpp"
#include "base/clock.hpp"
#include "base/files/file.hpp"
#include "base/result.hpp"
#include "engines/runtime/model_runtime.hpp"
#include "workflows/data_options.hpp"
#include "workflows/eval_options.hpp"
#include "workflows/extensions.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/processes/worker_program.hpp"
#include "workflows/run_options.hpp"
#include "workflows/shared_job.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// What is known about a run once its files are open. On the device of a server, the memory is
/// that of the run alone.
struct RunFacts {
  std::uint64_t steps = 0;          // at its end
  std::int64_t parameters = 0;      // of the model
  std::int64_t expected_bytes = 0;  // expected peak memory of its process
  std::int64_t max_bytes = 0;       // an upper bound of it
  std::string step = {};            // what a step trains on, such as "32 sequences"
};

/// What reading the data needs.
struct DataReading {
  std::string now;                              // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  std::function<void(const std::string&)> log;  // takes one line for rows that are left out
};

/// What a run needs in addition to its options. References are borrowed until the run ends.
struct RunEnvironment {
  caf::actor_system& system;
  const Clock& clock;
  FileSystem& files;
  /// Takes metrics, samples, checkpoints and the export. Must exist.
  std::filesystem::path directory;
  std::shared_ptr<actors::CommitStore> commits;
  /// One more than the incarnation of the last commit.
  std::uint32_t first_incarnation = 0;
  std::string now;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  actors::RecordObserver observer;
  /// Called when everything is open and the first step of an incarnation is about to begin, on a
  /// thread of the run. May be empty.
  std::function<void(const RunFacts&)> on_begin;
  /// Receive one line per call: `log` a warning, `inform` any other message for the user.
  std::function<void(const std::string&)> log;
  std::function<void(const std::string&)> inform;
  /// Polled several times a second. If it returns true, the run ends after the current step.
  std::function<bool()> stop_asked;
  /// Rewards and algorithms of an embedding program.
  Extensions extensions;
  /// `directory`, kept open, so that no other directory can take its place. Null: by its path.
  std::shared_ptr<const HeldDirectory> held_directory = nullptr;
  /// The record files of the last commit, if they have been read already.
  std::shared_ptr<storage::CheckedRecords> checked_records = nullptr;
  /// A device over whose base the run trains an adapter. If absent, the run opens its own.
  std::optional<SharedDevice> shared_device = std::nullopt;
  /// Polled like `stop_asked`. If it returns true, the run ends at once with `kUnavailable`, and
  /// what it did since its last commit is lost. May be empty.
  std::function<bool()> cancel_asked = {};
  /// The program of worker processes. If absent, the run has none, but may have threads in their
  /// place (`transport: loopback`).
  std::optional<WorkerProgram> worker_program = std::nullopt;
  /// Called before a run that has worker processes starts. Its argument returns a line about how
  /// they are at the time of the call, from any thread. May be empty.
  std::function<void(std::function<std::string()>)> on_processes = {};
};

/// A model to train, and the adapter to train over it, if any.
struct TrainedModel {
  engines::ModelFiles files;
  std::optional<engines::AdapterFiles> adapter;
};

/// Opens the model and the adapter that the options name, or makes them from random weights.
/// Errors: one line naming file and field. If `model.path` is the folder of a run, the line says
/// where the run's model is, or which command writes it.
[[nodiscard]] Result<TrainedModel> open_trained_model(const ModelOptions& model,
                                                      const TrainOptions& train,
                                                      std::uint64_t seed);

/// Checks that the new adapter that the options name, if any, suits the model, before any tensor of
/// it is made. Errors: those of `engines::check_new_adapter`, beginning with `train.adapter`.
[[nodiscard]] Status check_adapter(const TrainOptions& train, const engines::ModelConfig& model);

/// Returns the outline of a new LoRA adapter (`engines::outline_adapter`), to estimate its memory.
/// Errors: as `check_adapter`.
[[nodiscard]] Result<engines::AdapterFiles> outline_adapter(const NewLora& lora,
                                                            const engines::ModelConfig& model);

/// Opens the adapter of `model` that a request to load names or contains.
/// Errors: those of `engines::open_adapter`; about an adapter in the request, those of
/// `engines::parse_adapter_config` and `engines::assemble_adapter`, naming the adapter.
[[nodiscard]] Result<engines::AdapterFiles> open_requested_adapter(
    const actors::AdapterRequest& request, const engines::ModelConfig& model);

/// Returns the type that a model computes in if none is chosen: bf16 if its files hold bf16, else
/// f32.
[[nodiscard]] DType default_compute_type(const engines::ModelConfig& config);

/// Returns the type that `options` choose for the model, or the default type.
[[nodiscard]] DType compute_type(const ModelOptions& options, const engines::ModelConfig& config);

/// The digests of what a run reads apart from its model. A resumed run must read the same.
struct InputDigests {
  std::string data;
  std::string tokenizer;  // empty if the run needs none
};

/// Returns what the commits of a run record about its inputs.
[[nodiscard]] actors::RunInputs inputs_of(const TrainedModel& model, const ModelOptions& options,
                                          const DataOptions& data, InputDigests digests);

/// Returns how to read the rows of `data.train`. Leaves `epochs` at its default.
[[nodiscard]] storage::DatasetOptions dataset_options(const DataOptions& data,
                                                      std::uint64_t run_seed);

/// Returns what the options say about prompts that are too long.
[[nodiscard]] actors::OnLongPrompt on_long_prompt(const DataOptions& data);

/// Returns how the trainer uses evaluations. `better` says whether high or low values are good.
[[nodiscard]] actors::BestOptions best_options(const EvalOptions& eval, actors::Better better);

/// Returns how to turn rows into conversations.
[[nodiscard]] actors::ChatOptions chat_options(const DataOptions& data);

/// Checks that no path of `key` is a folder. Errors: `kInvalidArgument` naming the folder.
[[nodiscard]] Status check_no_folder(const std::vector<std::string>& paths, const std::string& key);

/// Opens a data set. Logs how many rows were left out, and the reasons for the first ones.
/// Errors: those of `check_no_folder` and `Data::open`. If a path matches no file, the message
/// begins with `key`.
template <class Data>
[[nodiscard]] Result<std::shared_ptr<Data>> open_data_set(
    const storage::DatasetOptions& options, const std::string& key,
    const std::function<void(const std::string&)>& log) {
  TIDEMILL_RETURN_IF_ERROR(check_no_folder(options.paths, key));
  auto opened = Data::open(options);
  if (!opened.ok()) {
    return opened.status().code() == Errc::kNotFound ? opened.status().with_context(key)
                                                     : opened.status();
  }
  std::shared_ptr<Data> data = std::move(opened).value();
  if (data->num_skipped() > 0) {
    std::string line = key + ": rows skipped: " + std::to_string(data->num_skipped());
    for (const std::string& why : data->first_skipped()) {
      line += "; " + why;
    }
    log(line);
  }
  return data;
}

/// Opens the record files of a run at `origin`. Errors: those of `actors::open_record_files`.
[[nodiscard]] Result<std::unique_ptr<actors::RecordFiles>> open_records(
    const RunEnvironment& run, const actors::RunOrigin& origin, const RecordOptions& options);

/// Returns the runtime options that the model, training and device sections determine.
[[nodiscard]] engines::RuntimeOptions runtime_options(const TrainedModel& model,
                                                      const ModelOptions& options,
                                                      const TrainOptions& train,
                                                      std::int64_t total_optimizer_steps,
                                                      const DeviceOptions& device);

/// A runtime restored to the origin of an incarnation, and its weights, whose version carries that
/// incarnation.
struct OpenedRuntime {
  std::unique_ptr<engines::ModelRuntime> runtime;
  engines::Snapshot weights;
};

/// Checks that a run of `steps` steps is not over before the last commit in `commits`.
/// Errors: `kInvalidArgument` naming both numbers, and the key of `train` or `data` that determines
/// the steps.
[[nodiscard]] Status check_total_steps(const TrainOptions& train, std::uint64_t steps,
                                       const actors::CommitStore& commits);

/// Opens a runtime and restores it to `origin`: the initial weights or those of a commit.
/// Errors: those of `open_runtime`; `kInvalidArgument` if the commit was made from another model.
[[nodiscard]] Result<OpenedRuntime> open_runtime_at(const TrainedModel& model,
                                                    const engines::RuntimeOptions& options,
                                                    const actors::RunOrigin& origin);

/// Logs a warning if `device` asks for more threads than the process can keep busy, and another if
/// it allows more memory than the process can have.
void warn_of_device(const DeviceOptions& device, const RunEnvironment& run);

/// Logs that the run loads its weights now. A refused run prints nothing but the reason, so this
/// follows all checks, including those of the last commit.
void log_loading(const ModelOptions& model, const RunEnvironment& run);

/// Logs that the run now does `work` for the step `step`, the next one, so that the user knows what
/// to wait for until the first row of the table. If that is after the last step, logs that instead.
void log_first_step(std::uint64_t step, std::uint64_t total_steps, const std::string& work,
                    const RunEnvironment& run);

/// Logs one line that describes what the runtime computes with.
void log_device(const engines::ModelRuntime& runtime, const RunEnvironment& run);

/// Logs the expected and the maximum memory of the run, one line each.
void log_memory_plans(const RunPlans& plans, const RunEnvironment& run);

/// Exports `weights`: a model to `run.directory`/export, in the dtypes of the model's files, or an
/// adapter to `run.directory`/export/adapter, in the PEFT layout.
/// Errors: those of `export_model` and `write_adapter`.
[[nodiscard]] Status export_weights(const TrainedModel& model, const ModelOptions& options,
                                    const engines::Snapshot& weights, const RunEnvironment& run);

/// Starts the supervisor that `spawn` returns and blocks until the run ends. `spawn` passes its
/// argument to the supervisor as `SupervisorDeps::on_end`.
/// Errors: the reason if the run failed.
[[nodiscard]] Result<actors::RunSummary> run_to_end(
    const RunEnvironment& run,
    const std::function<actors::SupervisorActor(std::function<void(Result<actors::RunSummary>)>)>&
        spawn);

}  // namespace tidemill::workflows
