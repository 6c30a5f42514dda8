// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/run_rl.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include <caf/all.hpp>

#include "actors/algorithm/algorithm.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "base/check.hpp"
#include "base/text/mebibytes.hpp"
#include "workflows/process_limits.hpp"
#include "workflows/process_memory.hpp"
#include "workflows/processes/core_plan.hpp"
#include "workflows/processes/local_processes.hpp"
#include "workflows/processes/process_table.hpp"
#include "workflows/processes/run_control.hpp"
#include "workflows/processes/worker_processes.hpp"
#include "workflows/rewards.hpp"
#include "workflows/rl/composition.hpp"
#include "workflows/rl/reward_plan.hpp"
#include "workflows/rl/reward_process.hpp"
#include "workflows/rl/reward_signal.hpp"
#include "workflows/rl/rl_load.hpp"
#include "workflows/rl/rl_settings.hpp"
#include "workflows/rl/rollout_plan.hpp"
#include "workflows/rl/rollout_process.hpp"

namespace tidemill::workflows {
namespace {

// Upper bound of the memory of generated rows that are kept for training.
constexpr std::int64_t kMaxGeneratedBytes = std::int64_t{1} << 30U;

// How long actors of other processes may live on after a run: the processes have to end first.
constexpr Duration kEndDeadline = std::chrono::minutes(1);

// What has become of the rows of the run, from the last training record.
struct RowCounts {
  double scored = 0.0;  // trained or filtered
  double failed = 0.0;

