// SPDX-License-Identifier: Apache-2.0
#include "workflows/model_run.hpp"

#include <condition_variable>
#include <mutex>
#include <utility>

#include <caf/all.hpp>

#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "base/tensor/float_tensor.hpp"
#include "base/text/mebibytes.hpp"
#include "engines/runtime/new_adapter.hpp"
#include "workflows/process_limits.hpp"

namespace tidemill::workflows {
namespace {

constexpr Duration kStopPollInterval = std::chrono::milliseconds(50);
constexpr const char* kAdapterKey = "train.adapter";

// Refuses the folder of a run, whose model is in a folder inside it, and that of an adapter.
Status check_is_model(const std::string& path) {
  const std::filesystem::path folder(path);
  const auto has = [&folder](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(folder / name, ignored);
  };
  if (has("adapter_config.json") && !has("config.json")) {
    return invalid_argument("model.path: `" + path +
                            "` is an adapter, not a model; give the model that it was trained " +
                            "over, and train.adapter: {kind: given, path: " + path + "}");
  }
  if (!has("run.yaml") || has("config.json")) {
    return {};
  }
  const std::string exported = (folder / "export").string();
  const std::string problem = "model.path: `" + path + "` is a run, not a model; ";
  if (has("export/config.json")) {
    return invalid_argument(problem + "its model is " + exported);
  }
  if (has("export/adapter")) {
    return invalid_argument(problem + "its adapter is " + exported +
                            "/adapter; write the model with it: tidemill export " + path +
                            " DIR --merge");
  }
  return invalid_argument(problem + "write its model: tidemill export " + path + " " + exported);
}

Result<engines::ModelFiles> open_files(const ModelOptions& model, std::uint64_t seed) {
  TIDEMILL_RETURN_IF_ERROR(check_is_model(model.path));
  std::error_code error;  // if the path cannot be examined, `open_model` reports why
  if (!std::filesystem::exists(model.path, error) && !error) {
    return invalid_argument("model.path: no folder or GGUF file `" + model.path +
                            "` (models are read from disk, not fetched by name)");
  }
  if (model.init == ModelInit::kFiles) {
    return engines::open_model(model.path);
  }
  TIDEMILL_ASSIGN_OR_RETURN(engines::ModelFiles files, engines::open_model_config(model.path));
  files.tensors = engines::random_model_tensors(files.config, seed);
  return files;
}

engines::ModuleSelector selector_of(const std::vector<std::string>& names) {
  using Kind = engines::ModuleSelector::Kind;
  const bool all_linear = names.size() == 1 && names[0] == "all-linear";
  return all_linear ? engines::ModuleSelector{Kind::kAllLinear, {}, {}}
                    : engines::ModuleSelector{Kind::kNames, names, {}};
}

engines::AdapterBias bias_of(TrainedBias bias) {
  switch (bias) {
    case TrainedBias::kNone: return engines::AdapterBias::kNone;
    case TrainedBias::kAll: return engines::AdapterBias::kAll;
    case TrainedBias::kLoraOnly: return engines::AdapterBias::kTargets;
  }
  return engines::AdapterBias::kNone;
}

engines::AdapterConfig config_of(const NewLora& options) {
  engines::AdapterConfig adapter;
  adapter.rank = options.rank;
  adapter.alpha = options.alpha.value_or(2.0 * options.rank);
  adapter.use_rslora = options.rslora;
  adapter.use_dora = options.dora;
  adapter.bias = bias_of(options.bias);
  adapter.targets = selector_of(options.target_modules);
  adapter.modules_to_save = options.modules_to_save;
  return adapter;
}

engines::AdapterConfig config_of(const NewIa3& options) {
  engines::AdapterConfig adapter;
  adapter.kind = engines::AdapterKind::kIa3;
  adapter.targets = selector_of(options.target_modules);
  adapter.feedforward = selector_of(options.feedforward_modules);
  adapter.modules_to_save = options.modules_to_save;
  return adapter;
}

Result<engines::AdapterFiles> new_adapter(engines::AdapterConfig config, const ModelOptions& model,
                                          const engines::ModelFiles& files, std::uint64_t seed) {
  config.base_model = model.path;
  return engines::make_adapter(config, files, compute_type(model, files.config), seed, kAdapterKey);
}

engines::LearningRateScheduleKind schedule_kind(LearningRateSchedule schedule) {
  switch (schedule) {
    case LearningRateSchedule::kConstant: return engines::LearningRateScheduleKind::kConstant;
    case LearningRateSchedule::kLinear: return engines::LearningRateScheduleKind::kLinear;
    case LearningRateSchedule::kCosine: return engines::LearningRateScheduleKind::kCosine;
  }
  return engines::LearningRateScheduleKind::kConstant;
}

// Passes the result of a run from the supervisor to the thread that waits for it.
struct PendingResult {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<actors::RunSummary>> result;
};

}  // namespace

DType default_compute_type(const engines::ModelConfig& config) {
  return config.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
}

DType compute_type(const ModelOptions& options, const engines::ModelConfig& config) {
  if (!options.dtype.has_value()) {
    return default_compute_type(config);
  }
  switch (*options.dtype) {
    case ModelDType::kBf16: return DType::kBF16;
    case ModelDType::kInt8: return DType::kBlockI8;
    case ModelDType::kNf4: return DType::kNf4;
    case ModelDType::kF32: break;
  }
  return DType::kF32;
}

Result<TrainedModel> open_trained_model(const ModelOptions& model, const TrainOptions& train,
                                        std::uint64_t seed) {
  TrainedModel opened;
  TIDEMILL_ASSIGN_OR_RETURN(opened.files, open_files(model, seed));
  if (!train.adapter.has_value()) {
    return opened;
  }
  if (const auto* lora = train.adapter->source.get<NewLora>()) {
    TIDEMILL_ASSIGN_OR_RETURN(opened.adapter,
                              new_adapter(config_of(*lora), model, opened.files, seed));
  } else if (const auto* ia3 = train.adapter->source.get<NewIa3>()) {
    TIDEMILL_ASSIGN_OR_RETURN(opened.adapter,
                              new_adapter(config_of(*ia3), model, opened.files, seed));
  } else if (const auto* given = train.adapter->source.get<GivenAdapter>()) {
    TIDEMILL_ASSIGN_OR_RETURN(opened.adapter,
                              engines::open_adapter(given->path, opened.files.config));
  }
  return opened;
}

Status check_adapter(const TrainOptions& train, const engines::ModelConfig& model) {
  if (!train.adapter.has_value()) {
    return {};
  }
  if (const auto* lora = train.adapter->source.get<NewLora>()) {
    return engines::check_new_adapter(config_of(*lora), model, kAdapterKey);
  }
  const auto* ia3 = train.adapter->source.get<NewIa3>();
  return ia3 == nullptr ? Status()
                        : engines::check_new_adapter(config_of(*ia3), model, kAdapterKey);
}

Result<engines::AdapterFiles> outline_adapter(const NewLora& lora,
                                              const engines::ModelConfig& model) {
  return engines::outline_adapter(config_of(lora), model, kAdapterKey);
}

Result<engines::AdapterFiles> open_requested_adapter(const actors::AdapterRequest& request,
                                                     const engines::ModelConfig& model) {
  if (!request.path.empty()) {
    return engines::open_adapter(request.path, model);
  }
  TIDEMILL_ASSIGN_OR_RETURN(engines::AdapterConfig config,
                            engines::parse_adapter_config(request.config, request.name));
  return engines::assemble_adapter(std::move(config), request.tensors, model, request.name);
}

storage::DatasetOptions dataset_options(const DataOptions& data, std::uint64_t run_seed) {
  storage::DatasetOptions options;
  for (const DataSource& source : data.train) {
    options.paths.push_back(source.path);
    if (source.weight.has_value()) {
      options.weights.push_back(*source.weight);
    }
  }
  options.on_error =
      data.on_error == OnBadRow::kSkip ? storage::OnRowError::kSkip : storage::OnRowError::kError;
  options.order = data.shuffle ? storage::RowOrder::kShuffled : storage::RowOrder::kFileOrder;
  options.seed = data.seed.value_or(run_seed);
  return options;
}

actors::OnLongPrompt on_long_prompt(const DataOptions& data) {
  switch (data.on_long_prompt) {
    case OnLongPrompt::kError: return actors::OnLongPrompt::kError;
    case OnLongPrompt::kSkip: return actors::OnLongPrompt::kSkip;
    case OnLongPrompt::kTruncateLeft: return actors::OnLongPrompt::kTruncateLeft;
  }
  return actors::OnLongPrompt::kError;
}

actors::BestOptions best_options(const EvalOptions& eval, actors::Better better) {
  return {eval.keep_best, static_cast<std::uint32_t>(eval.patience), eval.min_improvement, better};
}

actors::ChatOptions chat_options(const DataOptions& data) {
  const bool has_variables = !data.chat_template_kwargs.entries.empty();
  return {data.chat, data.system,
          has_variables ? json_of(data.chat_template_kwargs).to_text() : ""};
}

actors::RunInputs inputs_of(const TrainedModel& model, const ModelOptions& options,
                            const DataOptions& data, InputDigests digests) {
  actors::RunInputs inputs;
  for (const DataSource& source : data.train) {
    inputs.data_files += (inputs.data_files.empty() ? "" : ", ") + source.path;
  }
  inputs.data_digest = std::move(digests.data);
  inputs.tokenizer_digest = std::move(digests.tokenizer);
  inputs.model = absolute_path(options.path).string();
  inputs.random_weights = options.init == ModelInit::kRandom;
  if (model.adapter.has_value()) {
    inputs.adapter_config = engines::adapter_config_text(model.adapter->config);
  }
  return inputs;
}

Status check_no_folder(const std::vector<std::string>& paths, const std::string& key) {
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      const std::string files = (std::filesystem::path(path) / "*.jsonl").string();
      std::string message = key + ": `";
      message.append(path).append("` is a folder; name its files, such as \"").append(files);
      return invalid_argument(message + '"');
    }
  }
  return {};
}

