// SPDX-License-Identifier: Apache-2.0
// The options of a model runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/buffer_allocator.hpp"
#include "base/clock.hpp"
#include "base/tensor/dtype.hpp"
#include "engines/formats/adapter_files.hpp"
#include "engines/optimizer/adamw.hpp"
#include "engines/optimizer/learning_rate.hpp"
#include "engines/step.hpp"
#include "engines/transformer/recompute.hpp"

namespace tidemill::engines {

class BackendFactory;  // engines/ops/backend.hpp
struct OpProfile;      // engines/ops/profile/op_profile.hpp

/// Which tensors weight decay leaves unchanged.
enum class DecayExclude : std::uint8_t { kNone, kNormsAndBiases };

/// Options of the optimizer.
struct OptimizerOptions {
  AdamWOptions adamw;
  LearningRateOptions schedule;
  std::int64_t total_steps = 1;  // optimizer steps, for the learning-rate schedule
  double weight_decay = 0.0;
  DecayExclude weight_decay_exclude = DecayExclude::kNormsAndBiases;
  double max_grad_norm = 1.0;  // 0: no clipping
};

/// Which implementation of `Ops` a runtime computes with.
enum class Backend : std::uint8_t {
  kCpu,
  kReference,  // plain loops, for tests
  kGuarded,    // kCpu on memory that the host cannot read, run as late as allowed; for tests
};

/// The maximum numbers of rows that a runtime computes or holds at a time. Opening a runtime or a
/// job reserves memory for them; pages of it are touched only as rows are computed. The limits
/// change no bit of any result.
struct RowLimits {
  /// Rows of one iteration of generation, at least 1. Larger step budgets are reduced to this.
  std::int64_t rollout_rows = StepBudget{}.tokens;
  /// Rows whose logits generation computes at a time. Reduced to `rollout_rows` and to
  /// `RuntimeContext::logit_rows`. 0: as many as these allow.
  std::int64_t sampled_rows = 0;
  /// Rows of one training pass. 0: as many as `activation_bytes` and `kv_bytes` hold.
  std::int64_t train_rows = 0;
  /// Rows of one training sequence. Longer sequences are refused. 0: as many as the context and a
  /// pass hold.
  std::int64_t sequence_rows = 0;
  /// Rows of a prompt that training sequences share, for whose gradients a job reserves memory when
  /// it is opened. For a longer prompt, memory is reserved when a batch with that prompt starts.
  std::int64_t prompt_rows = 0;
};

/// The largest number of threads of a runtime.
inline constexpr int kMaxThreads = 1024;

/// Options of a runtime.
struct RuntimeOptions {
  Backend backend = Backend::kCpu;
  /// If not null, opens the device instead of the factory of `backend`. Must outlive the runtime.
  const BackendFactory* factory = nullptr;
  int threads = 1;  // at most `kMaxThreads`; 0: `usable_cores` (engines/executor/cores.hpp)
  /// The element type of the base weights in products: kF32, kBF16 (with f32 accumulation; trained
  /// weights are also kept in f32), kBlockI8 or kNf4. The last two require that the base is not
  /// trained.
  DType compute = DType::kF32;
  /// The type that generation and training round cached keys and values to: kF32 or kBF16.
  DType kv_dtype = DType::kF32;
  /// Memory for cached keys and values, of generation and training together.
  std::int64_t kv_bytes = std::int64_t{64} << 20U;
  /// The maximum bytes of activations that one training micro-batch may keep.
  std::int64_t activation_bytes = std::int64_t{1} << 30U;
  /// The maximum memory of the device in bytes, without prepared weights. 0: what the device has.
  /// It is not reserved as such: `limits` and the budgets say how much is.
  std::int64_t device_bytes = 0;
  /// The rows that memory is reserved for.
  RowLimits limits;
  /// What the backward pass computes again instead of keeping. Changes no bit of any gradient.
  Recompute recompute = Recompute::kNone;
  /// Memory for the activations of requests with `keep_rows`, which are kept until the weights
  /// change. Training with the weights that generated a response takes its activations from there
  /// instead of running the layers again, and gives the same bits. If this is 0 or `recompute` is
  /// not kNone, no activations are kept.
  std::int64_t generated_bytes = 0;
  /// The maximum number of rows that training takes through a layer or the head at a time. Longer
  /// sequences are split into windows (`BackwardOptions`). 0: sequences are not split. A multiple
  /// of the backend's `BackendTraits::row_sum_step`.
  std::int64_t window_tokens = 0;
  /// The maximum number of sequences that are generated at the same time; the others wait.
  std::int64_t max_running = 256;
  /// Whether a prefix that several requests share is computed only once. Changes no bit of any
  /// result.
  bool share_prefixes = true;
  /// The clock for the time limits of requests. It must outlive the runtime. If null, requests with
  /// a time limit are refused.
  const Clock* clock = nullptr;
  /// The policy's adapter over the base. If a job trains the policy, it trains the adapter. Without
  /// an adapter, it trains all parameters of the model.
  std::optional<AdapterFiles> adapter;
  /// Memory for adapters that are loaded by name, in addition to the policy's. Adapters that were
  /// replaced or unloaded count while requests still use them. 0: none can be loaded by name.
  std::int64_t adapter_bytes = 0;
  /// If absent, no job trains the policy.
  std::optional<OptimizerOptions> optimizer;
  /// Whether jobs that train other adapters may be opened (`ModelRuntime::open_job`). The base is
  /// then prepared for gradients even if nothing trains the policy.
  bool trains_adapters = false;
  /// Supplies the memory of published weights. Must outlive the runtime. If null, the heap does.
  BufferAllocator* allocator = nullptr;
  /// If not null, records the time of each operation. Must outlive the runtime.
  OpProfile* profile = nullptr;
  /// Returns the bytes that a token appends to the text of a response, for stop strings. If empty,
  /// requests with stop strings are refused.
  std::function<std::string(std::int32_t)> token_text;
};

/// Returns how many threads a runtime with the option `threads` computes with. If it is 0, that is
/// `usable_cores` (engines/executor/cores.hpp), but at most `kMaxThreads`. Reads the affinity mask
/// and the processor quota of the process at each call.
[[nodiscard]] int num_threads(int threads);

/// Returns a one-line warning if `threads` exceeds what the process can keep busy (`usable_cores`
/// in engines/executor/cores.hpp), otherwise "".
[[nodiscard]] std::string threads_warning(int threads);

/// Returns the default type of cached keys and values for weights of type `compute`: kF32 for kF32,
/// otherwise kBF16.
[[nodiscard]] DType cache_type(DType compute) noexcept;

}  // namespace tidemill::engines
