// SPDX-License-Identifier: Apache-2.0
// Estimates of the memory that a runtime takes.
#pragma once

#include <cstdint>
#include <limits>

#include "engines/formats/model_files.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/step.hpp"
#include "engines/transformer/kv_cache.hpp"

namespace tidemill::engines {

/// The memory that a run will need, estimated before it starts. Units: bytes.
struct MemoryEstimate {
  std::int64_t weights_bytes = 0;  // all copies
  std::int64_t kv_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  std::int64_t capture_bytes = 0;     // the trainer's state, captured while a commit is written
  std::int64_t activation_bytes = 0;  // of the largest micro-batch, and temporary buffers
  std::int64_t generated_bytes = 0;   // generated rows that are kept for training
  [[nodiscard]] std::int64_t total() const noexcept {
    return weights_bytes + kv_bytes + gradient_bytes + optimizer_bytes + capture_bytes +
           activation_bytes + generated_bytes;
  }
  std::int64_t published_bytes = 0;  // one version's weights; part of `weights_bytes`
  std::int64_t preloaded_bytes = 0;  // already in memory; part of `weights_bytes`
};

/// The number of positions in a page of cached keys and values. Sequences hold whole pages.
inline constexpr std::int64_t kPageTokens = KvCacheOptions{}.page_tokens;

/// How much a runtime holds and computes at one time: either the maximum, or a likely value.
struct MemoryLoad {
  std::int64_t train_tokens = 0;     // in one micro-batch
  std::int64_t sequence_tokens = 0;  // in its longest sequence; 0: all of `train_tokens`
  /// Tokens computed in one iteration of generation. 0: nothing is generated.
  std::int64_t rollout_tokens = StepBudget{}.tokens;
  /// Positions cached at one time.
  std::int64_t kv_tokens = std::numeric_limits<std::int64_t>::max();
  /// Whether versions are published during training, so that the next one is loaded while one is
  /// served.
  bool publishes = true;
  /// The number of published versions held at one time.
  std::int64_t snapshots = 2;
  /// Whether the trainer's state is captured for commits.
  bool commits = true;
  /// Tokens of sequences whose log-probabilities are also computed under other weights
  /// (`TrainingJob::score`).
  std::int64_t score_tokens = 0;
  /// Tokens of the prompts that several sequences of a micro-batch share.
  std::int64_t shared_tokens = 0;
  /// Tokens of the longest of these prompts.
  std::int64_t prompt_tokens = 0;
  /// Tokens of one batch that are generated with `keep_rows` and then trained on.
  std::int64_t kept_tokens = 0;
  /// Tokens sampled in one iteration of generation.
  std::int64_t sampled_tokens = std::numeric_limits<std::int64_t>::max();
  /// Whether only the memory of a job counts that another runtime opens over its base
  /// (`ModelRuntime::open_job`). The laid-out base, the cache and what generation takes belong to
  /// that runtime. The tensors of the model's files count if they are on the heap, because the job
  /// has files of its own.
  bool shares_base = false;
};

/// Returns the memory that a runtime with `options` takes for `model` under `load`.
[[nodiscard]] MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                                             const MemoryLoad& load);

/// Sets `activation_bytes`, `limits` and `kv_bytes` of `options` to what `load` needs on `model`,
/// so that no micro-batch and no sequence of the load is refused. `kv_bytes` stays as it is if the
/// load does not bound `kv_tokens`.
void set_budgets(const ModelConfig& model, const MemoryLoad& load, RuntimeOptions& options);

/// Returns the bytes of cached keys and values that `tokens` positions of one sequence take, in
/// whole pages.
[[nodiscard]] std::int64_t kv_bytes_for(const ModelConfig& model, const RuntimeOptions& options,
                                        std::int64_t tokens);

/// Returns the value of `RuntimeOptions::generated_bytes` that suffices to keep `tokens` tokens.
[[nodiscard]] std::int64_t generated_bytes(const ModelConfig& model, const RuntimeOptions& options,
                                           std::int64_t tokens);

}  // namespace tidemill::engines