Result<std::unique_ptr<actors::RecordFiles>> open_records(const RunEnvironment& run,
                                                          const actors::RunOrigin& origin,
                                                          const RecordOptions& options) {
  return actors::open_record_files(
      {run.directory, run.held_directory, run.checked_records},
      origin.commit.has_value() ? origin.commit->records : actors::RecordMarks{},
      static_cast<std::uint64_t>(options.samples_bytes));
}

engines::RuntimeOptions runtime_options(const TrainedModel& model, const ModelOptions& options,
                                        const TrainOptions& train,
                                        std::int64_t total_optimizer_steps,
                                        const DeviceOptions& device) {
  engines::RuntimeOptions runtime;
  runtime.threads = device.threads;
  runtime.compute = compute_type(options, model.files.config);
  runtime.kv_dtype = engines::cache_type(runtime.compute);
  runtime.adapter = model.adapter;
  engines::OptimizerOptions optimizer;
  optimizer.adamw = {train.betas[0], train.betas[1], train.epsilon};
  optimizer.schedule.kind = schedule_kind(train.schedule);
  optimizer.schedule.learning_rate = train.learning_rate;
  optimizer.schedule.warmup_steps = train.warmup_steps;
  optimizer.total_steps = total_optimizer_steps;
  optimizer.weight_decay = train.weight_decay;
  optimizer.weight_decay_exclude = train.weight_decay_exclude == WeightDecayExclude::kNone
                                       ? engines::DecayExclude::kNone
                                       : engines::DecayExclude::kNormsAndBiases;
  optimizer.max_grad_norm = train.max_grad_norm;
  runtime.optimizer = optimizer;
  return runtime;
}

