// SPDX-License-Identifier: Apache-2.0
// The rollout view: continuous batching over one model and one paged cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engines/runtime/adapter_table.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/rollout_queue.hpp"
#include "engines/runtime/runtime_context.hpp"
#include "engines/runtime/token_sampler.hpp"
#include "engines/runtime/weight_cache.hpp"

namespace tidemill::engines {

/// Generates with weights that are loaded as snapshots, and with named adapters over their base.
///
/// One call of `step` computes one flat batch: one token of each decoding sequence, and prefill
/// chunks. Other requests, budgets, the size of the cache, preemption and earlier contents of the
/// cache change no bit of a result.
class RolloutView final : public RolloutEngine {
public:
  /// `context` and `weight_cache` must outlive the view.
  RolloutView(RuntimeContext& context, WeightCache& weight_cache, const RuntimeOptions& options,
              LaidOutWeights weights, PolicyVersion version);
  /// Reserves the memory for sampling and for the policy's adapter. Call it before any other
  /// function.
  /// Errors: those of `DeviceMemory::allocate`.
  [[nodiscard]] Status reserve();

  Status submit(RolloutRequest request, RolloutSink& sink) override;
  void cancel(SampleId id) override;
  Status load(Snapshot snapshot, WeightArrival arrival) override;
  PolicyVersion serving_version() const override { return version_; }
  bool has_work() const override;
  Result<StepReport> step(const StepBudget& budget) override;

  /// Returns the adapters that requests may name.
  [[nodiscard]] NamedAdapters& adapters() noexcept { return adapters_; }

  /// From now on, keeps in `rows` what the policy computes, until `rows` is full. `rows` must
  /// outlive the view.
  void keep_rows_in(GeneratedRows& rows) noexcept { generated_ = &rows; }

private:
  struct Pending {
    LaidOutWeights weights;
    PolicyVersion version;
  };
  struct Finished {
    std::unique_ptr<RolloutSequence> sequence;
    FinishReason reason = FinishReason::kFailed;
  };

  [[nodiscard]] Status check(const RolloutRequest& request) const;
  [[nodiscard]] AdmissionRule admission() const;
  void end_overdue();
  [[nodiscard]] static std::int64_t num_hidden(const RolloutChunk& chunk);
  std::vector<Finished> compute(const std::vector<RolloutChunk>& chunks, StepReport& report);
  [[nodiscard]] bool keeps_rows(const std::vector<RolloutChunk>& chunks) const;
  [[nodiscard]] static std::vector<std::optional<DigestKey>> row_keys(
      const std::vector<RolloutChunk>& chunks);
  void advance(const std::vector<RolloutChunk>& chunks, ConstMatrix hidden);
  [[nodiscard]] std::optional<FinishReason> apply(const SampledToken& sampled);
  static void deliver(Finished finished);
  void activate_pending();
  void drop_unserved_pages();
  void drop_pages_of_removed_adapters();

  RuntimeContext& context_;
  WeightCache& weight_cache_;
  std::function<std::string(std::int32_t)> token_text_;
  bool share_prefixes_;
  RolloutQueue queue_;
  TokenSampler token_sampler_;
  const Clock* clock_;  // null: requests with a time limit are refused
  LaidOutWeights weights_;
  std::string weights_name_;  // names the content of `weights_`
  PolicyVersion version_;
  std::int64_t preempted_between_steps_ = 0;  // sequences preempted since the last step
  std::optional<Pending> pending_;
  BypassRows rows_;  // the rows for which memory is reserved
  AdapterTable adapters_;
  GeneratedRows* generated_ = nullptr;  // null: no rows are kept
  std::uint64_t num_removals_ = 0;      // of `adapters_`, at the last check
};

}  // namespace tidemill::engines
