// SPDX-License-Identifier: Apache-2.0
// One model on one device: base weights that exist once, and the two views that use them.
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
#include "engines/optimizer/schedule.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/snapshot.hpp"
#include "engines/train_engine.hpp"
#include "engines/transformer/kv_cache.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

struct OpProfile;  // engines/ops/profile/op_profile.hpp

/// Which tensors do not decay.
enum class DecayExclude : std::uint8_t { kNone, kNormsAndBiases };

/// How a model is trained.
struct OptimizerOptions {
  AdamWOptions adamw;
  ScheduleOptions schedule;
  std::int64_t total_steps = 1;  // optimizer steps, for the schedule
  double weight_decay = 0.0;
  DecayExclude weight_decay_exclude = DecayExclude::kNormsAndBiases;
  double max_grad_norm = 1.0;  // 0: no clipping
};

/// Which implementation of the operations is used.
enum class Backend : std::uint8_t { kCpu, kReference };

/// What a runtime is opened with.
struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  int threads = 1;  // at most 1,024; 0: `usable_cores` (engines/executor/cores.hpp)
  /// kF32, kBF16 (f32 accumulation; trained weights are kept in f32), kBlockI8 or kNf4 for weights
  /// that are not trained: the adapter alone, or nothing.
  DType compute = DType::kF32;
  /// What cached keys and values are rounded to, in both views.
  DType kv_dtype = DType::kF32;
  /// Memory of cached keys and values, of both views together.
  std::int64_t kv_bytes = std::int64_t{64} << 20U;
  /// The most bytes of activations one training micro-batch may keep.
  std::int64_t activation_bytes = std::int64_t{1} << 30U;
  /// What the backward pass computes again instead of keeping it; changes no bit of any gradient.
  Recompute recompute = Recompute::kNone;
  /// Memory for what is computed of requests with `keep_rows`, kept until the weights change:
  /// training on them with the weights that generated them does not run their layers again, and
  /// gets the same bits. 0, or a policy other than kNone: nothing is kept.
  std::int64_t generated_bytes = 0;
  /// Rows that the backward pass takes through a layer together, longer sequences going window by
  /// window (`BackwardOptions`); 0: no sequence is cut.
  std::int64_t window_tokens = 0;
  /// Sequences generated at the same time; more wait.
  std::int64_t max_running = 256;
  /// Whether requests that begin alike compute what they share once; changes no bit of any result.
  bool share_prefixes = true;
  /// Measures the time limits of requests, and must outlive the runtime. Null: a request with a
  /// time limit is refused.
  const Clock* clock = nullptr;
  /// An adapter over the base: generated with, and trained when `optimizer` is given. Absent: the
  /// bare model, whose parameters are all trained.
  std::optional<AdapterFiles> adapter;
  /// Memory for adapters that are loaded by name beside the policy, those included that requests
  /// still finish under. 0: none can be loaded.
  std::int64_t adapter_bytes = 0;
  /// Absent: there is no training view.
  std::optional<OptimizerOptions> optimizer;
  /// Where each operation's time is written down, or null; must outlive the runtime.
  OpProfile* profile = nullptr;
  /// Text of token ids appended to a stream, for stop strings: bytes of one token. May be empty
  /// when no request has stop strings.
  std::function<std::string(std::int32_t)> token_text;
};

/// Returns one line about `threads` being more than the process can keep busy (`usable_cores` in
/// engines/executor/cores.hpp), or "".
[[nodiscard]] std::string threads_warning(int threads);

/// Returns what keys and values are cached in beside weights of type `compute`, unless somebody
/// asks for another: the same, or kBF16 beside blocks.
[[nodiscard]] DType cache_type(DType compute) noexcept;

/// A model that generates and trains on one device.
///
/// The base weights of a snapshot are laid out once; rollout and training run the same forward on
/// the same operations, so their log-probabilities have the same bits for the same weights.
/// Threads: one call at a time over runtime and views together; the runtime owns its own workers.
class ModelRuntime {
public:
  ModelRuntime() = default;
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;
  virtual ~ModelRuntime() = default;

