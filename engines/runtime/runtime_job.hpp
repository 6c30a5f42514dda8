// SPDX-License-Identifier: Apache-2.0
// A training job of a model runtime: gradients sequence by sequence, and optimizer steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/digest.hpp"
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
/// group, share its rows (`find_shared_prompts`). The job owns its parameters, optimizer,
/// activations and workspace. It holds pages of the cache from the start of a micro-batch to its
/// end or, if they are reserved, for its whole life.
class RuntimeJob final : public TrainingJob {
public:
  /// What a job computes with. The context must outlive it.
  struct Parts {
    RuntimeContext& context;
    /// Its `spec()` describes the adapter to train; it is empty if the job trains the base. Must
    /// outlive the job unless `own_cache` owns it.
    WeightCache& weight_cache;
    std::unique_ptr<WeightCache> own_cache;   // owns `weight_cache`; null if the cache is shared
    std::unique_ptr<ReservedPages> reserved;  // null: micro-batches share the pages of the cache
  };

  /// Opens a job and reserves its memory. `initial` holds the initial values of the trained
  /// parameters. `weights` holds the layout of the same weights, rounded to the compute type, for
  /// forward and backward. Requires that `options.optimizer` is set and valid, and that `initial`
  /// has exactly the trained tensors.
  /// Errors: `kResourceExhausted` naming what there is too little memory for.
  [[nodiscard]] static Result<std::unique_ptr<RuntimeJob>> create(Parts parts,
                                                                  const RuntimeOptions& options,
                                                                  const TensorMap& initial,
                                                                  LaidOutWeights weights);
  ~RuntimeJob() override;

  using TrainingJob::optim_step;
  Status forward(TrainBatch batch) override;
  Status forward_backward(TrainBatch batch, TokenLoss& loss) override;
  Status optim_step(const OptimStep& step) override;
  Status save(PolicyVersion version) override;
  bool has_work() const override { return work_ != Work::kNone; }
  UnitKind next_unit() const override;
  Result<StepReport> advance(const StepBudget& budget) override;
  void cancel() override;
  Result<std::vector<float>> logprobs(SampleId id) const override;
  bool recalled(SampleId id) const override;
  const UpdateReport& last_update() const override { return last_update_; }
  Snapshot take_snapshot() override;
  Result<std::vector<std::vector<float>>> score(const Snapshot& weights,
                                                std::span<const TrainSequence> sequences,
                                                float temperature) override;
  Status capture() override;
  TensorMap take_optimizer_state() override;
  Status load(const Snapshot& snapshot, const TensorMap& optimizer_state) override;

  /// Keeps the weights that proximal terms refer to (`OptimStep::proximal`).
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status keep_anchor() { return parameters_.reserve_anchor(); }
  /// Returns where generation keeps rows for training, or null if it keeps none.
  [[nodiscard]] GeneratedRows* generated() noexcept {
    return generated_.has_value() ? &*generated_ : nullptr;
  }

private:
  // `kZero` and `kLayout` end an optimizer step.
  enum class Work { kNone, kBatch, kOptimStep, kZero, kLayout, kSave, kCapture };

  struct Entry {
    TrainSequence sequence;
    SharedPrompt prompt;
    std::vector<float> logprobs;  // set by the pass that computes it
    bool recalled = false;        // its activations were kept by generation
  };
  // The pages that a batch in progress may need, in `RuntimeContext::batch_needs`.
  class PageNeed {
  public:
    PageNeed(RuntimeContext& context, std::int64_t pages)
        : context_(context), entry_(context.batch_needs.insert(pages)) {}
    PageNeed(const PageNeed&) = delete;
    PageNeed& operator=(const PageNeed&) = delete;
    ~PageNeed() { context_.batch_needs.erase(entry_); }

