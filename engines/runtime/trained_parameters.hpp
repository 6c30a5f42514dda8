// SPDX-License-Identifier: Apache-2.0
// The state that an optimizer changes: f32 working weights, their moments, and the step counter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer_allocator.hpp"
#include "base/result.hpp"
#include "base/tensor/dtype.hpp"
#include "base/tensor/tensor.hpp"
#include "engines/ops/ops.hpp"
#include "engines/runtime/runtime_options.hpp"
#include "engines/training_job.hpp"
#include "engines/transformer/device_matrix.hpp"
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
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] static Result<TrainedParameters> create(const TensorShapes& shapes,
                                                        const OptimizerOptions& options,
                                                        DType published, Ops& ops);

  /// Allocates the anchor of `OptimStep::proximal` and copies the weights to it. Each `restore`
  /// copies them again.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve_anchor();

  /// Checks the parameters of a step.
  /// Errors: `kInvalidArgument` naming an option out of range or an unknown tensor.
  [[nodiscard]] Status check_step(const OptimStep& step) const;
  /// Starts an optimizer step with `gradient`, whose layout must be that of the weights and which
  /// must outlive the step. Requires that `check_step` succeeds.
  void begin_step(ParameterSet& gradient, const OptimStep& step);
  /// Returns whether a step is in progress.
  [[nodiscard]] bool stepping() const noexcept { return current_.has_value(); }
  /// Runs the next unit of the step: a part of one pass over the parameters, of at most
  /// `kUnitElements`.
  /// Errors: `kInternal` naming the tensor if a gradient that is not frozen is not finite; those of
  /// `Ops::synchronize`. The step is then over, and nothing has changed.
  [[nodiscard]] Status run_unit();
  /// Ends the step in progress. If weights have begun to change, it changes all of them and returns
  /// true.
  bool cancel_step();
  /// Returns what the last step did.
  [[nodiscard]] const UpdateReport& last_update() const noexcept { return report_; }

  /// Replaces the weights.
  /// Errors: `kInvalidArgument` naming a tensor that is missing, misshapen, unknown or not of a
  /// float type; then nothing changes.
  [[nodiscard]] Status load(const TensorMap& tensors);
  /// Returns the unrounded weights.
  [[nodiscard]] const ParameterSet& weights() const noexcept { return weights_; }
  [[nodiscard]] DType published() const noexcept { return published_; }

  /// Returns the moments as "first_moment.<name>" and "second_moment.<name>" (F32), the weights as
  /// "weight.<name>" (F32) if they are published rounded, and the counter "step" (one I64).
  /// The copy is made part by part. The parameters must outlive it, and not change before it is
  /// done.
  class StateCopy;
  [[nodiscard]] StateCopy start_state(BufferAllocator& allocator) const;
  /// Checks that `restore` accepts the weights `tensors` and `state`, as `StateCopy` returned it.
  /// Errors: as `load`; `kInvalidArgument` if the weights in `state` do not round to `tensors`.
  [[nodiscard]] Status check(const TensorMap& tensors, const TensorMap& state) const;
  /// Replaces the weights with `tensors`, and the moments and the counter with `state`. Requires
  /// that `check` accepts them.
  [[nodiscard]] Status restore(const TensorMap& tensors, const TensorMap& state);

private:
  // Adjacent elements, and whether their weights decay.
  struct Range {
    bool decays = false;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  enum class Stage { kGradient, kNorm, kApply };
  // A step in progress.
  struct Step {
    ParameterSet* gradient = nullptr;
    OptimStep options;
    OptimizerOptions optimizer;
    std::vector<Range> ranges;       // that the step changes, in runs that agree on weight decay
    std::vector<Range> norm_ranges;  // the same elements, whatever their decay
    AdamWStep adamw;
    Stage stage = Stage::kGradient;
    std::size_t range = 0;         // the next range or, in `kGradient`, the next entry
    std::int64_t offset = 0;       // in it
    std::vector<float> inspected;  // the gradient of the entry, for `OptimStep::on_gradient`
    double squares = 0.0;
  };

  TrainedParameters(const OptimizerOptions& options, DType published, Ops& ops)
      : ops_(ops), options_(options), published_(published), difference_(ops.memory()) {}

  void copy_anchor();
  [[nodiscard]] OptimizerOptions optimizer_of(const OptimStep& step) const;
  [[nodiscard]] std::vector<Range> ranges_of(const OptimStep& step) const;
  [[nodiscard]] static std::vector<Range> join(const std::vector<Range>& ranges);
  [[nodiscard]] static Range next_part(const std::vector<Range>& ranges, Step& step);
  static void next_stage(Step& step, Stage stage);
  [[nodiscard]] Status prepare_gradient(Step& step);
  [[nodiscard]] Status add_squares(Step& step);
  [[nodiscard]] Status begin_apply(Step& step);
  void apply_part(Step& step);

  Ops& ops_;
  OptimizerOptions options_;
  DType published_;
  ParameterSet weights_;
  ParameterSet first_moment_;
  ParameterSet second_moment_;
  std::optional<ParameterSet> anchor_;
  DeviceMatrix difference_;  // from the anchor, of the part that is being processed
  std::int64_t step_ = 0;
  std::optional<Step> current_;
  UpdateReport report_;
};

/// A copy of the state of `TrainedParameters` that is being made.
class TrainedParameters::StateCopy {
public:
  [[nodiscard]] bool done() const noexcept { return part_ == parts_.size(); }
  /// Copies the next part of a tensor, of at most `kUnitElements`. Requires that `done` is false.
  /// Errors: those of the allocator.
  [[nodiscard]] Status run();
  /// Returns the state. Requires `done`.
  [[nodiscard]] TensorMap take() { return std::move(state_); }

private:
  friend class TrainedParameters;
  StateCopy(std::vector<std::pair<const char*, const ParameterSet*>> parts, std::int64_t step,
            BufferAllocator& allocator);

  std::vector<std::pair<const char*, const ParameterSet*>> parts_;  // with the prefixes of names
  BufferAllocator* allocator_;
  TensorMap state_;
  std::size_t part_ = 0;
  std::size_t entry_ = 0;  // of the part
  std::optional<ParameterSet::Copy> tensor_;
};

/// Checks the ranges of all options.
/// Errors: `kInvalidArgument` naming the option.
[[nodiscard]] Status validate(const OptimizerOptions& options);

}  // namespace tidemill::engines