  [[nodiscard]] virtual RolloutEngine& rollout() = 0;
  /// Returns the training view, or null.
  [[nodiscard]] virtual TrainEngine* train() = 0;
  /// Returns the adapters that requests may name beside the policy.
  [[nodiscard]] virtual NamedAdapters& adapters() = 0;
  /// Returns the weights opened with, as version 0 of line 0: what both views start from.
  [[nodiscard]] virtual const Snapshot& initial() const = 0;
  /// Returns what the device is and how it computes, in one line.
  [[nodiscard]] virtual std::string_view description() const = 0;
};

/// Makes a fresh adapter for a model, random by the seed, that changes nothing at first: see
/// `init_adapter`. Errors: those of `resolve_adapter`, `adapter_spec` and `init_adapter`.
[[nodiscard]] Result<AdapterFiles> make_adapter(const AdapterConfig& config,
                                                const ModelFiles& model, std::uint64_t seed);

/// What a run will need, before it starts.
struct MemoryEstimate {
  std::int64_t weights_bytes = 0;  // of all copies
  std::int64_t kv_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t optimizer_bytes = 0;
  std::int64_t capture_bytes = 0;     // of the trainer's state, while a commit is written
  std::int64_t activation_bytes = 0;  // of the largest micro-batch allowed
  std::int64_t generated_bytes = 0;   // of generated rows that are kept for training
  [[nodiscard]] std::int64_t total() const noexcept {
    return weights_bytes + kv_bytes + gradient_bytes + optimizer_bytes + capture_bytes +
           activation_bytes + generated_bytes;
  }
  std::int64_t published_bytes = 0;  // of one version's weights; a part of `weights_bytes`
  std::int64_t given_bytes = 0;      // in memory already; a part of `weights_bytes`
};

/// Positions of a page of cached keys and values, of which a sequence has whole ones.
inline constexpr std::int64_t kPageTokens = KvCacheOptions{}.page_tokens;

/// What a runtime is given to do at once: the most, or what is likely.
struct MemoryLoad {
  std::int64_t train_tokens = 0;     // of one micro-batch
  std::int64_t sequence_tokens = 0;  // of its longest sequence; 0: all of them
  /// Of one iteration of generation; 0: nothing is generated.
  std::int64_t rollout_tokens = StepBudget{}.tokens;
  /// Positions cached at a time.
  std::int64_t kv_tokens = std::numeric_limits<std::int64_t>::max();
  /// Versions are published while training goes on: one is served, one is about to be.
  bool publishes = true;
  /// Published weights held at a time.
  std::int64_t snapshots = 2;
  /// The trainer's state is captured for commits between its steps.
  bool commits = true;
  /// Tokens of sequences whose log-probabilities are computed again by other weights
  /// (`TrainEngine::score`).
  std::int64_t score_tokens = 0;
  /// Of a micro-batch, those of prompts that several of its sequences share, and of the longest of
  /// those prompts.
  std::int64_t shared_tokens = 0;
  std::int64_t prompt_tokens = 0;
  /// Tokens of one batch that are generated with `keep_rows` and then trained on.
  std::int64_t kept_tokens = 0;
  /// Tokens drawn in one iteration of generation.
  std::int64_t draws = std::numeric_limits<std::int64_t>::max();
};

/// Returns the memory that a runtime of `options` takes on `model` under `load`.
[[nodiscard]] MemoryEstimate estimate_memory(const ModelFiles& model, const RuntimeOptions& options,
                                             const MemoryLoad& load);

/// Returns the `RuntimeOptions::generated_bytes` that keep `tokens` generated tokens.
[[nodiscard]] std::int64_t generated_bytes(const ModelConfig& model, const RuntimeOptions& options,
                                           std::int64_t tokens);

/// Opens a runtime on a model.
/// Errors: `kInvalidArgument` (an adapter of another model), `kUnimplemented`
/// (training an adapter with dropout), `kResourceExhausted` (a cache that holds not one page); of a
/// model that is `unchecked`, those of `check_finite_weights`.
[[nodiscard]] Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                                 const RuntimeOptions& options);

}  // namespace tidemill::engines
