// SPDX-License-Identifier: Apache-2.0
#include "workflows/sft/sft_settings.hpp"

#include "workflows/model_run.hpp"

namespace tidemill::workflows {

Status check_fit(const SftOptions& options, const engines::ModelConfig& config) {
  const std::int64_t tokens = options.data.max_prompt_tokens.value_or(0);
  return tokens <= config.max_positions
             ? Status()
             : invalid_argument("data.max_prompt_tokens: " + std::to_string(tokens) +
                                " exceeds the model's context of " +
                                std::to_string(config.max_positions));
}

actors::SupervisedDeps supervised_deps(const SftOptions& options, std::uint64_t steps) {
  actors::SupervisedDeps deps;
  deps.total_steps = steps;
  deps.sequences_per_step = static_cast<std::uint32_t>(options.train.sequences_per_step);
  deps.commit_every = static_cast<std::uint64_t>(options.run.checkpoint.every_steps);
  deps.commit_interval = std::chrono::seconds(options.run.checkpoint.every_seconds);
  deps.eval_every = static_cast<std::uint64_t>(options.eval.every_steps);
  deps.best_options = best_options(options.eval, actors::Better::kLower);
  return deps;
}

}  // namespace tidemill::workflows
