// SPDX-License-Identifier: Apache-2.0
// What the options of reinforcement learning mean to data sets, engines and actors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/algorithm/algorithm.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/trainer/spawn.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/runtime/factory.hpp"
#include "engines/sampling/sampling_options.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// Returns the longest prompt that leaves room for a whole answer, or the option if that is less.
[[nodiscard]] std::int64_t max_prompt_tokens(const RlOptions& options,
                                             const engines::ModelConfig& config);

[[nodiscard]] actors::DatasetPromptOptions prompt_options(const RlOptions& options,
                                                          const engines::ModelConfig& config);

[[nodiscard]] engines::PolicyTokenLossOptions loss_options(const RlOptions& options);

/// Returns the tokens that end a response: the model files' and the options'.
[[nodiscard]] std::vector<std::int32_t> stop_ids(const RlOptions& options,
                                                 const engines::ModelFiles& files);

[[nodiscard]] engines::SamplingOptions sampling_options(const RolloutOptions& rollout);

[[nodiscard]] engines::ExecutorOptions executor_options(const RlOptions& options);

[[nodiscard]] actors::TrainerOptions trainer_options(const RlOptions& options, std::uint64_t steps);

/// `prompt_bytes`: the most that a prompt takes in a row (`actors::PromptFacts::most_bytes`).
[[nodiscard]] actors::SampleStreamOptions stream_options(const RlOptions& options,
                                                         std::uint64_t prompt_bytes);

/// Checks what the options ask of a model: room for prompts.
/// Errors: `kInvalidArgument` naming the key.
[[nodiscard]] Status check_fit(const RlOptions& options, const engines::ModelConfig& config);

/// Checks that the stream holds a whole batch of these prompts: the trainer takes it as one.
/// Errors: `kInvalidArgument` naming the key, what is needed and the largest prompt.
[[nodiscard]] Status check_batch_fits(const RlOptions& options, const actors::PromptFacts& facts);

/// Returns the rows that may be admitted and untrained at the same time.
[[nodiscard]] std::int64_t max_concurrent_rows(const RlOptions& options);

/// Says in one line how many prompts of `key` are too long, and what becomes of them.
[[nodiscard]] std::string long_prompts_text(const std::string& key, const DataOptions& data,
                                            const actors::LongPrompts& too_long,
                                            std::uint64_t num_rows);

/// Reads all prompts of `data.eval`, in the order of the files; logs how many are too long.
/// Errors: naming file and line.
[[nodiscard]] Result<std::vector<actors::Prompt>> read_eval_prompts(
    const RlOptions& options, const actors::TextCodec& codec, const engines::ModelConfig& config,
    const std::function<void(const std::string&)>& log);

}  // namespace tidemill::workflows
