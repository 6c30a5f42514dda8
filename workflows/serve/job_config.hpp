// SPDX-License-Identifier: Apache-2.0
// Private to workflows/serve. Translates fine-tuning jobs into the configurations of runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "actors/tuning/tuning_run.hpp"
#include "base/result.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "workflows/rl_options.hpp"
#include "workflows/serve_options.hpp"
#include "workflows/sft_options.hpp"

namespace tidemill::workflows {

/// What a job needs to know beyond what the client asked for.
struct JobInputs {
  std::string training_path;      // of the file with the rows
  std::string validation_path;    // empty: none
  std::uint64_t num_rows = 0;     // lines of the training file
  std::int64_t memory_bytes = 0;  // that the job may take
  std::int64_t max_tokens = 0;    // of a sequence (`max_job_tokens`)
};

/// The id of the file that a server offers as an example (`TuningOptions::example`).
inline constexpr std::string_view kExampleFile = "file-quickstart";

/// Expands a request for the example file (`quickstart` or `kExampleFile`). If its method is
/// supervised, explicitly or by default, and it sets no hyperparameters or overrides, it becomes a
/// reinforcement job of 80 steps with the reward `number`, 32 prompts per step, a learning-rate
/// multiplier of 40, and responses of at most 4 tokens. Of every other request, only the name
/// `quickstart` is replaced by the id of the file.
[[nodiscard]] storage::JobSpec expand_example(storage::JobSpec spec);

/// Returns the hyperparameters of a job, with a value in place of each "auto":
/// - `batch_size`: a 500th of the rows, at least 1 and at most 32 (supervised) or 16
/// (reinforcement);
/// - `n_epochs`: 3 (supervised) or 1; "auto" stays if `train.steps` among the overrides decides;
/// - `learning_rate_multiplier`: 1; `eval_interval`: 10 steps, with a validation file;
///   `eval_samples`: 1.
/// Overrides of the keys that these set (`train.learning_rate`, `eval.every_steps`, `eval.samples`)
/// count.
[[nodiscard]] storage::JobHyperparameters resolve(const storage::JobSpec& spec,
                                                  std::uint64_t num_rows);

/// Returns the most tokens of a sequence of a job: the smaller of the model's context and
/// `serve.tuning.job_tokens`.
[[nodiscard]] std::int64_t max_job_tokens(const ServeOptions& server,
                                          const engines::ModelConfig& model);

/// Returns the configuration of a job's run, as JSON, which is YAML. The run trains a new adapter
/// over the served model: LoRA, or IA3 if an override says so. The base learning rate is 2e-4, or
/// 5e-5 for reinforcement. Responses of a reinforcement job have at most 256 tokens, and at most
/// half of `JobInputs::max_tokens`, unless the request says otherwise.
/// Errors: `kInvalidArgument`, beginning with the field of the request: a grader that has no
/// counterpart; an adapter of another kind; an override that jobs may not set ("tidemill.KEY: "),
/// that belongs to the other method, that contradicts a hyperparameter, or that needs a validation
/// file.
[[nodiscard]] Result<std::string> job_config(const ServeOptions& server,
                                             const storage::JobSpec& spec, const JobInputs& inputs);

/// Lowers `data.max_prompt_tokens` of a job, or sets it, so that no sequence has more than
/// `max_tokens` tokens, for reinforcement with its response. Returns whether that changed it.
bool limit_sequences(std::int64_t max_tokens, std::variant<SftOptions, RlOptions>& job);

/// Checks that the epochs of a job with `num_rows` rows make at least one batch.
/// Errors: `kInvalidArgument` beginning with the field of the request.
[[nodiscard]] Status check_rows(const storage::JobSpec& spec, std::uint64_t num_rows);

/// Checks what is known about a job before its rows are read: that its options suit the model, that
/// its longest prompts and responses fit in a sequence (`max_job_tokens`), that it has at most 64
/// rewards, and that their patterns are valid.
/// Errors: `kInvalidArgument` beginning with the key.
[[nodiscard]] Status check_options(const std::variant<SftOptions, RlOptions>& job,
                                   const ServeOptions& server, const engines::ModelConfig& model);

/// Returns the name under which clients request the model of a job: "ft:MODEL:SUFFIX:ID", where ID
/// are the last 8 characters of the job's id.
[[nodiscard]] std::string tuned_model_name(const std::string& model, const storage::JobRecord& job);

}  // namespace tidemill::workflows
