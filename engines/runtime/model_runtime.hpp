// SPDX-License-Identifier: Apache-2.0
// One model on one device, which generates and trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/rollout_engine.hpp"
#include "engines/runtime/named_adapters.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/snapshot.hpp"
#include "engines/training_job.hpp"

namespace tidemill::engines {

/// A job that trains an adapter of its own over the base of a runtime.
struct JobOptions {
  AdapterFiles adapter;  // its initial values
  OptimizerOptions optimizer;
  /// As in `RuntimeOptions`. Of the limits, those of generation do not apply.
  std::int64_t activation_bytes = RuntimeOptions().activation_bytes;
  RowLimits limits;
  Recompute recompute = Recompute::kNone;
  std::int64_t window_tokens = 0;
  /// Positions of the cache, in whole pages, that the job holds for its whole life: it never waits
  /// for pages and takes none from generation, and no other user of the cache can take them. Longer
  /// sequences are refused. 0: its micro-batches share the pages of the cache.
  std::int64_t reserved_tokens = 0;
  /// Whether the weights at the start, and at each `load`, are kept for `OptimStep::proximal`. The
  /// job of the policy does not keep them.
  bool keeps_anchor = false;
  /// Supplies the memory of saved weights. Must outlive the job. If null, the heap does.
  BufferAllocator* allocator = nullptr;
};

/// How much of the device's memory is in use, and how many blocks have been allocated until now.
struct DeviceUse {
  std::int64_t bytes = 0;
  std::int64_t num_allocations = 0;
};

/// A model that generates and trains on one device.
///
/// Opening a runtime or a job reserves the memory of its passes (`RowLimits`).
/// Generation and training then allocate no device memory. What still does, and reports a `Status`
/// if there is too little: weights that are laid out, adapters that are loaded by name, and batches
/// whose shared prompts are longer than `RowLimits::prompt_rows` and than those of earlier batches.
///
/// The base weights of a snapshot are laid out once for generation and all jobs. Rollout and
/// training run the same forward pass with the same operations, so equal weights give
/// log-probabilities with equal bits.
/// Threads: one call at a time over the runtime, its rollout engine and its jobs. The runtime owns
/// its workers.
class ModelRuntime {
public:
  ModelRuntime() = default;
  ModelRuntime(const ModelRuntime&) = delete;
  ModelRuntime& operator=(const ModelRuntime&) = delete;
  virtual ~ModelRuntime() = default;

  [[nodiscard]] virtual RolloutEngine& rollout() = 0;
  /// Returns the job that trains the policy, or null if the runtime was opened without an
  /// optimizer.
  [[nodiscard]] virtual TrainingJob* policy_job() = 0;
  /// Opens a job over the base that the runtime was opened with. Generation uses none of its
  /// weights until they are loaded as a named adapter. The runtime must outlive the job.
  /// Errors: those of `open_runtime` about adapters and training; `kInvalidArgument` if the base
  /// was not prepared for training (`RuntimeOptions::trains_adapters`) or is no longer in use;
  /// `kResourceExhausted` if there is too little memory, naming what it is for and the sizes, or if
  /// a request or a batch that was accepted before may need the pages to be reserved;
  /// `kUnavailable` if other jobs hold these pages now.
  [[nodiscard]] virtual Result<std::unique_ptr<TrainingJob>> open_job(
      const JobOptions& options) = 0;
  /// Returns the adapters that requests may name.
  [[nodiscard]] virtual NamedAdapters& adapters() = 0;
  /// Returns the weights that generation and the policy's job start from, as version 0 of line 0.
  [[nodiscard]] virtual const Snapshot& initial() const = 0;
  [[nodiscard]] virtual DeviceUse device_use() const = 0;
  /// Returns a one-line description: operations, threads, and the types of weights and cache.
  [[nodiscard]] virtual std::string_view description() const = 0;
};

/// Opens a runtime for a model.
/// Errors: `kInvalidArgument` (a bad option; tensors or an adapter that do not fit the model),
/// `kUnimplemented` (training an adapter with dropout), `kResourceExhausted` (a cache too small for
/// one page; too little memory, naming what it is for and the sizes); for a model that is
/// `unchecked`, those of `check_finite_weights`.
[[nodiscard]] Result<std::unique_ptr<ModelRuntime>> open_runtime(const ModelFiles& model,
                                                                 const RuntimeOptions& options);

}  // namespace tidemill::engines
