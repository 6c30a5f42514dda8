// SPDX-License-Identifier: Apache-2.0
// One model on one device: the runtime, its options, and estimates of its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.hpp"
#include "base/dtype.hpp"
#include "base/result.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/optimizer/adamw.hpp"
#include "engines/optimizer/learning_rate.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/snapshot.hpp"
#include "engines/train_engine.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

struct OpProfile;  // engines/ops/profile/op_profile.hpp

/// Which tensors are excluded from weight decay.
enum class DecayExclude : std::uint8_t { kNone, kNormsAndBiases };

/// How a model is trained.
struct OptimizerOptions {
  AdamWOptions adamw;
  LearningRateOptions schedule;
  std::int64_t total_steps = 1;  // optimizer steps, for the learning-rate schedule
  double weight_decay = 0.0;
  DecayExclude weight_decay_exclude = DecayExclude::kNormsAndBiases;
  double max_grad_norm = 1.0;  // 0: no clipping
};

/// The implementation of the operations.
enum class Backend : std::uint8_t { kCpu, kReference };

/// Options of a runtime.
struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  int threads = 1;  // at most 1,024; 0: `usable_cores` (engines/executor/cores.hpp)
  /// The element type of the base weights in products: kF32, kBF16 (with f32 accumulation; trained
  /// weights are also kept in f32), kBlockI8 or kNf4. The last two require that the base is not
  /// trained.
  DType compute = DType::kF32;
  /// The type that both views round cached keys and values to: kF32 or kBF16.
  DType kv_dtype = DType::kF32;
  /// Memory for cached keys and values, of both views together.
  std::int64_t kv_bytes = std::int64_t{64} << 20U;
  /// The maximum bytes of activations that one training micro-batch may keep.
  std::int64_t activation_bytes = std::int64_t{1} << 30U;
  /// What the backward pass computes again instead of keeping. Changes no bit of any gradient.
  Recompute recompute = Recompute::kNone;
  /// Memory for the rows of requests with `keep_rows`, which are kept until the weights change.
  /// Training on them with the weights that generated them does not run their layers again, and
  /// gives the same bits. If this is 0 or `recompute` is not kNone, no rows are kept.
  std::int64_t generated_bytes = 0;
  /// The number of rows that the backward pass takes through a layer at a time. It splits longer
  /// sequences into windows (`BackwardOptions`). 0: sequences are not split.
  std::int64_t window_tokens = 0;
  /// The maximum number of sequences generated at the same time; others wait.
  std::int64_t max_running = 256;
  /// Whether requests with the same beginning compute it once. Changes no bit of any result.
  bool share_prefixes = true;
  /// Measures the time limits of requests, and must outlive the runtime. If null, requests with a
  /// time limit are refused.
  const Clock* clock = nullptr;
  /// The policy's adapter over the base. It is trained if `optimizer` is set. If absent, the model
  /// is bare, and training trains all its parameters.
  std::optional<AdapterFiles> adapter;
  /// Memory for adapters loaded by name, in addition to the policy. It includes replaced and
  /// unloaded adapters that requests still use. 0: no adapter can be loaded by name.
  std::int64_t adapter_bytes = 0;
  /// If absent, there is no training view.
  std::optional<OptimizerOptions> optimizer;
  /// Records the time of each operation, or null. Must outlive the runtime.
  OpProfile* profile = nullptr;
  /// Returns the bytes that a token appends to the text of a response, for stop strings. If empty,
  /// requests with stop strings are refused.
  std::function<std::string(std::int32_t)> token_text;
};

/// Returns a one-line warning if `threads` exceeds what the process can keep busy (`usable_cores`
/// in engines/executor/cores.hpp), otherwise "".
[[nodiscard]] std::string threads_warning(int threads);

/// Returns the default type of cached keys and values for weights of type `compute`: kF32 for kF32,
/// otherwise kBF16.
[[nodiscard]] DType cache_type(DType compute) noexcept;

/// A model that generates and trains on one device.
///
/// The base weights of a snapshot are laid out once for both views. Rollout and training run the
/// same forward pass with the same operations, so equal weights give log-probabilities with equal
/// bits.
/// Threads: one call at a time over the runtime and its views. The runtime owns its workers.
class ModelRuntime {
public:
  ModelRuntime() = default;
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;
  virtual ~ModelRuntime() = default;

  [[nodiscard]] virtual RolloutEngine& rollout() = 0;
  /// Returns the training view, or null if the runtime was opened without an optimizer.
  [[nodiscard]] virtual TrainEngine* train() = 0;
  /// Returns the adapters that requests may name.
  [[nodiscard]] virtual NamedAdapters& adapters() = 0;
  /// Returns the weights that both views start from, as version 0 of line 0.
  [[nodiscard]] virtual const Snapshot& initial() const = 0;
  /// Returns a one-line description: operations, threads, and the types of weights and cache.
  [[nodiscard]] virtual std::string_view description() const = 0;
};

/// Makes a new adapter for a model, initialized at random from `seed`. At first it changes no
/// result of the model; see `init_adapter`.
/// Errors: `kInvalidArgument` if a target names no layer of the model; those of `resolve_adapter`,
/// `adapter_spec` and `init_adapter`.
[[nodiscard]] Result<AdapterFiles> make_adapter(const AdapterConfig& config,
                                                const ModelFiles& model, std::uint64_t seed);

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

/// The load of a runtime at one time: either the maximum, or what is likely.
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
  /// (`TrainEngine::score`).
  std::int64_t score_tokens = 0;
  /// Tokens of a micro-batch in prompts that several of its sequences share, and tokens of the
  /// longest of these prompts.
  std::int64_t shared_tokens = 0;
  std::int64_t prompt_tokens = 0;
  /// Tokens of one batch that are generated with `keep_rows` and then trained on.
  std::int64_t kept_tokens = 0;
  /// Tokens sampled in one iteration of generation.
  std::int64_t sampled_tokens = std::numeric_limits<std::int64_t>::max();
};

/// Returns the memory that a runtime with `options` takes for `model` under `load`.
[[nodiscard]] MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                                             const MemoryLoad& load);

/// Sets `activation_bytes` and `kv_bytes` of `options` to what `load` needs on `model`, so that no
/// micro-batch and no sequence of the load is refused. `kv_bytes` stays as it is if the load does
/// not bound `kv_tokens`.
void set_budgets(const ModelConfig& model, const MemoryLoad& load, RuntimeOptions& options);

/// Returns the bytes of cached keys and values that `tokens` positions of one sequence take, in
/// whole pages.
[[nodiscard]] std::int64_t kv_bytes_for(const ModelConfig& model, const RuntimeOptions& options,
                                        std::int64_t tokens);

/// Returns the value of `RuntimeOptions::generated_bytes` that suffices to keep `tokens` tokens.
[[nodiscard]] std::int64_t generated_bytes(const ModelConfig& model, const RuntimeOptions& options,
                                           std::int64_t tokens);

/// Opens a runtime for a model.
/// Errors: `kInvalidArgument` (a bad option; tensors or an adapter that do not fit the model),
/// `kUnimplemented` (training an adapter with dropout), `kResourceExhausted` (a cache too small for
/// one page); for a model that is `unchecked`, those of `check_finite_weights`.
[[nodiscard]] Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                                 const RuntimeOptions& options);

}  // namespace tidemill::engines
