// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/run_rl.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <caf/all.hpp>

#include "actors/algorithm/algorithm.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "engines/reward/factory.hpp"
#include "workflows/rl/composition.hpp"

namespace tidemill::workflows {
namespace {

// What a run opens once and keeps through its incarnations.
struct RlRun {
  TrainedModel model;
  std::optional<actors::TextCodec> codec;
  std::shared_ptr<storage::PromptDataset> data;
  std::vector<actors::Prompt> eval_prompts;
  std::uint64_t steps = 0;
  std::unique_ptr<actors::WorkPort> device_port;
  std::unique_ptr<actors::WorkPort> io_port;
  std::unique_ptr<actors::WorkPort> reward_port;
  std::unique_ptr<actors::WorkPort> eval_port;
};

// Stands for a reward that could not be started again; every sample is told why.
class UnstartableReward final : public engines::RewardEngine {
public:
  explicit UnstartableReward(Status why) : why_(std::move(why)) {}
  Status submit(engines::RewardRequest /*request*/, engines::RewardSink& /*sink*/) override {
    return why_;
  }
  bool has_work() const override { return false; }
  Status step(Duration /*patience*/) override { return why_; }

private:
  Status why_;
};

storage::DatasetOptions dataset_options(const DataOptions& data, std::uint64_t run_seed) {
  storage::DatasetOptions options;
  options.paths = data.train;
  options.on_error =
      data.on_error == OnBadRow::kSkip ? storage::OnRowError::kSkip : storage::OnRowError::kError;
  options.order = data.shuffle ? storage::RowOrder::kShuffled : storage::RowOrder::kAsFiled;
  options.seed = data.seed.value_or(run_seed);
  options.epochs = static_cast<std::uint64_t>(data.epochs.value_or(0));
  return options;
}

std::int64_t max_prompt_tokens(const RlOptions& options, const engines::ModelConfig& config) {
  const std::int64_t room = config.max_positions - options.rollout.max_new_tokens;
  return std::min(options.data.max_prompt_tokens.value_or(room), room);
}

engines::RewardOptions reward_options(const RewardOptions& options,
                                      const std::filesystem::path& directory) {
  engines::RewardOptions reward;
  if (const auto* number = options.scoring.get<NumberReward>()) {
    reward.kind = engines::RewardKind::kNumber;
    reward.tolerance = number->tolerance;
  } else if (const auto* regex = options.scoring.get<RegexReward>()) {
    reward.kind = engines::RewardKind::kRegex;
    reward.pattern = regex->pattern;
  } else if (const auto* command = options.scoring.get<CommandReward>()) {
    reward.kind = engines::RewardKind::kCommand;
    reward.command = command->command;
    reward.timeout = std::chrono::milliseconds(command->timeout_ms);
    reward.stderr_path = (directory / "reward-stderr.txt").string();
  }
  return reward;
}

engines::Algorithm algorithm_of(const RlOptions& options) {
  const AlgorithmOptions& chosen = options.algorithm;
  engines::Algorithm algorithm;
  algorithm.name = chosen.name;
  algorithm.advantage = chosen.baseline == Baseline::kLeaveOneOut ? engines::AdvantageKind::kRloo
                                                                  : engines::AdvantageKind::kGrpo;
  algorithm.grpo.scale = chosen.scale == AdvantageScale::kGroupStd
                             ? engines::AdvantageScale::kGroupStd
                             : engines::AdvantageScale::kNone;
  algorithm.grpo.eps = chosen.scale_epsilon;
  engines::AggregateOptions& aggregate = algorithm.policy.aggregate;
  switch (chosen.aggregation) {
    case LossAggregation::kTokenMean: aggregate.kind = engines::Aggregation::kTokenMean; break;
    case LossAggregation::kSeqMeanTokenMean:
      aggregate.kind = engines::Aggregation::kSeqMeanTokenMean;
      break;
    case LossAggregation::kSeqMeanTokenSum:
      aggregate.kind = engines::Aggregation::kSeqMeanTokenSum;
      break;
    case LossAggregation::kFixedLength:
      aggregate.kind = engines::Aggregation::kBatchFixedLength;
      aggregate.horizon = options.rollout.max_new_tokens;
      break;
  }
  algorithm.policy.clip_low = chosen.clip_low;
  algorithm.policy.clip_high = chosen.clip_high;
  if (chosen.filter_groups) {
    algorithm.group_filter = engines::GroupFilterOptions{};
  }
  if (chosen.overlong.has_value()) {
    algorithm.overlong = engines::OverlongOptions{
        options.rollout.max_new_tokens, chosen.overlong->buffer, chosen.overlong->factor, false};
  }
  return algorithm;
}

engines::PolicyTokenLossOptions loss_options(const RlOptions& options) {
  engines::PolicyTokenLossOptions loss;
  loss.policy = algorithm_of(options).policy;
  if (options.algorithm.proximal == ProximalPolicy::kRecompute) {
    loss.old_logprobs = engines::OldLogprobs::kProximal;
    engines::RolloutCorrectionOptions correction;
    correction.upper = options.algorithm.correction_cap;
    switch (options.algorithm.correction) {
      case BehaviorCorrection::kRaw: correction.rule = engines::CorrectionRule::kRaw; break;
      case BehaviorCorrection::kTruncate:
        correction.rule = engines::CorrectionRule::kTruncate;
        break;
      case BehaviorCorrection::kMask: correction.rule = engines::CorrectionRule::kMask; break;
    }
    loss.policy.rollout_correction = correction;
  }
  return loss;
}

// The tokens that end a response: the files' and the options'.
std::vector<std::int32_t> stop_ids(const RlOptions& options, const engines::ModelFiles& files) {
  std::vector<std::int32_t> ids = files.generation.eos_token_ids.empty()
                                      ? files.config.eos_token_ids
                                      : files.generation.eos_token_ids;
  ids.insert(ids.end(), options.rollout.stop_ids.begin(), options.rollout.stop_ids.end());
  return ids;
}

engines::SamplingOptions sampling_options(const RolloutOptions& rollout) {
  engines::SamplingOptions sampling;
  sampling.temperature = static_cast<float>(rollout.temperature);
  sampling.top_k = rollout.top_k;
  sampling.top_p = static_cast<float>(rollout.top_p);
  sampling.min_p = static_cast<float>(rollout.min_p);
  sampling.repetition_penalty = static_cast<float>(rollout.repetition_penalty);
  sampling.frequency_penalty = static_cast<float>(rollout.frequency_penalty);
  sampling.presence_penalty = static_cast<float>(rollout.presence_penalty);
  return sampling;
}

Status open_data(const RlOptions& options, const RunEnvironment& run, RlRun& opened) {
  TIDEMILL_ASSIGN_OR_RETURN(opened.codec, actors::TextCodec::load(options.model.path, run.now));
  TIDEMILL_ASSIGN_OR_RETURN(
      opened.data, storage::PromptDataset::open(dataset_options(options.data, options.run.seed)));
  if (options.eval.every_steps > 0 && !options.data.eval.empty()) {
    storage::DatasetOptions eval;
    eval.paths = options.data.eval;
    eval.order = storage::RowOrder::kAsFiled;
    TIDEMILL_ASSIGN_OR_RETURN(const auto data, storage::PromptDataset::open(eval));
    TIDEMILL_ASSIGN_OR_RETURN(
        opened.eval_prompts,
        actors::read_all_prompts(*data, *opened.codec,
                                 max_prompt_tokens(options, opened.model.files.config)));
  }
  return {};
}

engines::RuntimeOptions rl_runtime_options(const RlOptions& options, const RlRun& opened) {
  const std::int64_t updates =
      static_cast<std::int64_t>(opened.steps) * options.train.minibatches * options.train.epochs;
  engines::RuntimeOptions runtime = runtime_options(
      opened.model, options.model, options.train.common, updates, options.run.device);
  runtime.kv_bytes = options.rollout.kv_bytes;
  runtime.token_text = [codec = *opened.codec](std::int32_t id) {
    return std::string(codec.tokenizer().token_bytes(id));
  };
  return runtime;
}

Result<std::shared_ptr<RlEngines>> open_engines(const RlOptions& options, const RlRun& opened,
                                                const RunEnvironment& run,
                                                const actors::RunOrigin& origin) {
  TIDEMILL_ASSIGN_OR_RETURN(
      OpenedRuntime runtime,
      open_runtime_at(opened.model, rl_runtime_options(options, opened), origin));
  auto engines = std::make_shared<RlEngines>();
  engines->rollout = &runtime.runtime->rollout();
  engines->train = runtime.runtime->train();
  engines->weights = std::move(runtime.weights);
  engines->runtime = std::shared_ptr<void>(std::move(runtime.runtime));
  TIDEMILL_ASSIGN_OR_RETURN(
      engines->records,
      actors::open_record_files(run.directory.string(), origin.commit.has_value()
                                                            ? origin.commit->records
                                                            : actors::RecordMarks{}));
  return engines;
}

actors::TrainerOptions trainer_options(const RlOptions& options, std::uint64_t steps) {
  actors::TrainerOptions trainer;
  trainer.groups_per_step = static_cast<std::uint32_t>(options.train.prompts_per_step);
  trainer.total_steps = steps;
  trainer.max_staleness = static_cast<std::uint64_t>(options.staleness.max);
  trainer.fixed_batches = options.staleness.schedule == StalenessSchedule::kFixed;
  trainer.minibatches = static_cast<std::uint32_t>(options.train.minibatches);
  trainer.epochs = static_cast<std::uint32_t>(options.train.epochs);
  trainer.temperature =
      options.rollout.temperature > 0.0 ? static_cast<float>(options.rollout.temperature) : 1.0F;
  trainer.recompute_proximal = options.algorithm.proximal == ProximalPolicy::kRecompute;
  trainer.mask_truncated = options.algorithm.mask_truncated;
  trainer.commit_every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  trainer.eval_every = static_cast<std::uint64_t>(options.eval.every_steps);
  return trainer;
}

actors::SampleStreamOptions stream_options(const RlOptions& options,
                                           const engines::ModelConfig& config) {
  actors::SampleStreamOptions stream;
  stream.group_size = static_cast<std::uint32_t>(options.rollout.group_size);
  stream.max_staleness = static_cast<std::uint64_t>(options.staleness.max);
  stream.max_deliveries = static_cast<std::uint32_t>(options.stream.max_deliveries);
  stream.on_failed = options.reward.on_failed == OnFailedSample::kShrink
                         ? storage::OnFailedRow::kShrink
                         : storage::OnFailedRow::kDropGroup;
  stream.lease = std::chrono::milliseconds(options.stream.lease_ms);
  stream.limit_bytes = static_cast<std::uint64_t>(options.stream.bytes);
  // Prompt and response ids and log-probabilities take 4 bytes each; texts and the rest are small.
  const auto row_tokens = static_cast<std::uint64_t>(max_prompt_tokens(options, config)) +
                          2 * static_cast<std::uint64_t>(options.rollout.max_new_tokens);
  stream.group_bytes = stream.group_size * (4 * row_tokens + 1024);
  return stream;
}

actors::EvaluatorDeps evaluator(const RlOptions& options, const RlRun& opened) {
  actors::EvaluatorDeps deps;
  deps.decode = [codec = *opened.codec](const auto& ids) { return codec.decode(ids); };
  deps.prompts = opened.eval_prompts;
  deps.samples = static_cast<std::uint32_t>(options.eval.samples);
  deps.sampling.temperature = static_cast<float>(options.eval.temperature);
  deps.seed = options.run.seed;
  deps.max_new_tokens = options.rollout.max_new_tokens;
  deps.stop_ids = stop_ids(options, opened.model.files);
  deps.stop_strings = options.rollout.stop;
  return deps;
}

RlPlan make_plan(const RlOptions& options, const RunEnvironment& run, const RlRun& opened) {
  RlPlan plan;
  plan.rollout_workers = static_cast<std::uint32_t>(options.rollout.workers);
  const std::int64_t batch =
      std::int64_t{options.train.prompts_per_step} * options.rollout.group_size;
  plan.max_concurrent_rows = batch * (options.staleness.max + 1);
  plan.stream = stream_options(options, opened.model.files.config);
  plan.trainer = trainer_options(options, opened.steps);
  plan.rollout.max_in_flight = static_cast<std::uint32_t>(
      std::max<std::int64_t>(1, plan.max_concurrent_rows / options.rollout.workers));
  plan.rollout.sampling = sampling_options(options.rollout);
  plan.rollout.seed = options.run.seed;
  plan.rollout.max_new_tokens = options.rollout.max_new_tokens;
  plan.rollout.stop_ids = stop_ids(options, opened.model.files);
  plan.rollout.stop_strings = options.rollout.stop;
  plan.executor.train_tokens = options.train.common.micro_batch_tokens;
  plan.rewards_in_flight = static_cast<std::uint32_t>(batch);
  plan.open_engines = [&options, &opened, &run](const actors::RunOrigin& origin) {
    return open_engines(options, opened, run, origin);
  };
  plan.make_reward = [&options, &run](std::optional<std::uint32_t>) {
    // The options were tried before the run began; what fails now is a worker that cannot start.
    auto engine =
        engines::make_reward_engine(reward_options(options.reward, run.directory), run.clock);
    return engine.ok() ? std::shared_ptr<engines::RewardEngine>(std::move(engine).value())
                       : std::make_shared<UnstartableReward>(engine.status());
  };
  actors::DatasetPromptOptions prompts;
  prompts.max_prompt_tokens = max_prompt_tokens(options, opened.model.files.config);
  prompts.on_long_prompt = options.data.on_long_prompt == OnBadRow::kSkip
                               ? actors::OnLongPrompt::kSkip
                               : actors::OnLongPrompt::kError;
  prompts.log = run.log;
  plan.reader = actors::make_dataset_prompt_reader(opened.data, *opened.codec, std::move(prompts));
  plan.commits = run.commits;
  plan.decide = actors::make_group_decision(algorithm_of(options));
  plan.make_loss = actors::make_policy_loss(loss_options(options));
  plan.decode = [codec = *opened.codec](const auto& ids) { return codec.decode(ids); };
  plan.observer = run.observer;
  if (!opened.eval_prompts.empty()) {
    plan.evaluator = evaluator(options, opened);
  }
  plan.device_port = opened.device_port.get();
  plan.io_port = opened.io_port.get();
  plan.reward_ports = {opened.reward_port.get()};
  plan.eval_port = opened.eval_port.get();
  return plan;
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

Result<actors::RunSummary> run_rl(const RlOptions& options, const RunEnvironment& run) {
  RlRun opened;
  TIDEMILL_ASSIGN_OR_RETURN(
      opened.model, open_trained_model(options.model, options.train.common, options.run.seed));
  TIDEMILL_RETURN_IF_ERROR(open_data(options, run, opened));
  TIDEMILL_ASSIGN_OR_RETURN(opened.steps, total_steps(options, opened.data->num_rows()));
  TIDEMILL_RETURN_IF_ERROR(
      engines::make_reward_engine(reward_options(options.reward, run.directory), run.clock)
          .status());
  opened.device_port = actors::make_thread_work_port("device");
  opened.io_port = actors::make_thread_work_port("io");
  opened.reward_port = actors::make_thread_work_port("reward");
  opened.eval_port = actors::make_thread_work_port("eval");
  TIDEMILL_ASSIGN_OR_RETURN(actors::RunSummary summary, run_to_end(run, [&](auto on_end) {
                              RlHooks hooks;
                              hooks.on_end = std::move(on_end);
                              hooks.log = run.log;
                              hooks.first_incarnation = run.first_incarnation;
                              return spawn_rl_run(run.system, make_plan(options, run, opened),
                                                  std::move(hooks));
                            }));
  TIDEMILL_RETURN_IF_ERROR(export_weights(opened.model, options.model, summary.weights, run));
  return summary;
}

}  // namespace tidemill::workflows
