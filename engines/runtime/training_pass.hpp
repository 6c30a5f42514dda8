// SPDX-License-Identifier: Apache-2.0
// One micro-batch on its way through the model: forward, log-probabilities, loss, backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engines/runtime/micro_batch.hpp"
#include "engines/training_job.hpp"
#include "engines/transformer/transformer.hpp"

namespace tidemill::engines {

/// What a pass computes with. All of it is borrowed, except the options, and belongs to one job.
struct PassResources {
  Transformer& transformer;
  Activations& activations;
  Gradients& gradients;
  CarriedPrefix& carried;
  DeviceMatrix& dhidden;
  HeadOptions head;
  std::int64_t window_tokens = 0;
  ReservedPages* reserved = nullptr;  // null: the job shares pages
};

/// Takes a micro-batch through the model unit by unit. Other work may run on the device between two
/// units, and changes no bit of the result.
///
/// Threads: one call at a time over the runtime, its rollout view and its jobs.
class TrainingPass {
public:
  /// `loss` may be null; then only log-probabilities are computed. All arguments must outlive it.
  TrainingPass(RuntimeContext& context, const PassResources& resources,
               const LaidOutWeights& weights, TokenLoss* loss);
  TrainingPass(const TrainingPass&) = delete;
  TrainingPass& operator=(const TrainingPass&) = delete;
  /// Waits for the operations of the pass, which borrow its parts.
  ~TrainingPass();

  /// The sequences of the pass. They may be added until `start`.
  [[nodiscard]] MicroBatch& micro() noexcept { return micro_; }
  /// Starts the pass. Takes the rows from `generated` if it is not null and holds all of them.
  /// Returns whether it does.
  bool start(GeneratedRows* generated);

  [[nodiscard]] bool done() const noexcept { return stage_ == Stage::kDone; }
  /// Describes the next unit. Requires `start`, and that `done` is false.
  [[nodiscard]] UnitKind next() const;
  /// Runs the next unit. Requires `start`, and that `done` is false. The loss adds to `sums`.
  /// Errors: `kInternal` naming the sequence if a log-probability or a gradient is not finite;
  /// those of the loss and of the device. The pass is then over.
  [[nodiscard]] Status run_unit(LossSums& sums);

  /// Returns a column (T) of log-probabilities for each sequence. Requires `done`.
  [[nodiscard]] const std::vector<std::vector<float>>& logprobs() const noexcept {
    return columns_;
  }

private:
  // `kTokenLoss` takes the place of `kLogprobs` and `kHeadBackward` if the loss is token-local.
  enum class Stage { kForward, kLogprobs, kTokenLoss, kLoss, kHeadBackward, kBackward, kDone };

  [[nodiscard]] Status run_device_unit();
  void go_on();
  [[nodiscard]] HeadInput head_input();
  void start_head();
  [[nodiscard]] Status set_gradients(std::int64_t first_row, std::int64_t end_row);
  [[nodiscard]] Status score();
  [[nodiscard]] Status run_loss(LossSums& sums);
  [[nodiscard]] Status check_gradients(const std::vector<float>& dlogprobs,
                                       const std::vector<float>& dentropies) const;
  void start_backward();

  RuntimeContext& context_;
  PassResources resources_;
  const LaidOutWeights& weights_;
  TokenLoss* loss_;
  MicroBatch micro_;
  Stage stage_ = Stage::kForward;
  std::unique_ptr<UnitSequence> units_;  // of the stage; null in `kLoss` and `kDone`
  std::vector<std::unique_ptr<UnitSequence>> done_units_;  // whose operations may not have run yet
  ConstMatrix hidden_;
  std::vector<std::int64_t> sequence_rows_;  // of the micro-batch
  std::vector<float> row_logprobs_;
  std::vector<float> row_entropies_;
  std::vector<float> row_dlogprobs_;  // empty unless the loss is token-local
  std::vector<float> row_dentropies_;
  Status token_loss_;  // of the chunks until now
  std::vector<std::vector<float>> columns_;
};

}  // namespace tidemill::engines
