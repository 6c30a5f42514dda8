// SPDX-License-Identifier: Apache-2.0
// The training view: gradients sequence by sequence, and one optimizer step per batch.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engines/runtime/micro_batch.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/trained_parameters.hpp"
#include "engines/runtime/training_pass.hpp"
#include "engines/runtime/weight_cache.hpp"
#include "engines/transformer/activations.hpp"
#include "engines/transformer/gradients.hpp"

namespace tidemill::engines {

/// Trains all parameters of a model, or its adapter.
///
/// Gradients are summed in the order of ids, so the weights have the same bits for every budget.
/// Sequences that are neighbors in that order and begin with the same prompt, like the samples of a
/// group, share its rows (`find_shared_prompts`) if they were added before the same step. A failed
/// `step` or `update` ends the batch and leaves the weights unchanged.
class TrainView final : public TrainEngine {
public:
  /// Trains the adapter if `weight_cache.spec()` is not empty, otherwise the base. `initial` holds
  /// the initial values of the trained parameters. `weights` holds the layout of the same weights,
  /// rounded to the compute type, for forward and backward.
  /// `context` and `weight_cache` must outlive the view.
  TrainView(RuntimeContext& context, WeightCache& weight_cache, const RuntimeOptions& options,
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
  void abandon_batch() override { end_batch(); }
  Result<Snapshot> commit(PolicyVersion version) override;
  Result<TensorMap> optimizer_state() const override { return parameters_.state(); }
  Status restore(const Snapshot& snapshot, const TensorMap& optimizer_state) override;

  /// Returns where generation keeps rows for training, or null if it keeps none.
  [[nodiscard]] GeneratedRows* generated() noexcept {
    return generated_.has_value() ? &*generated_ : nullptr;
  }

private:
  struct Entry {
    TrainSequence sequence;
    std::optional<SharedPrompt> prompt;  // set by the first step after `add`
    std::vector<float> logprobs;         // set by the step that computes it
    bool recalled = false;               // whether it was read from kept rows
  };
  struct OpenBatch {
    TokenLoss* loss = nullptr;
    HeadOptions head;
    std::map<SampleId, Entry> entries;
    std::optional<SampleId> stepped;  // the last sequence stepped
    LossSums sums;
    bool checked = false;                // a micro-batch has been computed, not read from kept rows
    std::int64_t num_recalled = 0;       // rows that were read from kept rows
    std::unique_ptr<TrainingPass> pass;  // of the micro-batch that is being stepped
  };

  [[nodiscard]] bool trains_adapter() const noexcept { return !weight_cache_.spec().empty(); }
  [[nodiscard]] Status check(const TrainSequence& sequence) const;
  [[nodiscard]] bool fits(const MicroBatch& micro, const TrainSequence& sequence,
                          const SharedPrompt& prompt, std::int64_t max_rows) const;
  void find_prompts();
  [[nodiscard]] std::map<SampleId, Entry>::iterator next_entry();
  [[nodiscard]] PassResources pass_resources(const HeadOptions& head);
  [[nodiscard]] HeadOptions head_options(float temperature) const noexcept;
  [[nodiscard]] bool start_pass(std::int64_t max_rows);
  [[nodiscard]] Status run_units(std::int64_t max_units, StepReport& report);
  void end_pass();
  void end_batch();
  void lay_out_working();

  RuntimeContext& context_;
  WeightCache& weight_cache_;
  TrainedParameters parameters_;
  Gradients gradients_;
  Transformer transformer_;  // with the workspace of this job alone
  Activations activations_;
  std::optional<GeneratedRows> generated_;
  std::int64_t row_bytes_;        // of activations
  std::int64_t activation_rows_;  // the maximum that one micro-batch may keep
  std::int64_t window_tokens_;
  BufferAllocator* allocator_;  // of published weights; null: `heap_`
  HeapAllocator heap_;
  CarriedPrefix carried_;  // gradient of a prompt some of whose sequences are not stepped yet
  DeviceMatrix dhidden_;
  LaidOutWeights working_;
  bool published_ = true;  // the digests in `working_` are up to date
  std::optional<OpenBatch> batch_;
};

}  // namespace tidemill::engines
