// SPDX-License-Identifier: Apache-2.0
#include "workflows/rl/rl_settings.hpp"

#include <algorithm>

#include "workflows/model_run.hpp"

namespace tidemill::workflows {

std::int64_t max_prompt_tokens(const RlOptions& options, const engines::ModelConfig& config) {
  const std::int64_t room = config.max_positions - options.rollout.max_new_tokens;
  return std::min(options.data.max_prompt_tokens.value_or(room), room);
}

actors::DatasetPromptOptions prompt_options(const RlOptions& options,
                                            const engines::ModelConfig& config) {
  return {max_prompt_tokens(options, config), on_long_prompt(options.data)};
}

engines::PolicyTokenLossOptions loss_options(const RlOptions& options) {
  engines::PolicyTokenLossOptions loss;
  loss.policy = chosen_algorithm(options.algorithm, options.rollout.max_new_tokens).policy;
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

std::vector<std::int32_t> stop_ids(const RlOptions& options, const engines::ModelFiles& files) {
  std::vector<std::int32_t> ids = files.generation.eos_token_ids.empty()
                                      ? files.config.eos_token_ids
                                      : files.generation.eos_token_ids;
  ids.insert(ids.end(), options.rollout.stop_ids.begin(), options.rollout.stop_ids.end());
  return ids;
}

engines::ExecutorOptions executor_options(const RlOptions& options) {
  engines::ExecutorOptions executor;
  executor.train_tokens = options.train.common.micro_batch_tokens;
  executor.train_weight = options.executor.train_weight;
  executor.prefill_tokens = options.rollout.prefill_tokens.value_or(executor.prefill_tokens);
  switch (options.executor.priority) {
    case SharingPriority::kShares: executor.precedence = engines::Precedence::kShares; break;
    case SharingPriority::kRollout: executor.precedence = engines::Precedence::kRollout; break;
    case SharingPriority::kTrain: executor.precedence = engines::Precedence::kTrain; break;
  }
  return executor;
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
  trainer.max_new_tokens = options.rollout.max_new_tokens;
  trainer.recompute_proximal = options.algorithm.proximal == ProximalPolicy::kRecompute;
  trainer.mask_truncated = options.algorithm.mask_truncated;
  trainer.commit_every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  trainer.commit_interval = std::chrono::seconds(options.run.checkpoint.every_seconds);
  trainer.eval_every = static_cast<std::uint64_t>(options.eval.common.every_steps);
  trainer.best = best_options(options.eval.common, actors::Better::kHigher);
  return trainer;
}

actors::EvaluatorDeps evaluator_deps(const RlOptions& options, const engines::ModelFiles& files) {
  actors::EvaluatorDeps deps;
  deps.samples = static_cast<std::uint32_t>(options.eval.samples);
  deps.sampling.temperature = static_cast<float>(options.eval.temperature);
  deps.seed = options.run.seed;
  deps.max_new_tokens = options.rollout.max_new_tokens;
  deps.stop_ids = stop_ids(options, files);
  deps.stop_strings = options.rollout.stop;
  deps.max_in_flight = static_cast<std::uint32_t>(engines::RuntimeOptions{}.max_running);
  return deps;
}

actors::SampleStreamOptions stream_options(const RlOptions& options, std::uint64_t prompt_bytes) {
  actors::SampleStreamOptions stream;
  stream.group_size = static_cast<std::uint32_t>(options.rollout.group_size);
  stream.max_staleness = static_cast<std::uint64_t>(options.staleness.max);
  stream.max_deliveries = static_cast<std::uint32_t>(options.stream.max_deliveries);
  stream.on_failed = options.stream.on_failed == OnFailedSample::kShrink
                         ? storage::OnFailedRow::kShrink
                         : storage::OnFailedRow::kDropGroup;
  stream.lease = std::chrono::milliseconds(options.stream.lease_ms);
  stream.limit_bytes = static_cast<std::uint64_t>(options.stream.bytes);
  // Each response token takes 4 bytes for its id and 4 for its log-probability. Versions, rewards
  // and the rest are small.
  const auto new_tokens = static_cast<std::uint64_t>(options.rollout.max_new_tokens);
  stream.group_bytes = stream.group_size * (prompt_bytes + 8 * new_tokens + 1024);
  return stream;
}

Status check_fit(const RlOptions& options, const engines::ModelConfig& config) {
  if (options.rollout.max_new_tokens >= config.max_positions) {
    return invalid_argument(
        "rollout.max_new_tokens: " + std::to_string(options.rollout.max_new_tokens) +
        " leaves no room for a prompt in the model's context of " +
        std::to_string(config.max_positions));
  }
  return {};
}

Status check_cache(const RlOptions& options, const actors::Lengths& prompts,
                   std::int64_t needed_bytes, std::int64_t allowed_bytes) {
  if (options.rollout.kv_bytes.value_or(0) > allowed_bytes) {
    return invalid_argument("rollout.kv_bytes: " + std::to_string(*options.rollout.kv_bytes) +
                            " exceeds the " + std::to_string(allowed_bytes) +
                            " bytes of memory that the run may use");
  }
  if (options.rollout.kv_bytes.value_or(needed_bytes) >= needed_bytes) {
    return {};
  }
  return invalid_argument("rollout.kv_bytes: " + std::to_string(*options.rollout.kv_bytes) +
                          " cannot hold the longest sequence, which takes " +
                          std::to_string(needed_bytes) + " bytes: a prompt of " +
                          std::to_string(prompts.longest()) + " tokens (" +
                          prompts.longest_location() + ") and rollout.max_new_tokens");
}

Status check_batch_fits(const RlOptions& options, const actors::PromptFacts& facts) {
  const actors::SampleStreamOptions stream = stream_options(options, facts.max_bytes);
  // In a fixed order the batches that one version generates are in flight together.
  const bool fixed = options.staleness.schedule == StalenessSchedule::kFixed;
  const std::uint64_t batches = fixed ? static_cast<std::uint64_t>(options.staleness.max) + 1 : 1;
  const std::uint64_t groups = static_cast<std::uint64_t>(options.train.prompts_per_step) * batches;
  if (stream.limit_bytes / groups < stream.group_bytes) {
    return invalid_argument(
        "stream.bytes: " + std::to_string(stream.limit_bytes) + " cannot hold " +
        (batches == 1
             ? "a batch"
             : "the " + std::to_string(batches) + " batches that staleness.schedule: fixed needs") +
        "; " + std::to_string(groups) + " prompts with " + std::to_string(stream.group_size) +
        " samples each may take " + std::to_string(groups * stream.group_bytes) +
        " (the largest prompt: " + facts.largest + ")");
  }
  return {};
}

std::int64_t max_concurrent_rows(const RlOptions& options) {
  return std::int64_t{options.train.prompts_per_step} * options.rollout.group_size *
         (options.staleness.max + 1);
}

std::string long_prompts_text(const std::string& key, const DataOptions& data,
                              const actors::LongPrompts& too_long, std::uint64_t num_rows) {
  return key + ": " + std::to_string(too_long.count) + " of " + std::to_string(num_rows) +
         " prompts are too long and were " +
         (data.on_long_prompt == OnLongPrompt::kSkip ? "skipped" : "truncated") +
         "; the first: " + too_long.first;
}

Result<actors::AllPrompts> read_eval_prompts(const RlOptions& options,
                                             const actors::TextCodec& codec,
                                             const engines::ModelConfig& config,
                                             const std::function<void(const std::string&)>& log) {
  storage::DatasetOptions eval;
  eval.paths = options.data.eval;
  eval.order = storage::RowOrder::kFileOrder;
  TIDEMILL_ASSIGN_OR_RETURN(const auto data, open_data_set<storage::PromptDataset>(
                                                 eval, "data.eval", [](const auto&) {}));
  TIDEMILL_ASSIGN_OR_RETURN(
      actors::AllPrompts all,
      actors::read_all_prompts(*data, codec, prompt_options(options, config)));
  if (all.too_long.count > 0) {
    log(long_prompts_text("data.eval", options.data, all.too_long, data->num_rows()));
  }
  return all;
}

}  // namespace tidemill::workflows
