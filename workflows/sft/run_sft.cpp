// SPDX-License-Identifier: Apache-2.0
#include "workflows/sft/run_sft.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <caf/all.hpp>

#include "actors/algorithm/algorithm.hpp"
#include "actors/data/dataset_sequences.hpp"
#include "actors/device/spawn.hpp"
#include "actors/supervised/spawn.hpp"
#include "actors/supervisor/spawn.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/sft/sft_settings.hpp"

namespace tidemill::workflows {
namespace {

// The engines and record files of one incarnation. One of `opened` and `shared` is set.
struct SftEngines {
  OpenedRuntime opened;
  std::unique_ptr<SharedJob> shared;
  std::shared_ptr<actors::RecordFiles> records;

  [[nodiscard]] engines::Snapshot& weights() {
    SharedJob* job = shared.get();
    return job != nullptr ? job->weights : opened.weights;
  }
};

// Published weights are held for the last step and for the next one.
constexpr std::int64_t kSnapshots = 2;

// Returns the mean length of `lengths`, rounded up to whole cache pages. Units: positions.
std::int64_t in_pages(const actors::Lengths& lengths) {
  const auto rows = static_cast<std::int64_t>(std::ceil(lengths.mean()));
  return (rows + engines::kPageTokens - 1) / engines::kPageTokens * engines::kPageTokens;
}

// What a run opens once and keeps across its incarnations.
struct SftRun {
  TrainedModel model;
  std::shared_ptr<actors::SequenceReader> reader;
  std::shared_ptr<const std::vector<engines::TrainSequence>> eval_sequences;  // null: none
  InputDigests digests;
  std::uint64_t steps = 0;
  actors::Lengths lengths;       // rows that each sequence takes in training
  actors::Lengths eval_lengths;  // the same for `data.eval`
  RunPlans plans;
  std::unique_ptr<actors::WorkPort> device_port;
  std::unique_ptr<actors::WorkPort> io_port;
  std::unique_ptr<actors::WorkPort> commit_port;
  std::unique_ptr<actors::WorkPort> read_port;
  bool shares_base = false;  // trains on the device of a server
};

// Returns the parts of the load that all supervised runs share: nothing is generated, and published
// weights are not served.
engines::MemoryLoad sft_load(const SftRun& opened) {
  engines::MemoryLoad load;
  load.shares_base = opened.shares_base;
  load.rollout_tokens = 0;
  load.sampled_tokens = 0;
  load.publishes = false;
  load.snapshots = kSnapshots;
  return load;
}

actors::DatasetSequenceOptions sequence_options(const SftOptions& options,
                                                const engines::ModelConfig& config,
                                                const DataReading& how, actors::Lengths& lengths,
                                                std::string& tokenizer_digest) {
  actors::DatasetSequenceOptions sequences;
  sequences.max_tokens = options.data.max_prompt_tokens.value_or(config.max_positions);
  sequences.on_long = on_long_prompt(options.data);
  sequences.chat = chat_options(options.data);
  sequences.vocab_size = config.vocab_size;
  sequences.model_path = options.model.path;
  sequences.now = how.now;
  sequences.log = how.log;
  sequences.on_row = [&lengths](std::int64_t tokens, const storage::RowLocation& location) {
    lengths.add(tokens, location);
  };
  sequences.on_tokenizer = [&tokenizer_digest](const engines::Tokenizer& tokenizer) {
    tokenizer_digest = tokenizer.digest();
  };
  return sequences;
}

// Reads all of `data.eval`, in the order of the files.
Status open_eval_data(const SftOptions& options, const engines::ModelConfig& config,
                      const DataReading& how, SftRun& opened) {
  if (options.eval.every_steps == 0 || options.data.eval.empty()) {
    return {};
  }
  storage::DatasetOptions eval;
  eval.paths = options.data.eval;
  eval.order = storage::RowOrder::kFileOrder;
  TIDEMILL_ASSIGN_OR_RETURN(auto rows,
                            open_data_set<storage::SupervisedDataset>(eval, "data.eval", how.log));
  const auto num_rows = static_cast<std::uint32_t>(rows->num_rows());
  actors::DatasetSequenceOptions sequences =
      sequence_options(options, config, how, opened.eval_lengths, opened.digests.tokenizer);
  sequences.key = "data.eval";
  TIDEMILL_ASSIGN_OR_RETURN(const auto reader, actors::make_dataset_sequence_reader(
                                                   std::move(rows), std::move(sequences)));
  TIDEMILL_ASSIGN_OR_RETURN(std::vector<engines::TrainSequence> all, reader->read(0, num_rows));
  opened.eval_sequences =
      std::make_shared<const std::vector<engines::TrainSequence>>(std::move(all));
  return {};
}

Status open_data(const SftOptions& options, const engines::ModelConfig& config,
                 const DataReading& how, SftRun& opened) {
  TIDEMILL_RETURN_IF_ERROR(check_fit(options, config));
  TIDEMILL_ASSIGN_OR_RETURN(
      auto rows, open_data_set<storage::SupervisedDataset>(
                     dataset_options(options.data, options.run.seed), "data.train", how.log));
  opened.digests.data = rows->digest();
  const auto per_step = static_cast<std::uint64_t>(options.train.sequences_per_step);
  if (options.train.common.steps.has_value()) {
    opened.steps = static_cast<std::uint64_t>(*options.train.common.steps);
  } else {
    const auto epochs = static_cast<std::uint64_t>(options.data.epochs.value_or(1));
    opened.steps = epochs * rows->num_rows() / per_step;
    if (opened.steps == 0) {
      return invalid_argument("train.sequences_per_step: the data has " +
                              std::to_string(rows->num_rows()) + " rows, fewer than one batch");
    }
  }
  TIDEMILL_ASSIGN_OR_RETURN(
      opened.reader, actors::make_dataset_sequence_reader(
                         std::move(rows), sequence_options(options, config, how, opened.lengths,
                                                           opened.digests.tokenizer)));
  return open_eval_data(options, config, how, opened);
}

// Returns the expected load of a run.
engines::MemoryLoad likely_load(const SftOptions& options, const SftRun& opened) {
  const actors::Lengths& lengths = opened.lengths;
  const std::int64_t evaluated = opened.eval_lengths.expected_max(opened.eval_lengths.count(), 1);
  const std::int64_t batch =
      std::max(lengths.expected_max(options.train.sequences_per_step, opened.steps), evaluated);
  engines::MemoryLoad load = sft_load(opened);
  load.sequence_tokens = std::max(lengths.longest(), opened.eval_lengths.longest());
  load.train_tokens = std::max(std::min(options.train.common.micro_batch_tokens, batch),
                               std::min(load.sequence_tokens, batch));
  // The last commit is written after training has ended.
  const auto every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  load.commits = options.run.checkpoint.every_seconds > 0 || (every > 0 && every < opened.steps);
  // Each sequence has pages of its own.
  const double mean = std::max(lengths.mean(), 1.0);
  load.kv_tokens = static_cast<std::int64_t>(static_cast<double>(load.train_tokens) / mean *
                                             static_cast<double>(in_pages(lengths)));
  return load;
}

MemoryPlan expected_plan(const SftOptions& options, const TrainedModel& model, const SftRun& opened,
                         const MemoryPlan& maximum) {
  engines::RuntimeOptions runtime =
      runtime_options(model, options.model, options.train.common, 1, options.run.device);
  apply(maximum.budgets, runtime);
  return make_memory_plan(model.files, runtime,
                          {likely_load(options, opened), 0, options.eval.keep_best});
}

// The plan of a run whose longest sequence has `longest` tokens.
MemoryPlan max_memory_plan(const SftOptions& options, const TrainedModel& model,
                           const SftRun& opened, std::int64_t longest) {
  const std::int64_t sequences =
      std::max<std::int64_t>(options.train.sequences_per_step, opened.eval_lengths.count());
  const std::int64_t wanted =
      std::min(options.train.common.micro_batch_tokens, sequences * longest);
  return choose_micro_batch(
      options.train.common.recompute, options.run.device, wanted, longest,
      [&](engines::Recompute recompute, std::int64_t train_tokens) {
        engines::MemoryLoad load = sft_load(opened);
        load.train_tokens = train_tokens;
        load.sequence_tokens = longest;
        // Each sequence of the micro-batch has pages of its own.
        load.kv_tokens = train_tokens + engines::kPageTokens * std::min(train_tokens, sequences);
        engines::RuntimeOptions runtime =
            runtime_options(model, options.model, options.train.common, 1, options.run.device);
        runtime.recompute = recompute;
        runtime.window_tokens =
            opened.shares_base ? window_beside_generation(model.files.config) : window_for(longest);
        engines::set_budgets(model.files.config, load, runtime);
        return make_memory_plan(model.files, runtime, {load, 0, options.eval.keep_best});
      });
}

// Returns the longest row of the data.
LongestRow longest_row(const SftRun& opened) {
  const bool in_eval = opened.eval_lengths.longest() > opened.lengths.longest();
  const actors::Lengths& lengths = in_eval ? opened.eval_lengths : opened.lengths;
  // The last token is predicted, not computed with.
  return {lengths.longest() + 1, lengths.longest_location(), "the sequence"};
}

// Plans for the rows of the data. Errors: a row that does not fit, naming its file and line.
Status plan_for_data(const SftOptions& options, const TrainedModel& model, SftRun& opened) {
  const auto plan_for = [&](std::int64_t tokens) {
    return max_memory_plan(options, model, opened, std::max<std::int64_t>(tokens - 1, 1));
  };
  const LongestRow longest = longest_row(opened);
  const Status fits = check_longest_row(longest, options.run.device, plan_for);
  TIDEMILL_RETURN_IF_ERROR(opened.shares_base ? with_server_options(fits) : fits);
  opened.plans.maximum = plan_for(longest.tokens);
  opened.plans.expected = expected_plan(options, model, opened, opened.plans.maximum);
  return {};
}

Result<std::shared_ptr<void>> prepare(const SftOptions& options, const SftRun& opened,
                                      const RunEnvironment& run, const actors::RunOrigin& origin) {
  log_loading(options.model, run);
  auto engines = std::make_shared<SftEngines>();
  engines::RuntimeOptions runtime =
      runtime_options(opened.model, options.model, options.train.common,
                      static_cast<std::int64_t>(opened.steps), options.run.device);
  apply(opened.plans.maximum.budgets, runtime);
  if (run.shared_device.has_value()) {
    TIDEMILL_ASSIGN_OR_RETURN(
        engines->shared,
        SharedJob::open(run.system, *run.shared_device,
                        {opened.model.files.config, runtime, actors::make_sft_loss()}, origin));
  } else {
    auto opening = open_runtime_at(opened.model, runtime, origin);
    if (!opening.ok()) {
      return with_limits(opening.status());
    }
    engines->opened = std::move(opening).value();
    log_device(*engines->opened.runtime, run);
  }
  TIDEMILL_ASSIGN_OR_RETURN(engines->records, open_records(run, origin, options.run.record));
  log_memory_plans(opened.plans, run);
  const std::int64_t sequences = options.train.sequences_per_step;
  const std::string of_step =
      std::to_string(sequences) + (sequences == 1 ? " sequence" : " sequences");
  if (run.on_begin) {
    const auto tokens = static_cast<std::int64_t>(
        std::llround(static_cast<double>(sequences) * (opened.lengths.mean() + 1.0)));
    run.on_begin({opened.steps, engines::num_parameters(opened.model.files.config),
                  opened.plans.expected.total(), opened.plans.maximum.total(),
                  of_step + " (about " + std::to_string(tokens) + " tokens)"});
  }
  log_first_step(engines->weights().version.step + 1, opened.steps, "training on " + of_step, run);
  return std::shared_ptr<void>(std::move(engines));
}

// Starts what the trainer trains with.
actors::TrainingActor start_training(const SftOptions& options, const SftRun& opened,
                                     const RunEnvironment& run,
                                     const std::shared_ptr<SftEngines>& engines) {
  if (engines->shared != nullptr) {
    return engines->shared->start_training(run.system, engines);
  }
  actors::DeviceDeps device;
  device.runtime = engines;
  device.rollout = &engines->opened.runtime->rollout();
  device.train = engines->opened.runtime->policy_job();
  device.make_loss = actors::make_sft_loss();
  device.port = opened.device_port.get();
  device.executor.train_tokens = options.train.common.micro_batch_tokens;
  return actors::spawn_device(run.system, std::move(device));
}

actors::RunParts compose(const SftOptions& options, const SftRun& opened, const RunEnvironment& run,
                         const actors::RunOrigin& origin,
                         const std::shared_ptr<SftEngines>& engines,
                         const actors::RunListenerActor& listener) {
  actors::SupervisedDeps deps = supervised_deps(options, opened.steps);
  deps.eval_sequences = opened.eval_sequences;
  if (origin.commit.has_value()) {
    deps.best = origin.commit->best;
    deps.evaluated_step = origin.commit->evaluated_step;
  }
  deps.training = start_training(options, opened, run, engines);
  deps.recorder = actors::spawn_recorder(
      run.system,
      {engines->records, origin.commit.has_value() ? origin.commit->records : actors::RecordMarks{},
       run.observer, nullptr, opened.io_port.get()});
  deps.listener = listener;
  deps.reader = opened.reader;
  deps.commits = run.commits;
  deps.read_port = opened.read_port.get();
  deps.commit_port = opened.commit_port.get();
  deps.weights = std::exchange(engines->weights(), {});  // only the trainer holds them
  actors::RunParts parts;
  parts.core = {{"device", caf::actor_cast<caf::actor>(deps.training)},
                {"recorder", caf::actor_cast<caf::actor>(deps.recorder)}};
  const auto trainer = actors::spawn_supervised_trainer(run.system, std::move(deps));
  parts.core.push_back({"trainer", caf::actor_cast<caf::actor>(trainer)});
  parts.start = [trainer] { caf::anon_send(trainer, atom::start_v); };
  parts.stop = [trainer] { caf::anon_send(trainer, atom::stop_v); };
  return parts;
}

}  // namespace

Result<RunPlans> plan_memory(const SftOptions& options, const TrainedModel& model,
                             const DataReading& how) {
  SftRun opened;
  TIDEMILL_RETURN_IF_ERROR(open_data(options, model.files.config, how, opened));
  TIDEMILL_RETURN_IF_ERROR(plan_for_data(options, model, opened));
  return opened.plans;
}

MemoryPlan least_shared_plan(SftOptions options, const TrainedModel& model,
                             std::int64_t longest_tokens) {
  options.train.sequences_per_step = 1;
  options.train.common.recompute = RecomputeChoice::kLayer;
  SftRun opened;
  opened.shares_base = true;
  // The last token is predicted, not computed with.
  return max_memory_plan(options, model, opened, std::max<std::int64_t>(longest_tokens - 1, 1));
}

Result<actors::RunSummary> run_sft(const SftOptions& options, const RunEnvironment& run) {
  SftRun opened;
  opened.shares_base = run.shared_device.has_value();
  TIDEMILL_ASSIGN_OR_RETURN(
      opened.model, open_trained_model(options.model, options.train.common, options.run.seed));
  if (!run.shared_device.has_value()) {
    warn_of_device(options.run.device, run);
  }
  TIDEMILL_RETURN_IF_ERROR(
      open_data(options, opened.model.files.config, {run.now, run.log}, opened));
  TIDEMILL_RETURN_IF_ERROR(check_total_steps(options.train.common, opened.steps, *run.commits));
  TIDEMILL_RETURN_IF_ERROR(plan_for_data(options, opened.model, opened));
  run.commits->set_inputs(inputs_of(opened.model, options.model, options.data, opened.digests));
  TIDEMILL_ASSIGN_OR_RETURN(opened.device_port, start_port("device"));
  TIDEMILL_ASSIGN_OR_RETURN(opened.io_port, start_port("io"));
  TIDEMILL_ASSIGN_OR_RETURN(opened.commit_port, start_port("commit"));
  TIDEMILL_ASSIGN_OR_RETURN(opened.read_port, start_port("read"));
  const auto spawn = [&](std::function<void(Result<actors::RunSummary>)> on_end) {
    actors::SupervisorDeps deps;
    deps.commits = run.commits;
    deps.prepare = [&](const actors::RunOrigin& origin) {
      return prepare(options, opened, run, origin);
    };
    deps.spawn = [&](const actors::RunOrigin& origin, const std::shared_ptr<void>& prepared,
                     const actors::RunListenerActor& listener) {
      return compose(options, opened, run, origin, std::static_pointer_cast<SftEngines>(prepared),
                     listener);
    };
    deps.on_end = std::move(on_end);
    deps.log = run.log;
    deps.port = opened.io_port.get();
    deps.first_incarnation = run.first_incarnation;
    return actors::spawn_supervisor(run.system, std::move(deps));
  };
  TIDEMILL_ASSIGN_OR_RETURN(actors::RunSummary summary, run_to_end(run, spawn));
  TIDEMILL_RETURN_IF_ERROR(export_weights(opened.model, options.model, summary.weights, run));
  return summary;
}

}  // namespace tidemill::workflows
