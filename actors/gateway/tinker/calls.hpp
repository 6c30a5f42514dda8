// SPDX-License-Identifier: Apache-2.0
// The requests of Tinker's API as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/gateway/openai/api_error.hpp"
#include "actors/gateway/tinker/age.hpp"
#include "engines/rl/token_sum_loss.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/training_job.hpp"

namespace tidemill::actors::tinker {

using openai::ApiError;

/// Text that clients attach to sessions, models and checkpoints.
using Metadata = std::map<std::string, std::string>;

/// Where a request stands among those of its model. They run in ascending order of `seq_id`, which
/// begins with 1 and has no gaps, whatever the order in which they arrive.
struct QueueTurn {
  std::string model_id;
  std::int64_t seq_id = 0;
  std::string digest = {};  // of the request; see `parse_call`
};

/// A request that is refused. If its turn is known, the turn is used up: later requests of the
/// model must not wait for it.
struct RefusedCall {
  ApiError error;
  std::optional<QueueTurn> turn;
  bool backward = false;  // it was to add gradients, so those of its model are incomplete
};

/// A request, or why it is refused.
template <class T>
using CallResult = std::variant<T, RefusedCall>;

/// What a checkpoint is for.
enum class CheckpointKind : std::uint8_t {
  kTraining,  // weights and the state of the optimizer
  kSampler,   // weights to generate with
  kExternal,  // an adapter in the PEFT layout, to download
};

/// Returns "weights", "sampler_weights" or "external_weights", as paths name the kinds.
[[nodiscard]] std::string_view kind_segment(CheckpointKind kind) noexcept;
/// Returns "training", "sampler" or "external".
[[nodiscard]] std::string_view kind_name(CheckpointKind kind) noexcept;

/// What the texts of all checkpoint paths begin with. They are the names of the adapters, too.
inline constexpr std::string_view kScheme = "tinker://";

/// Names a checkpoint: tinker://RUN/SEGMENT/NAME.
struct CheckpointPath {
  std::string run_id;
  CheckpointKind kind = CheckpointKind::kTraining;
  std::string name;
  friend auto operator<=>(const CheckpointPath&, const CheckpointPath&) = default;
};

/// Returns the path as text.
[[nodiscard]] std::string to_text(const CheckpointPath& path);
/// Parses a path. Errors: `kInvalidArgument`.
[[nodiscard]] Result<CheckpointPath> parse_checkpoint_path(std::string_view text);

/// /api/v1/create_session
struct CreateSession {
  std::vector<std::string> tags;
  Metadata user_metadata;
  std::string display_name;
};

/// Which modules of a model get a LoRA adapter, and how it starts.
struct LoraSettings {
  std::int32_t rank = 32;
  std::optional<std::uint64_t> seed;
  bool train_attn = true;
  bool train_mlp = true;
  bool train_unembed = true;
  friend bool operator==(const LoraSettings&, const LoraSettings&) = default;
};

/// /api/v1/create_model
struct CreateModel {
  std::string session_id;
  std::int64_t model_seq_id = 0;
  std::string base_model;
  LoraSettings lora;
  Metadata user_metadata;
  std::string digest = {};  // of the request
};

/// /api/v1/load_weights: into the model of `turn`, or into a new one if there is none.
struct LoadWeights {
  std::optional<QueueTurn> turn;
  std::string session_id;         // of a new model
  std::int64_t model_seq_id = 0;  // likewise
  std::string base_model;         // empty: that of the checkpoint
  Metadata user_metadata;
  CheckpointPath path;
  bool with_optimizer = false;
  std::string digest = {};  // of the request
};

/// /api/v1/save_weights, /save_weights_for_sampler and /save_weights_external
struct SaveWeights {
  QueueTurn turn;
  CheckpointKind kind = CheckpointKind::kTraining;
  /// Absent for weights that only the sampling session `sampling_seq_id` uses.
  std::optional<std::string> name;
  std::optional<std::int64_t> sampling_seq_id;
  std::optional<std::int64_t> ttl_seconds;
  bool overwrite = false;
  Metadata user_metadata;
  std::vector<AgeRecipient> recipients;  // of an external checkpoint; empty: it is not encrypted
};

/// /api/v1/optim_step
struct OptimStepCall {
  QueueTurn turn;
  engines::OptimStep step;
};

/// /api/v1/forward_backward. Position t of a datum is token t + 1 of its sequence, which has one
/// token more than the model input. The ids of the sequences are 0, 1, 2, ...
struct ForwardCall {
  QueueTurn turn;
  bool forward_only = false;
  engines::TokenSumOptions loss;
  std::vector<engines::TrainSequence> sequences;
};

/// /api/v1/create_sampling_session
struct CreateSamplingSession {
  std::string session_id;
  std::int64_t sampling_seq_id = 0;
  std::string base_model;              // empty: that of the path
  std::optional<CheckpointPath> path;  // absent: the base model
};

/// /api/v1/asample
struct SampleCall {
  std::string sampling_session_id;
  std::int64_t seq_id = 0;
  std::int32_t num_samples = 1;
  /// What all samples share. The id, the seed, the draw key and the adapter are missing.
  engines::RolloutRequest settings;
  std::optional<std::uint64_t> seed;
  /// If set, only the last prompt tokens have log-probabilities in the response.
  std::optional<std::size_t> prompt_logprobs_last_n;
  std::string digest = {};  // of the request
};

/// /api/v1/retrieve_futures
struct RetrieveFutures {
  std::string sampling_session_id;
  std::int64_t cloned_sampler_id = 0;
  std::int64_t previous_cursor = 0;
  std::optional<double> timeout_seconds;
  std::vector<std::string> retrieved;
};

}  // namespace tidemill::actors::tinker
