// SPDX-License-Identifier: Apache-2.0
// The state that an optimizer changes: f32 working weights, their moments, and the step counter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/train_engine.hpp"
#include "engines/transformer/parameter_set.hpp"

namespace tidemill::engines {

/// The working weights of AdamW: f32, published unchanged or rounded to bf16.
///
/// If weights are published rounded, forward and backward compute with the rounded weights too. The
/// unrounded weights are then part of the optimizer's state, because an update may be smaller than
/// a rounding step.
///
/// Every result has the same bits on any number of threads.
/// Threads: one call at a time.
class TrainedParameters {
public:
  /// Makes weights and moments of zeros. `options` must be valid; `published` is kF32 or kBF16.
  /// `ops` must outlive them.
  TrainedParameters(const TensorShapes& shapes, const OptimizerOptions& options, DType published,
                    Ops& ops);

  /// Clips `gradient`, whose layout must be that of the weights, and takes one optimizer step.
  /// Errors: `kInternal` naming the tensor if a gradient is not finite; those of
  /// `Ops::synchronize`. Then nothing changes.
  [[nodiscard]] Result<UpdateReport> apply(const ParameterSet& gradient);

  /// Replaces the weights.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, misshapen, unknown or not of a
  /// float type; then nothing changes.
  [[nodiscard]] Status load(const TensorMap& tensors);
  /// Returns the weights in the published type.
  [[nodiscard]] TensorMap to_tensors() const { return weights_.to_tensors(published_); }
  /// Returns the same in memory of `allocator`. Errors: those of the allocator.
  [[nodiscard]] Result<TensorMap> to_tensors(BufferAllocator& allocator) const {
    return weights_.to_tensors(published_, allocator);
  }
  /// Returns the unrounded weights.
  [[nodiscard]] const ParameterSet& weights() const noexcept { return weights_; }
  [[nodiscard]] DType published() const noexcept { return published_; }

  /// Returns the moments as "first_moment.<name>" and "second_moment.<name>" (F32), the weights as
  /// "weight.<name>" (F32) if they are published rounded, and the counter "step" (one I64).
  [[nodiscard]] TensorMap state() const;
  /// Replaces the weights with `tensors`, and the moments and the counter with `state`, as
  /// `state()` returned it.
  /// Errors: as `load`; `kInvalidArgument` if the weights in `state` do not round to `tensors`.
  [[nodiscard]] Status restore(const TensorMap& tensors, const TensorMap& state);

  [[nodiscard]] std::int64_t step() const noexcept { return step_; }

private:
  template <class Update>
  void for_each_group(const Update& update) const;

  Ops& ops_;
  OptimizerOptions options_;
  DType published_;
  ParameterSet weights_;
  ParameterSet first_moment_;
  ParameterSet second_moment_;
  std::int64_t step_ = 0;
};

/// Checks the ranges of all options.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const OptimizerOptions& options);

}  // namespace tidemill::engines