  private:
    RuntimeContext& context_;
    std::multiset<std::int64_t>::iterator entry_;
  };
  // The last batch. Its passes go on while the work is `kBatch`.
  struct Batch {
    TokenLoss* loss = nullptr;  // null: only log-probabilities are computed
    HeadOptions head;
    std::map<SampleId, Entry> entries;
    std::map<SampleId, Entry>::iterator next;  // the first entry of the next micro-batch
    std::unique_ptr<PageNeed> need;            // while its passes go on; null if pages are reserved
    bool checked = false;                      // a micro-batch was computed and not recalled
    std::unique_ptr<TrainingPass> pass;        // of the current micro-batch
  };
  // The layout of the changed weights: of the base, or of the adapter, whose tensors are read
  // first.
  struct LayingOut {
    std::optional<ModelWeights::Layout> base;
    TensorMap tensors;
    std::size_t next = 0;                     // entry to read
    std::optional<ParameterSet::Copy> entry;  // the part of it that was read
    std::optional<Adapter::Layout> adapter;
  };
  // A snapshot that is being made, and the next tensor of it.
  struct Saving {
    explicit Saving(std::size_t num_tensors) : hasher(num_tensors) {}
    Snapshot snapshot;
    TensorMap tensors;
    TensorHasher hasher;
    std::size_t next = 0;
    std::optional<ParameterSet::Copy> tensor;  // the part of it that was read
  };

  RuntimeJob(Parts parts, const RuntimeOptions& options, TrainedParameters parameters,
             Gradients gradients, LaidOutWeights weights);
  [[nodiscard]] Status reserve(const RuntimeOptions& options);
  [[nodiscard]] Status reserve_prompts(std::span<const SharedPrompt> prompts);
  [[nodiscard]] bool trains_adapter() const noexcept { return !weight_cache_.spec().empty(); }
  [[nodiscard]] Status check(const TrainSequence& sequence) const;
  [[nodiscard]] std::int64_t cache_tokens() const noexcept;
  [[nodiscard]] Status check_idle() const;
  [[nodiscard]] bool fits(const MicroBatch& micro, const TrainSequence& sequence,
                          const SharedPrompt& prompt, std::int64_t max_rows) const;
  [[nodiscard]] PassResources pass_resources(const HeadOptions& head);
  [[nodiscard]] HeadOptions head_options(float temperature) const noexcept;
  [[nodiscard]] Status begin_batch(TrainBatch batch, TokenLoss* loss);
  [[nodiscard]] bool start_pass(std::int64_t max_rows);
  [[nodiscard]] Status advance_batch(const StepBudget& budget, StepReport& report);
  void end_pass(StepReport& report);
  void end_batch();
  [[nodiscard]] Status run_unit();
  [[nodiscard]] Status run_optimizer_unit();
  void report_update();
  void zero_next();
  void begin_layout();
  [[nodiscard]] Status lay_out_next();
  [[nodiscard]] Status read_next(LayingOut& layout);
  [[nodiscard]] Status lay_out_adapter(LayingOut& layout);
  [[nodiscard]] Status save_next();
  void finish_save();
  [[nodiscard]] Status capture_next();
  void drop_gradients();

  RuntimeContext& context_;
  std::unique_ptr<WeightCache> own_cache_;  // null: shared
  WeightCache& weight_cache_;
  std::unique_ptr<ReservedPages> reserved_;
  TrainedParameters parameters_;
  Gradients gradients_;
  Transformer transformer_;  // with the workspace of this job alone
  Activations activations_;
  std::optional<GeneratedRows> generated_;
  std::int64_t row_bytes_;        // of activations
  std::int64_t activation_rows_;  // the maximum that one micro-batch may keep
  std::int64_t sequence_rows_;    // of the longest sequence
  std::int64_t prompt_rows_ = 0;  // of the longest shared prompt that memory is reserved for
  std::int64_t window_tokens_;
  BufferAllocator* allocator_;  // of published weights; null: `heap_`
  HeapAllocator heap_;
  CarriedPrefix carried_;  // gradient of a prompt some of whose sequences are not stepped yet
  DeviceMatrix dhidden_;
  LaidOutWeights working_;
  bool published_ = true;  // the digests in `working_` are up to date
  Work work_ = Work::kNone;
  std::optional<Batch> batch_;
  bool has_gradients_ = false;     // `forward_backward` has run or begun since the last step
  LossSums sums_;                  // of the batches since the last step
  std::int64_t num_recalled_ = 0;  // their rows that were recalled
  std::optional<OptimStep> step_;  // that is to begin
  std::unique_ptr<UnitSequence> gradient_units_;  // that collect the gradients or set them to zero
  UpdateReport last_update_;
  // Set while `working_` is not laid out. All work starts with the rest of it.
  std::optional<LayingOut> laying_out_;
  std::optional<Saving> saving_;
  std::optional<Snapshot> saved_;
  std::optional<TrainedParameters::StateCopy> capturing_;
  std::optional<TensorMap> captured_;
};

}  // namespace tidemill::engines