Status check_total_steps(const TrainOptions& train, std::uint64_t steps,
                         const actors::CommitStore& commits) {
  const std::uint64_t committed = commits.last_step().value_or(0);
  if (steps >= committed) {
    return {};
  }
  return invalid_argument((train.steps.has_value() ? "train.steps: the run would end after step "
                                                   : "data.epochs: the run would end after step ") +
                          std::to_string(steps) + ", but its last commit is of step " +
                          std::to_string(committed));
}

Result<OpenedRuntime> open_runtime_at(const TrainedModel& model,
                                      const engines::RuntimeOptions& options,
                                      const actors::RunOrigin& origin) {
  OpenedRuntime opened;
  TIDEMILL_ASSIGN_OR_RETURN(opened.runtime, engines::open_runtime(model.files, options));
  opened.weights = opened.runtime->initial();
  if (origin.commit.has_value()) {
    const engines::Snapshot& committed = origin.commit->weights;
    if (committed.base.empty() && committed.base_digest != opened.weights.base_digest) {
      return invalid_argument("model.path: not the model that the run began with");
    }
    opened.weights = committed;
  }
  opened.weights.version.incarnation = origin.incarnation;
  if (origin.commit.has_value()) {
    TIDEMILL_RETURN_IF_ERROR(
        opened.runtime->policy_job()->load(opened.weights, origin.commit->optimizer));
  }
  if (origin.commit.has_value() || origin.incarnation != 0) {
    TIDEMILL_RETURN_IF_ERROR(
        opened.runtime->rollout().load(opened.weights, engines::WeightArrival::kFinish));
  }
  return opened;
}

