// SPDX-License-Identifier: Apache-2.0
// What an optimizer changes: working weights in f32, their moments, and the number of steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/result.hpp"
#include "base/tensor.hpp"
#include "engines/executor/workers.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/factory.hpp"
#include "engines/transformer/parameter_set.hpp"

namespace tidemill::engines {

/// Working weights under AdamW: f32, published as they are or rounded to bf16.
///
/// Weights that are published rounded are computed with rounded too, and are part of the
/// optimizer's state: what an update adds may be less than a rounding step.
///
/// Every result has the same bits for any number of workers. Threads: one call at a time.
class TrainedParameters {
public:
  /// Makes zeros. `options` must be valid; `published` is kF32 or kBF16.
  TrainedParameters(const TensorShapes& shapes, const OptimizerOptions& options, DType published);

  /// Clips `gradient`, whose layout is that of the weights, and takes one step.
  /// Errors: `kInternal` naming the tensor for a gradient that is not finite; nothing is changed.
  [[nodiscard]] Result<UpdateReport> apply(const ParameterSet& gradient, Workers& workers,
                                           Ops& ops);

  /// Replaces the weights.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, misshapen, unknown or not of a
  /// float type; nothing is changed.
  [[nodiscard]] Status load(const TensorMap& tensors);
  /// Returns the weights as they are published.
  [[nodiscard]] TensorMap to_tensors() const { return weights_.to_tensors(published_); }
  /// Returns them to be laid out before they change again: not copied where they need no rounding.
  [[nodiscard]] TensorMap borrow_tensors() const {
    return published_ == DType::kF32 ? weights_.borrow_tensors() : to_tensors();
  }

  /// Returns the moments as "first_moment.<name>" and "second_moment.<name>", F32, of weights that
  /// are published rounded "weight.<name>", F32, and the counter "step", one I64.
  [[nodiscard]] TensorMap state() const;
  /// Replaces the weights, and all else by what `state` returned.
  /// Errors: as `load`; `kInvalidArgument` for a state whose weights are not those published.
  [[nodiscard]] Status restore(const TensorMap& tensors, const TensorMap& state);

  [[nodiscard]] std::int64_t step() const noexcept { return step_; }

private:
  template <class Update>
  void for_each_group(const Update& update) const;

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
