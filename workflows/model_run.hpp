// SPDX-License-Identifier: Apache-2.0
// What every workflow that trains a model shares: opening it, restoring it, exporting it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "actors/commit/run_commit.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "actors/data/dataset_sequences.hpp"
#include "actors/recorder/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "actors/trainer/best_weights.hpp"
#include "base/clock.hpp"
#include "base/file.hpp"
#include "base/result.hpp"
#include "engines/runtime/factory.hpp"
#include "workflows/data_options.hpp"
#include "workflows/eval_options.hpp"
#include "workflows/extensions.hpp"
#include "workflows/memory_plan.hpp"
#include "workflows/run_options.hpp"
#include "workflows/train_options.hpp"

namespace tidemill::workflows {

/// What is known of a run once its files are open.
struct RunFacts {
  std::uint64_t steps = 0;          // at its end
  std::int64_t parameters = 0;      // of the model
  std::int64_t expected_bytes = 0;  // what its process is likely to hold at its peak
};

/// What rows of data are read with.
struct DataReading {
  std::string now;                              // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  std::function<void(const std::string&)> log;  // told of rows left out, a line each
};

/// What a run is given beside its options; all borrowed until it ends.
struct RunEnvironment {
  caf::actor_system& system;
  const Clock& clock;
  FileSystem& files;
  /// Where metrics, samples, checkpoints and the export go; exists.
  std::filesystem::path directory;
  std::shared_ptr<actors::CommitStore> commits;
  /// The incarnation after the last commit's.
  std::uint32_t first_incarnation = 0;
  std::string now;  // for chat templates, "YYYY-MM-DDTHH:MM:SS"
  actors::RecordObserver observer;
  /// Told once, when everything is open and the first step is about to begin. May be empty.
  std::function<void(const RunFacts&)> on_begin;
  /// Told of accidents, and of what a user should know, a line each.
  std::function<void(const std::string&)> log;
  std::function<void(const std::string&)> inform;
  /// Asked several times a second; true ends the run after the step in work.
  std::function<bool()> stop_asked;
  /// What an embedding program adds.
  Extensions extensions;
};

/// A model to be trained, and the adapter that is trained over it, if one is.
struct TrainedModel {
  engines::ModelFiles files;
  std::optional<engines::AdapterFiles> adapter;
};

/// Opens, or makes from random weights, what the options name.
/// Errors: one line naming file and field.
[[nodiscard]] Result<TrainedModel> open_trained_model(const ModelOptions& model,
                                                      const TrainOptions& train,
                                                      std::uint64_t seed);

/// Returns what commits of a run say about it.
[[nodiscard]] actors::RunInputs inputs_of(const TrainedModel& model, const ModelOptions& options,
                                          std::string data_digest);

/// Returns how rows of `data.train` are read, but for `epochs`.
[[nodiscard]] storage::DatasetOptions dataset_options(const DataOptions& data,
                                                      std::uint64_t run_seed);

[[nodiscard]] actors::OnLongPrompt on_long_prompt(const DataOptions& data);

/// Returns what a trainer makes of evaluations.
[[nodiscard]] actors::BestOptions best_options(const EvalOptions& eval, actors::Better better);

/// Returns how rows become conversations.
[[nodiscard]] actors::ChatForm chat_form(const DataOptions& data);

/// Opens a data set; logs how many rows were left out, and why the first were.
/// Errors: those of `Data::open`; `key` stands before a path that matches no file.
template <class Data>
[[nodiscard]] Result<std::shared_ptr<Data>> open_data_set(
    const storage::DatasetOptions& options, const std::string& key,
    const std::function<void(const std::string&)>& log) {
  auto opened = Data::open(options);
  if (!opened.ok()) {
    return opened.status().code() == Errc::kNotFound ? opened.status().with_context(key)
                                                     : opened.status();
  }
  std::shared_ptr<Data> data = std::move(opened).value();
  if (data->num_skipped() > 0) {
    std::string line = key + ": rows left out: " + std::to_string(data->num_skipped());
    for (const std::string& why : data->first_skipped()) {
      line += "; " + why;
    }
    log(line);
  }
  return data;
}

/// Returns the runtime's options for the training part of a run.
[[nodiscard]] engines::RuntimeOptions runtime_options(const TrainedModel& model,
                                                      const ModelOptions& options,
                                                      const TrainOptions& train,
                                                      std::int64_t total_optimizer_steps,
                                                      const DeviceOptions& device);

/// A runtime that stands where `origin` says, and its weights under the origin's incarnation.
struct OpenedRuntime {
  std::unique_ptr<engines::ModelRuntime> runtime;
  engines::Snapshot weights;
};

/// Opens a runtime at the origin of an incarnation.
/// Errors: of `open_runtime`; `kInvalidArgument` when the commit was made from another model.
[[nodiscard]] Result<OpenedRuntime> open_runtime_at(const TrainedModel& model,
                                                    const engines::RuntimeOptions& options,
                                                    const actors::RunOrigin& origin);

/// Warns, in one line, of more threads than the process can keep busy.
void warn_of_threads(const DeviceOptions& device, const RunEnvironment& run);

/// Says what a runtime computes with, in one line.
void inform_of_device(const engines::ModelRuntime& runtime, const RunEnvironment& run);

/// Tells what the run is likely to hold in memory, and what at most.
void inform_of_memory(const MemoryPlan& expected, const MemoryPlan& most,
                      const RunEnvironment& run);

/// Writes `weights` as `directory`/export: a model directory in the files' dtype, or
/// `directory`/export/adapter in PEFT layout.
/// Errors: those of `export_model` and `write_adapter`.
[[nodiscard]] Status export_weights(const TrainedModel& model, const ModelOptions& options,
                                    const engines::Snapshot& weights, const RunEnvironment& run);

/// Starts what `spawn` makes, and waits until it ends.
/// Errors: why it ended otherwise than by finishing.
[[nodiscard]] Result<actors::RunSummary> run_to_end(
    const RunEnvironment& run,
    const std::function<actors::SupervisorActor(std::function<void(Result<actors::RunSummary>)>)>&
        spawn);

}  // namespace tidemill::workflows
