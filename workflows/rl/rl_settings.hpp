// SPDX-License-Identifier: Apache-2.0
// Translates the options of reinforcement learning into those of data sets, engines and actors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/algorithm/algorithm.hpp"
#include "actors/data/dataset_prompts.hpp"
#include "actors/evaluator/spawn.hpp"
#include "actors/stream/spawn.hpp"
#include "actors/trainer/spawn.hpp"
#include "engines/executor/executor_options.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/sampling/sampling_options.hpp"
#include "workflows/rl_options.hpp"

namespace tidemill::workflows {

/// Returns the length of the longest prompt that leaves room for a response of maximum length in
/// the model's context, or `data.max_prompt_tokens` if that is smaller. Units: tokens.
[[nodiscard]] std::int64_t max_prompt_tokens(const RlOptions& options,
                                             const engines::ModelConfig& config);

/// Returns how to encode the prompts of the data.
[[nodiscard]] actors::DatasetPromptOptions prompt_options(const RlOptions& options,
                                                          const engines::ModelConfig& config);

/// Returns the options of the loss.
[[nodiscard]] engines::PolicyTokenLossOptions loss_options(const RlOptions& options);

/// Returns the tokens that end a response: those of the model's files and those of the options.
[[nodiscard]] std::vector<std::int32_t> stop_ids(const RlOptions& options,
                                                 const engines::ModelFiles& files);

/// Returns how responses are sampled.
[[nodiscard]] engines::SamplingOptions sampling_options(const RolloutOptions& rollout);

/// Returns how rollout and training share the device.
[[nodiscard]] engines::ExecutorOptions executor_options(const RlOptions& options);

/// Returns the options of the trainer of a run of `steps` steps.
[[nodiscard]] actors::TrainerOptions trainer_options(const RlOptions& options, std::uint64_t steps);

/// Returns how the evaluator generates. The caller adds the prompts, the decoder, and what the
/// evaluator works with.
[[nodiscard]] actors::EvaluatorDeps evaluator_deps(const RlOptions& options,
                                                   const engines::ModelFiles& files);

/// Returns the options of the stream. `prompt_bytes` is the largest size of a prompt in a row
/// (`actors::PromptFacts::max_bytes`).
[[nodiscard]] actors::SampleStreamOptions stream_options(const RlOptions& options,
                                                         std::uint64_t prompt_bytes);

/// Checks that the model's context has room for prompts, and the cache for at least one page.
/// Errors: `kInvalidArgument` naming the key.
[[nodiscard]] Status check_fit(const RlOptions& options, const engines::ModelConfig& config);

/// Checks that `rollout.kv_bytes`, if given, is at least `needed_bytes`, the size of the longest
/// sequence, and at most `allowed_bytes`, the memory that the run may use. `prompts` names the
/// location of the longest prompt.
/// Errors: `kInvalidArgument` naming the key, the needed size and the longest prompt, or the
/// allowed size.
[[nodiscard]] Status check_cache(const RlOptions& options, const actors::Lengths& prompts,
                                 std::int64_t needed_bytes, std::int64_t allowed_bytes);

/// Checks that the stream can hold the rows that must be in it at the same time: one batch, because
/// the trainer takes a whole batch, or `staleness.max` + 1 batches with `staleness.schedule:
/// fixed`.
/// Errors: `kInvalidArgument` naming the key, the needed size and the largest prompt.
[[nodiscard]] Status check_batch_fits(const RlOptions& options, const actors::PromptFacts& facts);

/// Returns how many rows may be admitted but not yet trained at the same time.
[[nodiscard]] std::int64_t max_concurrent_rows(const RlOptions& options);

/// Returns a line that says how many prompts of `key` are too long, and what was done with them.
[[nodiscard]] std::string long_prompts_text(const std::string& key, const DataOptions& data,
                                            const actors::LongPrompts& too_long,
                                            std::uint64_t num_rows);

/// Reads all prompts of `data.eval`, in the order of the files. Logs how many are too long.
/// Errors: those of `open_data_set`; `kInvalidArgument` naming file and line if a prompt cannot be
/// used, or if every prompt is too long.
[[nodiscard]] Result<actors::AllPrompts> read_eval_prompts(
    const RlOptions& options, const actors::TextCodec& codec, const engines::ModelConfig& config,
    const std::function<void(const std::string&)>& log);

}  // namespace tidemill::workflows
