// SPDX-License-Identifier: Apache-2.0
// The training view: gradients sequence by sequence, one optimizer step a batch.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/runtime/device.hpp"
#include "engines/runtime/micro_batch.hpp"
#include "engines/runtime/trained_parameters.hpp"
#include "engines/runtime/weight_shelf.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/gradients.hpp"

namespace tidemill::engines {

/// Trains all parameters of a model, or its adapter.
///
/// Gradients are added in the order of ids, so weights have the same bits for every budget.
/// Neighbours in that order which begin with the same prompt, as the samples of a group do, share
/// its rows (`find_shared_prompts`), if they were added before the same step. After a failed `step`
/// or `update` the batch is over and the weights are those from before it.
class TrainView final : public TrainEngine {
public:
  /// Trains the adapter if the shelf's spec has one, else the base, beginning with `initial`, which
  /// `weights` is, rounded to the type of computing, laid out for backward. `device` and `shelf`
  /// must outlive it.
  TrainView(Device& device, WeightShelf& shelf, const RuntimeOptions& options,
            const TensorMap& initial, LaidOutWeights weights);

  Status begin_batch(TokenLoss* loss, float temperature) override;
  Status add(TrainSequence sequence) override;
  bool has_work() const override;
  Result<StepReport> step(const StepBudget& budget) override;
  Result<std::vector<float>> logprobs(SampleId id) const override;
  bool recalled(SampleId id) const override;
  Result<std::vector<std::vector<float>>> score(const Snapshot& weights,
                                                std::span<const TrainSequence> sequences,
                                                float temperature) override;
  Result<UpdateReport> update() override;
  Result<Snapshot> commit(PolicyVersion version) override;
  Result<TensorMap> optimizer_state() const override { return parameters_.state(); }
  Status restore(const Snapshot& snapshot, const TensorMap& optimizer_state) override;

  /// Returns what generation may keep for it, or null.
  [[nodiscard]] GeneratedRows* generated() noexcept {
    return generated_.has_value() ? &*generated_ : nullptr;
  }

private:
  struct Entry {
    TrainSequence sequence;
    std::optional<SharedPrompt> prompt;  // found at the first step after it was added
    std::vector<float> logprobs;         // once stepped
    bool recalled = false;               // from what generation had kept
  };
  struct OpenBatch {
    TokenLoss* loss = nullptr;
    HeadOptions head;
    std::map<SampleId, Entry> entries;
    std::optional<SampleId> stepped;  // the last one
    LossSums sums;
    bool checked = false;           // one of its micro-batches was run
    std::int64_t num_recalled = 0;  // rows that were not
  };

  [[nodiscard]] bool trains_adapter() const noexcept { return !shelf_.spec().empty(); }
  [[nodiscard]] Status check(const TrainSequence& sequence) const;
  [[nodiscard]] bool fits(const MicroBatch& micro, const TrainSequence& sequence,
                          const SharedPrompt& prompt, std::int64_t max_rows) const;
  void find_prompts();
  [[nodiscard]] std::map<SampleId, Entry>::iterator next_entry();
  Status run(MicroBatch& micro);
  [[nodiscard]] ConstMatrix forward(MicroBatch& micro);
  Status run_loss(MicroBatch& micro, ConstMatrix hidden,
                  const std::vector<std::vector<float>>& logprobs,
                  std::span<const float> entropies);
  Status score_micro(MicroBatch& micro, const LaidOutWeights& weights, const HeadOptions& head,
                     std::vector<std::vector<float>>& columns);
  void end_batch();
  void lay_out_working();

  Device& device_;
  WeightShelf& shelf_;
  TrainedParameters parameters_;
  Gradients gradients_;
  Activations activations_;
  std::optional<GeneratedRows> generated_;
  std::int64_t row_bytes_;        // of activations
  std::int64_t activation_rows_;  // the most that one micro-batch may keep
  std::int64_t window_tokens_;
  CarriedPrefix carried_;  // of a prompt whose sequences are not all stepped
  OwnedMatrix dhidden_;
  LaidOutWeights working_;
  bool published_ = true;  // the digests of `working_` are those of the working weights
  std::optional<OpenBatch> batch_;
};

}  // namespace tidemill::engines
