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
  trainer.recompute_proximal = options.algorithm.proximal == ProximalPolicy::kRecompute;
  trainer.mask_truncated = options.algorithm.mask_truncated;
  trainer.commit_every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  trainer.eval_every = static_cast<std::uint64_t>(options.eval.every_steps);
  trainer.best.keep = options.eval.keep_best;
  trainer.best.patience = static_cast<std::uint32_t>(options.eval.patience);
  trainer.best.min_improvement = options.eval.min_improvement;
  return trainer;
}

actors::SampleStreamOptions stream_options(const RlOptions& options,
                                           const engines::ModelConfig& config) {
  actors::SampleStreamOptions stream;
  stream.group_size = static_cast<std::uint32_t>(options.rollout.group_size);
  stream.max_staleness = static_cast<std::uint64_t>(options.staleness.max);
  stream.max_deliveries = static_cast<std::uint32_t>(options.stream.max_deliveries);
  stream.on_failed = options.stream.on_failed == OnFailedSample::kShrink
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

Status check_fit(const RlOptions& options, const engines::ModelConfig& config) {
  if (options.rollout.max_new_tokens >= config.max_positions) {
    return invalid_argument(
        "rollout.max_new_tokens: " + std::to_string(options.rollout.max_new_tokens) +
        " leaves no room for a prompt in the model's context of " +
        std::to_string(config.max_positions));
  }
  const actors::SampleStreamOptions stream = stream_options(options, config);
  if (stream.limit_bytes < stream.group_bytes) {
    return invalid_argument("stream.bytes: " + std::to_string(stream.limit_bytes) +
                            " cannot hold one group, which may take " +
                            std::to_string(stream.group_bytes));
  }
  return {};
}

std::int64_t max_concurrent_rows(const RlOptions& options) {
  return std::int64_t{options.train.prompts_per_step} * options.rollout.group_size *
         (options.staleness.max + 1);
}

Result<std::vector<actors::Prompt>> read_eval_prompts(const RlOptions& options,
                                                      const actors::TextCodec& codec,
                                                      const engines::ModelConfig& config) {
  storage::DatasetOptions eval;
  eval.paths = options.data.eval;
  eval.order = storage::RowOrder::kAsFiled;
  TIDEMILL_ASSIGN_OR_RETURN(const auto data, open_data_set<storage::PromptDataset>(
                                                 eval, "data.eval", [](const auto&) {}));
  return actors::read_all_prompts(*data, codec, prompt_options(options, config));
}

}  // namespace tidemill::workflows