  void note(const actors::StepRecord& record) {
    const auto value = [&record](const char* name) {
      const auto found = record.metrics.find(name);
      return found == record.metrics.end() ? 0.0 : found->second;
    };
    if (record.kind == "train") {
      scored = value("rows_trained") + value("rows_filtered");
      failed = value("rows_failed");
    }
  }
};

// Refuses the result of a run none of whose samples could be scored. With `schedule: fixed`, groups
// that fail are not replaced, so such a run reaches its last step.
Status check_scored(const RowCounts& rows, const actors::RunSummary& summary) {
  if (summary.end == actors::RunEnd::kStopped || rows.scored > 0.0 || rows.failed == 0.0) {
    return {};
  }
  return {Errc::kUnavailable, "reward: none of the run's samples could be scored; " +
                                  std::to_string(static_cast<std::int64_t>(rows.failed)) +
                                  " failed, and its log says why"};
}

// What a run opens once and keeps across its incarnations.
struct RlRun {
  TrainedModel model;
  std::optional<actors::TextCodec> codec;
  std::shared_ptr<storage::PromptDataset> data;
  std::uint64_t prompt_bytes = 0;  // largest size of a prompt in a row of the stream
  actors::Lengths prompt_lengths;  // of `data.train`
  std::vector<actors::Prompt> eval_prompts;
  actors::Lengths eval_lengths;  // of `eval_prompts`
  std::uint64_t steps = 0;
  RunPlans plans;
  std::unique_ptr<actors::WorkPort> device_port;
  std::unique_ptr<actors::WorkPort> io_port;
  std::unique_ptr<actors::WorkPort> commit_port;
  std::vector<std::unique_ptr<actors::WorkPort>> reward_ports;  // of workers in this process
  std::unique_ptr<actors::WorkPort> eval_port;
  std::unique_ptr<LocalProcesses> processes;       // null: the run has no worker processes
  CorePlan cores;                                  // of all processes
  MemoryPlan rollout_process;                      // of each rollout process
  std::unique_ptr<actors::WorkPort> weights_port;  // lends weights to rollout processes
  /// The actors that use `weights_port` and `processes`.
  std::shared_ptr<ActorEnds> process_actors = std::make_shared<ActorEnds>();
  std::shared_ptr<ProcessTable> table = std::make_shared<ProcessTable>();
  std::unique_ptr<transport::QueryServer> control;  // null: the run has no worker processes
  std::shared_ptr<RowCounts> rows = std::make_shared<RowCounts>();
  bool shares_base = false;  // generates and trains on the device of a server
};

// Reads all rows before the run starts, so that a long prompt does not end it after hours.
Status check_data(const RlOptions& options, const engines::ModelConfig& config,
                  const DataReading& how, RlRun& opened) {
  const actors::DatasetPromptOptions prompts = prompt_options(options, config);
  TIDEMILL_ASSIGN_OR_RETURN(const engines::ReferenceAnswerCheck check_reference_answer,
                            make_reference_answer_check(options.reward));
  TIDEMILL_ASSIGN_OR_RETURN(
      const actors::PromptFacts facts,
      actors::check_prompts(*opened.data, *opened.codec, prompts, check_reference_answer));
  TIDEMILL_RETURN_IF_ERROR(check_batch_fits(options, facts));
  if (facts.too_long.count > 0) {
    how.log(long_prompts_text("data.train", options.data, facts.too_long, opened.data->num_rows()));
  }
  opened.prompt_bytes = facts.max_bytes;
  opened.prompt_lengths = facts.lengths;
  return {};
}

Status open_data(const RlOptions& options, const engines::ModelConfig& config,
                 const DataReading& how, RlRun& opened) {
  TIDEMILL_ASSIGN_OR_RETURN(opened.codec, actors::TextCodec::load(options.model.path, how.now,
                                                                  chat_options(options.data)));
  storage::DatasetOptions train = dataset_options(options.data, options.run.seed);
  train.epochs = static_cast<std::uint64_t>(options.data.epochs.value_or(0));
  TIDEMILL_ASSIGN_OR_RETURN(opened.data,
                            open_data_set<storage::PromptDataset>(train, "data.train", how.log));
  TIDEMILL_RETURN_IF_ERROR(check_data(options, config, how, opened));
  if (options.eval.common.every_steps > 0 && !options.data.eval.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(actors::AllPrompts all,
                              read_eval_prompts(options, *opened.codec, config, how.log));
    opened.eval_prompts = std::move(all.prompts);
    opened.eval_lengths = all.lengths;
  }
  TIDEMILL_ASSIGN_OR_RETURN(opened.steps, total_steps(options, opened.data->num_rows()));
  return {};
}

Result<std::unique_ptr<engines::RewardEngine>> make_reward(const RlOptions& options,
                                                           const RunEnvironment& run) {
  // The program's output goes to a file in the folder, which is opened by its path.
  if (run.held_directory != nullptr && !run.held_directory->in_place()) {
    return invalid_argument(run.directory.string() + ": was renamed or removed during the run");
  }
  return make_rewards(options.reward, {{run.system, run.clock, run.directory}, run.extensions});
}

engines::RuntimeOptions rl_runtime_options(const RlOptions& options, const TrainedModel& model,
                                           std::uint64_t steps) {
  const std::int64_t updates =
      static_cast<std::int64_t>(steps) * options.train.minibatches * options.train.epochs;
  engines::RuntimeOptions runtime =
      runtime_options(model, options.model, options.train.common, updates, options.run.device);
  runtime.kv_bytes = options.rollout.kv_bytes.value_or(runtime.kv_bytes);
  return runtime;
}

// Describes what a step generates and trains on.
std::string responses_of_step(const RlOptions& options) {
  const std::int32_t prompts = options.train.prompts_per_step;
  return std::to_string(options.rollout.group_size) + " responses to " +
         (prompts == 1 ? "one prompt" : "each of " + std::to_string(prompts) + " prompts") +
         ", of at most " + std::to_string(options.rollout.max_new_tokens) + " tokens each";
}

// Opens a runtime for the run alone.
Status open_own_engines(const RlOptions& options, const RlRun& opened, const RunEnvironment& run,
                        const actors::RunOrigin& origin, engines::RuntimeOptions wanted,
                        RlEngines& engines) {
  // Keeps either all rows of a step or none.
  wanted.generated_bytes = opened.plans.expected.engine.generated_bytes > 0
                               ? opened.plans.maximum.engine.generated_bytes
                               : 0;
  wanted.allocator =
      options.placement.rollout.processes > 0 ? &opened.processes->weight_memory() : nullptr;
  wanted.token_text = [codec = *opened.codec](std::int32_t id) {
    return std::string(codec.tokenizer().token_bytes(id));
  };
  auto opening = open_runtime_at(opened.model, wanted, origin);
  if (!opening.ok()) {
    return with_limits(opening.status());
  }
  OpenedRuntime runtime = std::move(opening).value();
  ServingEngines& serving = engines.training.serving;
  serving.rollout = &runtime.runtime->rollout();
  serving.adapters = &runtime.runtime->adapters();
  serving.open_adapter = [&config =
                              opened.model.files.config](const actors::AdapterRequest& request) {
    return open_requested_adapter(request, config);
  };
  engines.training.train = runtime.runtime->policy_job();
  engines.owner.weights = std::move(runtime.weights);
  log_device(*runtime.runtime, run);
  engines.runtime = std::shared_ptr<engines::ModelRuntime>(std::move(runtime.runtime));
  return {};
}

// Opens a job on the device of a server.
Status open_shared_job(const RlOptions& options, const RlRun& opened, const RunEnvironment& run,
                       const actors::RunOrigin& origin, const engines::RuntimeOptions& wanted,
                       RlEngines& engines) {
  TIDEMILL_ASSIGN_OR_RETURN(std::unique_ptr<SharedJob> job,
                            SharedJob::open(run.system, *run.shared_device,
                                            {opened.model.files.config, wanted,
                                             actors::make_policy_loss(loss_options(options))},
                                            origin));
  TIDEMILL_RETURN_IF_ERROR(job->serve(run.system));
  engines.owner.weights = std::move(job->weights);
  engines.training.shared = job.get();
  engines.runtime = std::shared_ptr<SharedJob>(std::move(job));
  return {};
}

Result<std::shared_ptr<RlEngines>> open_engines(const RlOptions& options, const RlRun& opened,
                                                const RunEnvironment& run,
                                                const actors::RunOrigin& origin) {
  log_loading(options.model, run);
  engines::RuntimeOptions wanted = rl_runtime_options(options, opened.model, opened.steps);
  apply(opened.plans.maximum.budgets, wanted);
  auto engines = std::make_shared<RlEngines>();
  TIDEMILL_RETURN_IF_ERROR(
      run.shared_device.has_value()
          ? open_shared_job(options, opened, run, origin, wanted, *engines)
          : open_own_engines(options, opened, run, origin, std::move(wanted), *engines));
  TIDEMILL_ASSIGN_OR_RETURN(engines->owner.records, open_records(run, origin, options.run.record));
  log_memory_plans(opened.plans, run);
  if (run.on_begin) {
    run.on_begin({opened.steps, engines::num_parameters(opened.model.files.config),
                  opened.plans.expected.total(), opened.plans.maximum.total(),
                  responses_of_step(options)});
  }
  log_first_step(engines->owner.weights.version.step + 1, opened.steps,
                 "generating " + responses_of_step(options), run);
  return engines;
}

actors::EvaluatorDeps evaluator(const RlOptions& options, const RlRun& opened) {
  actors::EvaluatorDeps deps = evaluator_deps(options, opened.model.files);
  deps.decode = [codec = *opened.codec](const auto& ids) { return codec.decode(ids); };
  deps.prompts = opened.eval_prompts;
  return deps;
}

RewardRoleOptions reward_role(const RlOptions& options, const RunEnvironment& run,
                              const RlRun& opened) {
  RewardRoleOptions role = reward_role_options(
      options, *opened.codec, [&options, &run] { return make_reward(options, run); });
  role.log = run.log;
  for (const auto& port : opened.reward_ports) {
    role.ports.push_back(port.get());
  }
  return role;
}

// The processes of a role, without their cores and workers. `Placement` is that of the role.
template <class Placement>
WorkerProcessesOptions role_processes(const std::string& role, const Placement& placement,
                                      const RunEnvironment& run, const RlRun& opened) {
  WorkerProcessesOptions processes;
  processes.role = role;
  processes.processes = static_cast<std::uint32_t>(placement.processes);
  processes.transport = placement.transport;
  processes.table = opened.table;
  processes.ends = opened.process_actors;
  processes.log = run.log;
  return processes;
}

// Returns how reward workers are made in processes of their own, or nothing if they are in this
// one.
decltype(RlPlan::remote_reward) remote_reward(const RlOptions& options, const RunEnvironment& run,
                                              const RlRun& opened) {
  const RewardPlacement& placement = options.placement.reward;
  if (placement.processes == 0) {
    return {};
  }
  WorkerProcessesOptions role = role_processes("reward", placement, run, opened);
  role.cores = opened.cores.reward;
  role.workers = num_workers(placement);
  return [&run, &opened, role](const actors::RunOrigin& origin,
                               const actors::StreamConsumerActor& stream) {
    return remote_worker_factory(run.system, *opened.processes, role, origin.incarnation, stream);
  };
}

// As `remote_reward`, for rollout workers.
decltype(RlPlan::remote_rollout) remote_rollout(const RlOptions& options, const RunEnvironment& run,
                                                const RlRun& opened) {
  const RolloutPlacement& placement = options.placement.rollout;
  if (placement.processes == 0) {
    return {};
  }
  WorkerProcessesOptions role = role_processes("rollout", placement, run, opened);
  role.cores = opened.cores.rollout;
  role.workers = num_rollout_workers(options);
  const MemoryBudgets& budgets = opened.rollout_process.budgets;
  role.devices.emplace();
  role.devices->start = {budgets.kv_bytes, budgets.limits.rollout_rows,
                         budgets.limits.sampled_rows};
  role.devices->work = opened.weights_port.get();
  return [&run, &opened, role](const actors::RunOrigin& origin,
                               const actors::StreamConsumerActor& stream,
                               const actors::RosterActor& roster) {
    WorkerProcessesOptions with_roster = role;
    with_roster.devices->roster = roster;
    return remote_worker_factory(run.system, *opened.processes, with_roster, origin.incarnation,
                                 stream);
  };
}

OwnerRoleOptions owner_role(const RlOptions& options, const RunEnvironment& run,
                            const RlRun& opened) {
  OwnerRoleOptions role;
  role.max_concurrent_rows = max_concurrent_rows(options);
  role.stream = stream_options(options, opened.prompt_bytes);
  role.trainer = trainer_options(options, opened.steps);
  role.reader = actors::make_dataset_prompt_reader(
      opened.data, *opened.codec, prompt_options(options, opened.model.files.config));
  role.commits = run.commits;
  engines::Algorithm algorithm =
      chosen_algorithm(options.algorithm, options.rollout.max_new_tokens);
  if (const auto own = run.extensions.advantages.find(algorithm.name);
      own != run.extensions.advantages.end()) {
    algorithm.custom_advantages = own->second;
  }
  role.decide = actors::make_group_decision(algorithm);
  role.decode = [codec = *opened.codec](const auto& ids) { return codec.decode(ids); };
  role.reward_parts = part_names(options.reward);
  role.observer = warn_without_signal(
      [rows = opened.rows, observer = run.observer](const actors::StepRecord& record) {
        rows->note(record);
        if (observer) {
          observer(record);
        }
      },
      run.log);
  role.log = run.log;
  role.inform = run.inform;
  if (!opened.eval_prompts.empty()) {
    role.evaluator = evaluator(options, opened);
  }
  role.make_loss = actors::make_policy_loss(loss_options(options));
  role.executor = executor_options(options);
  role.device_port = opened.device_port.get();
  role.io_port = opened.io_port.get();
  role.commit_port = opened.commit_port.get();
  role.eval_port = opened.eval_port.get();
  return role;
}

RlPlan make_plan(const RlOptions& options, const RunEnvironment& run, const RlRun& opened) {
  RlPlan plan;
  plan.owner = owner_role(options, run, opened);
  plan.rollout = rollout_role_options(options, opened.model);
  plan.reward = reward_role(options, run, opened);
  plan.owner.make_reward = plan.reward.make_reward;
  plan.remote_reward = remote_reward(options, run, opened);
  plan.remote_rollout = remote_rollout(options, run, opened);
  plan.open_engines = [&options, &opened, &run](const actors::RunOrigin& origin) {
    return open_engines(options, opened, run, origin);
  };
  return plan;
}

RlFacts facts_of(const RlRun& opened) {
  return {opened.prompt_lengths, opened.eval_lengths, opened.steps,
          engines::RuntimeOptions{}.max_running, opened.shares_base};
}

// The memory of one rollout process, or an empty plan if the run has none.
MemoryPlan rollout_process_plan(const RlOptions& options, const TrainedModel& model,
                                const RlRun& opened, std::int64_t longest_prompt) {
  return options.placement.rollout.processes == 0
             ? MemoryPlan()
             : plan_rollout_process(options, model, facts_of(opened), longest_prompt);
}

// The memory of the run's other processes, and what they cost this one: the weights that were
// published last, the memory of a free version and cells of leased rows are in shared memory.
ProcessesMemory processes_memory(const RlOptions& options, const MemoryPlan& rollout_process) {
  const PlacementOptions& placement = options.placement;
  if (!has_processes(placement)) {
    return {};
  }
  return {placement.rollout.processes * rollout_process.total(),
          placement.reward.processes * program_bytes().value_or(0),
          2 * rollout_process.engine.published_bytes + kRowMemoryBytes};
}

// Returns the expected memory of a run whose upper bound is `maximum`.
MemoryPlan expected_plan(const RlOptions& options, const TrainedModel& model, const RlRun& opened,
                         const MemoryPlan& maximum) {
  engines::RuntimeOptions runtime = rl_runtime_options(options, model, 1);
  apply(maximum.budgets, runtime);
  RunLoad load;
  load.engine = likely_load(options, facts_of(opened));
  const std::int64_t generated =
      engines::generated_bytes(model.files.config, runtime, load.engine.kept_tokens);
  runtime.generated_bytes = generated <= maximum.engine.generated_bytes ? generated : 0;
  load.stream_bytes = static_cast<std::int64_t>(
      static_cast<std::uint64_t>(max_concurrent_rows(options) / options.rollout.group_size) *
      stream_options(options, opened.prompt_bytes).group_bytes);
  load.keeps_best = options.eval.common.keep_best;
  load.processes = processes_memory(options, opened.rollout_process);
  return make_memory_plan(model.files, runtime, load);
}

// Says why training computes again what generation computed, or returns "" if it does not, or if no
// step is on policy.
std::string recomputed_rows_note(const RlOptions& options, const TrainedModel& model,
                                 const RlRun& opened) {
  if (options.placement.rollout.processes > 0 && trains_on_policy(options)) {
    return "training computes the rows of generation again, because rollout processes generate "
           "them";
  }
  const std::int64_t tokens = likely_load(options, facts_of(opened)).kept_tokens;
  if (tokens == 0 || opened.plans.expected.engine.generated_bytes > 0) {
    return "";
  }
  engines::RuntimeOptions runtime = rl_runtime_options(options, model, 1);
  apply(opened.plans.maximum.budgets, runtime);
  const std::string start = "training computes the rows of generation again, because ";
  if (runtime.recompute != engines::Recompute::kNone) {
    return start + "the backward pass recomputes too";
  }
  const std::int64_t bytes = engines::generated_bytes(model.files.config, runtime, tokens);
  return start + "those of a step take " + mebibytes_text(bytes) + ", and " +
         (bytes > kMaxGeneratedBytes ? "at most " + mebibytes_text(kMaxGeneratedBytes) + " are kept"
                                     : "with them the run would exceed its memory");
}

// Makes the plan fit by caching less. The cache holds at least one sequence of `longest` tokens:
// fewer sequences then run at a time, with the same bits.
MemoryPlan shrink_cache(const TrainedModel& model, engines::RuntimeOptions runtime,
                        const RunLoad& load, std::int64_t longest, const MemoryPlan& plan,
                        std::int64_t allowed) {
  const engines::ModelConfig& config = model.files.config;
  const std::int64_t least = engines::kv_bytes_for(config, runtime, longest + engines::kPageTokens);
  apply(plan.budgets, runtime);
  runtime.kv_bytes = std::max(least, runtime.kv_bytes - (plan.total() - allowed));
  return make_memory_plan(model.files, runtime, load);
}

// The plan of a run whose longest prompt has `longest_prompt` tokens, with this plan of each of its
// rollout processes.
MemoryPlan max_memory_plan(const RlOptions& options, const TrainedModel& model, const RlRun& opened,
                           std::int64_t longest_prompt, const MemoryPlan& rollout_process) {
  const engines::ModelConfig& config = model.files.config;
  const std::int64_t longest = longest_sequence(options, longest_prompt);
  // The rows that are admitted, and as many that wait to be put.
  const actors::SampleStreamOptions stream = stream_options(options, opened.prompt_bytes);
  const auto groups =
      static_cast<std::uint64_t>(2 * max_concurrent_rows(options) / options.rollout.group_size);
  RunLoad load{peak_load(options, facts_of(opened), longest_prompt),
               static_cast<std::int64_t>(std::min(stream.limit_bytes, groups * stream.group_bytes)),
               options.eval.common.keep_best};
  load.processes = processes_memory(options, rollout_process);
  const std::int64_t wanted = load.engine.train_tokens;
  engines::RuntimeOptions runtime = rl_runtime_options(options, model, 1);
  const auto plan_for = [&](engines::Recompute recompute, std::int64_t train_tokens) {
    runtime = rl_runtime_options(options, model, 1);
    runtime.recompute = recompute;
    runtime.window_tokens =
        opened.shares_base ? window_beside_generation(config) : window_for(longest);
    load.engine.train_tokens = train_tokens;
    const auto make = [&](std::int64_t generated) {
      runtime.generated_bytes = generated;
      engines::set_budgets(config, load.engine, runtime);
      runtime.kv_bytes = options.rollout.kv_bytes.value_or(runtime.kv_bytes);
      return make_memory_plan(model.files, runtime, load);
    };
    // Rows are kept for speed alone: only up to a fixed size, and only if they fit.
    const std::int64_t generated = std::min(
        engines::generated_bytes(config, runtime, load.engine.kept_tokens), kMaxGeneratedBytes);
    return first_allowed({make(generated), make(0)}, options.run.device);
  };
  const MemoryPlan plan = choose_micro_batch(options.train.common.recompute, options.run.device,
                                             wanted, longest, plan_for);
  const std::int64_t allowed = allowed_memory(options.run.device);
  return plan.total() <= allowed || options.rollout.kv_bytes.has_value()
             ? plan
             : shrink_cache(model, runtime, load, longest, plan, allowed);
}

struct MaxPlans {
  MemoryPlan run;
  MemoryPlan rollout_process;
};

// The plans of a run whose longest prompt has `longest_prompt` tokens. If they do not fit, rollout
// processes cache less, too.
MaxPlans max_memory_plans(const RlOptions& options, const TrainedModel& model, const RlRun& opened,
                          std::int64_t longest_prompt) {
  MaxPlans plans;
  plans.rollout_process = rollout_process_plan(options, model, opened, longest_prompt);
  plans.run = max_memory_plan(options, model, opened, longest_prompt, plans.rollout_process);
  const std::int64_t excess = plans.run.total() - allowed_memory(options.run.device);
  const std::int64_t processes = options.placement.rollout.processes;
  if (excess <= 0 || processes == 0 || options.rollout.kv_bytes.has_value()) {
    return plans;
  }
  const std::int64_t wanted = plans.rollout_process.budgets.kv_bytes;
  const std::int64_t least =
      engines::kv_bytes_for(model.files.config, rollout_runtime_options(options, model, {}),
                            longest_sequence(options, longest_prompt) + engines::kPageTokens);
  const std::int64_t smaller = wanted - (excess + processes - 1) / processes;
  plans.rollout_process = plan_rollout_process(options, model, facts_of(opened), longest_prompt,
                                               std::max(smaller, std::min(least, wanted)));
  plans.run = max_memory_plan(options, model, opened, longest_prompt, plans.rollout_process);
  return plans;
}

// Returns the lengths of the data that has the longest prompt.
const actors::Lengths& longer_prompts(const RlRun& opened) {
  const bool in_eval = opened.eval_lengths.longest() > opened.prompt_lengths.longest();
  return in_eval ? opened.eval_lengths : opened.prompt_lengths;
}

// Plans for the rows of the data. Errors: a prompt that does not fit, naming its file and line;
// `rollout.kv_bytes` if it is too small.
Status plan_for_data(const RlOptions& options, const TrainedModel& model, RlRun& opened) {
  const actors::Lengths& prompts = longer_prompts(opened);
  const auto plan_for = [&](std::int64_t longest_prompt) {
    return max_memory_plans(options, model, opened, longest_prompt).run;
  };
  const Status fits = check_longest_row(
      {prompts.longest(), prompts.longest_location(), "the prompt"}, options.run.device, plan_for);
  TIDEMILL_RETURN_IF_ERROR(opened.shares_base ? with_server_options(fits) : fits);
  MaxPlans plans = max_memory_plans(options, model, opened, prompts.longest());
  opened.plans.maximum = std::move(plans.run);
  opened.rollout_process = std::move(plans.rollout_process);
  const engines::RuntimeOptions runtime = rl_runtime_options(options, model, 1);
  TIDEMILL_RETURN_IF_ERROR(
      check_cache(options, prompts,
                  engines::kv_bytes_for(model.files.config, runtime,
                                        longest_sequence(options, prompts.longest())),
                  allowed_memory(options.run.device)));
  opened.plans.expected = expected_plan(options, model, opened, opened.plans.maximum);
  opened.plans.expected.note = recomputed_rows_note(options, model, opened);
  return {};
}

// Lets the process have descriptors for its processes. Too few are an error if some use ZeroMQ,
// which ends a process that has no descriptor left for a connection. Others are tried again.
Status prepare_files(const PlacementOptions& placement, const RunEnvironment& run) {
  const std::int64_t files = kFilesOfTheRun + kFilesPerDevice * placement.rollout.processes +
                             kFilesPerProcess * placement.reward.processes;
  allow_files(files);
  const auto uses_zmq = [](const auto& role) {
    return role.processes > 0 && role.transport == TransportChoice::kZmq;
  };
  Status enough = check_files(
      files,
      "placement: " + std::to_string(placement.rollout.processes + placement.reward.processes) +
          " processes and the run");
  if (enough.ok() || uses_zmq(placement.rollout) || uses_zmq(placement.reward)) {
    return enough;
  }
  run.log(enough.message());
  return {};
}

// Divides the cores among the processes of the run.
CorePlan plan_cores(const PlacementOptions& placement, const RunEnvironment& run) {
  if (child_processes(placement) == 0) {
    return {};
  }
  const CoreList usable = usable_core_list();
  CorePlan plan =
      divide_cores(usable, child_processes(placement.rollout), child_processes(placement.reward));
  run.inform("cores: " + (plan.owner.empty() ? to_text(usable) + " for all processes: there are " +
                                                   "more processes than cores"
                                             : to_text(plan)));
  return plan;
}

// Lets people look at the processes of the run and change their numbers, as far as the memory
// allows. A run does without.
void open_control(const RlOptions& options, const RunEnvironment& run, RlRun& opened) {
  const std::int64_t left = allowed_memory(options.run.device) - opened.plans.maximum.total();
  const auto add = [&](const char* role, RoleSize size, std::int64_t bytes_each) {
    if (size.processes > 0) {
      const std::int64_t fit =
          size.processes + std::max<std::int64_t>(left, 0) / std::max<std::int64_t>(bytes_each, 1);
      size.limited_by_memory = fit < size.max_processes;
      size.max_processes =
          static_cast<std::uint32_t>(std::min<std::int64_t>(size.max_processes, fit));
      opened.table->add_role(role, size);
    }
  };
  const PlacementOptions& placement = options.placement;
  add("rollout",
      {static_cast<std::uint32_t>(placement.rollout.processes), kMaxRolloutProcesses,
       kFilesPerDevice},
      opened.rollout_process.total());
  add("reward",
      {static_cast<std::uint32_t>(placement.reward.processes), kMaxRewardProcesses,
       kFilesPerProcess},
      program_bytes().value_or(0));
  if (run.on_processes) {
    run.on_processes([table = opened.table] { return table->summary(); });
  }
  auto control =
      serve_run_control(run.directory, {opened.table, to_text(opened.cores.owner), run.log});
  if (control.ok()) {
    opened.control = std::move(control).value();
  } else {
    run.log("`tidemill top` and `tidemill scale` cannot reach this run: " +
            control.status().message());
  }
}

// Returns what a thread does in the place of a process.
WorkInThread work_in_thread(const RlOptions& options, const RunEnvironment& run) {
  return [&options, &run](const std::string& role, const WorkerProcessAddress& address,
                          const std::stop_token& stop) {
    if (role == "rollout") {
      return run_rollout_process(options, {run.now, address, stop});
    }
    return run_reward_process(options, {run.directory, run.now, run.extensions, address, stop});
  };
}

// Prepares the processes of the run, and the ports of what is scored in this one.
Status open_places(const RlOptions& options, const RunEnvironment& run, RlRun& opened) {
  if (options.placement.rollout.processes > 0) {
    TIDEMILL_ASSIGN_OR_RETURN(opened.weights_port, start_port("weights"));
  }
  if (has_processes(options.placement)) {
    if (child_processes(options.placement) > 0 && !run.worker_program.has_value()) {
      return invalid_argument(
          "placement: this program cannot start processes; with `processes: 0`, the process of the "
          "run does everything, and with `transport: loopback` its threads do");
    }
    TIDEMILL_RETURN_IF_ERROR(prepare_files(options.placement, run));
    opened.processes = std::make_unique<LocalProcesses>(LocalProcessesOptions{
        run.directory, run.worker_program.value_or(WorkerProgram{}), work_in_thread(options, run),
        run.inform, run.log, allowed_memory(options.run.device),
        opened.plans.maximum.engine.published_bytes});
    open_control(options, run, opened);
  }
  if (options.placement.reward.processes > 0) {
    return {};
  }
  for (std::uint32_t i = 0; i < num_workers(options.placement.reward); ++i) {
    TIDEMILL_ASSIGN_OR_RETURN(opened.reward_ports.emplace_back(),
                              start_port(i == 0 ? "reward" : "reward-" + std::to_string(i)));
  }
  return {};
}

// Runs all actors of the run, until the last of them has ended.
Result<actors::RunSummary> run_actors(const RlOptions& options, const RunEnvironment& run,
                                      const RlRun& opened) {
  auto ended = run_to_end(run, [&](auto on_end) {
    RlHooks hooks;
    hooks.on_end = std::move(on_end);
    hooks.first_incarnation = run.first_incarnation;
    auto supervisor = spawn_rl_run(run.system, make_plan(options, run, opened), std::move(hooks));
    opened.table->set_supervisor(supervisor);
    return supervisor;
  });
  TIDEMILL_CHECK(opened.process_actors->wait_for(kEndDeadline))
      << "actors of other processes still run";
  return ended;
}

}  // namespace

Result<std::uint64_t> total_steps(const RlOptions& options, std::uint64_t num_prompts) {
  if (options.train.common.steps.has_value()) {
    return static_cast<std::uint64_t>(*options.train.common.steps);
  }
  const auto epochs = static_cast<std::uint64_t>(options.data.epochs.value_or(1));
  const std::uint64_t steps =
      epochs * num_prompts / static_cast<std::uint64_t>(options.train.prompts_per_step);
  if (steps == 0) {
    return invalid_argument("train.prompts_per_step: the data has " + std::to_string(num_prompts) +
                            " prompts, fewer than one batch");
  }
  return steps;
}

Result<RunPlans> plan_memory(const RlOptions& options, const TrainedModel& model,
                             const DataReading& how) {
  TIDEMILL_RETURN_IF_ERROR(check_fit(options, model.files.config));
  RlRun opened;
  TIDEMILL_RETURN_IF_ERROR(open_data(options, model.files.config, how, opened));
  TIDEMILL_RETURN_IF_ERROR(plan_for_data(options, model, opened));
  return opened.plans;
}

Result<actors::RunSummary> run_rl(const RlOptions& options, const RunEnvironment& run) {
  RlRun opened;
  opened.cores = plan_cores(options.placement, run);
  const CoreScope cores(opened.cores.owner);
  opened.shares_base = run.shared_device.has_value();
  TIDEMILL_ASSIGN_OR_RETURN(
      opened.model, open_trained_model(options.model, options.train.common, options.run.seed));
  if (!run.shared_device.has_value()) {
    warn_of_device(options.run.device, run);
  }
  TIDEMILL_RETURN_IF_ERROR(check_fit(options, opened.model.files.config));
  TIDEMILL_RETURN_IF_ERROR(
      open_data(options, opened.model.files.config, {run.now, run.log}, opened));
  TIDEMILL_RETURN_IF_ERROR(check_total_steps(options.train.common, opened.steps, *run.commits));
  TIDEMILL_RETURN_IF_ERROR(plan_for_data(options, opened.model, opened));
  if (const auto reward = make_reward(options, run); !reward.ok()) {
    return reward.status();
  }
  run.commits->set_inputs(inputs_of(opened.model, options.model, options.data,
                                    {opened.data->digest(), opened.codec->tokenizer().digest()}));
  TIDEMILL_ASSIGN_OR_RETURN(opened.device_port, start_port("device"));
  TIDEMILL_ASSIGN_OR_RETURN(opened.io_port, start_port("io"));
  TIDEMILL_ASSIGN_OR_RETURN(opened.commit_port, start_port("commit"));
  TIDEMILL_RETURN_IF_ERROR(open_places(options, run, opened));
  TIDEMILL_ASSIGN_OR_RETURN(opened.eval_port, start_port("eval"));
  TIDEMILL_ASSIGN_OR_RETURN(const actors::RunSummary summary, run_actors(options, run, opened));
  TIDEMILL_RETURN_IF_ERROR(check_scored(*opened.rows, summary));
  TIDEMILL_RETURN_IF_ERROR(export_weights(opened.model, options.model, summary.weights, run));
  return summary;
}

}  // namespace tidemill::workflows