void warn_of_device(const DeviceOptions& device, const RunEnvironment& run) {
  if (const std::string warning = engines::threads_warning(device.threads); !warning.empty()) {
    run.log("device.threads: " + warning);
  }
  if (const std::string warning =
          memory_warning(device, process_memory_limit(later_threads(device)));
      !warning.empty()) {
    run.log("device.memory_bytes: " + warning);
  }
}

void log_first_step(std::uint64_t step, std::uint64_t total_steps, const std::string& work,
                    const RunEnvironment& run) {
  if (step > total_steps) {
    run.inform("step " + std::to_string(total_steps) +
               " was the last one; train.steps=N gives the run more");
    return;
  }
  run.inform("step " + std::to_string(step) + ": " + work);
}

void log_loading(const ModelOptions& model, const RunEnvironment& run) {
  run.inform("loading " + model.path);
}

void log_device(const engines::ModelRuntime& runtime, const RunEnvironment& run) {
  run.inform("device: " + std::string(runtime.description()));
}

void log_memory_plans(const RunPlans& plans, const RunEnvironment& run) {
  const std::string chosen = policy_text(plans.maximum.budgets);
  run.inform("memory: " + mebibytes_text(plans.expected.total()) + " expected, " +
             mebibytes_text(plans.maximum.total()) + " at most" +
             (chosen.empty() ? "" : "; " + chosen) +
             (plans.expected.note.empty() ? "" : "; " + plans.expected.note));
}

Status export_weights(const TrainedModel& model, const ModelOptions& options,
                      const engines::Snapshot& weights, const RunEnvironment& run) {
  const std::filesystem::path target = run.directory / "export";
  if (!weights.adapter_digest.empty()) {
    TIDEMILL_RETURN_IF_ERROR(make_directory(run.files, target));
    return engines::write_adapter(run.files, target / "adapter", model.adapter->config,
                                  model.files.config, weights.adapter);
  }
  return engines::export_model(run.files, target, model.files.config,
                               with_types_of(weights.base, model.files.tensors), options.path);
}

Result<actors::RunSummary> run_to_end(
    const RunEnvironment& run,
    const std::function<actors::SupervisorActor(std::function<void(Result<actors::RunSummary>)>)>&
        spawn) {
  const auto pending = std::make_shared<PendingResult>();
  const actors::SupervisorActor supervisor = spawn([pending](Result<actors::RunSummary> result) {
    {
      const std::lock_guard lock(pending->mutex);
      pending->result = std::move(result);
    }
    pending->changed.notify_one();
  });
  caf::anon_send(supervisor, atom::start_v);
  bool stop_sent = false;
  bool cancel_sent = false;
  std::unique_lock lock(pending->mutex);
  while (!pending->changed.wait_for(lock, kStopPollInterval,
                                    [&] { return pending->result.has_value(); })) {
    if (!stop_sent && run.stop_asked && run.stop_asked()) {
      stop_sent = true;
      caf::anon_send(supervisor, atom::stop_v);
    }
    if (!cancel_sent && run.cancel_asked && run.cancel_asked()) {
      cancel_sent = true;
      caf::anon_send(supervisor, atom::cancel_v);
    }
  }
  return std::move(*pending->result);
}

}  // namespace tidemill::workflows
