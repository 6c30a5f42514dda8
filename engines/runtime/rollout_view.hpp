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
#include "engines/runtime/device.hpp"
#include "engines/runtime/generated_rows.hpp"
#include "engines/runtime/rollout_queue.hpp"
#include "engines/runtime/token_drawer.hpp"
#include "engines/runtime/weight_shelf.hpp"

namespace tidemill::engines {

/// Generates with weights that come as snapshots, and with named adapters over their base.
///
/// One call of `step` is one flat batch: a token of each sequence that is decoding, and prefill
/// chunks. What a request gets does not depend on what else is there, nor on budgets, cache size,
/// preemption or what was cached before: not in a single bit.
class RolloutView final : public RolloutEngine {
public:
  /// `device` and `shelf` must outlive it.
  RolloutView(Device& device, WeightShelf& shelf, const RuntimeOptions& options,
              LaidOutWeights weights, PolicyVersion version);

  Status submit(RolloutRequest request, RolloutSink& sink) override;
  void cancel(SampleId id) override;
  Status load(Snapshot snapshot, WeightArrival arrival) override;
  PolicyVersion serving() const override { return version_; }
  bool has_work() const override;
  Result<StepReport> step(const StepBudget& budget) override;

  /// Returns the adapters that requests may name.
  [[nodiscard]] NamedAdapters& adapters() noexcept { return adapters_; }

  /// Keeps what it computes of the policy in `rows`, which must outlive it, while they have room.
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
  [[nodiscard]] bool keeps_rows(const std::vector<RolloutChunk>& chunks,
                                std::int64_t num_rows) const;
  [[nodiscard]] static std::vector<std::optional<DigestKey>> names_of(
      const std::vector<RolloutChunk>& chunks);
  void advance(const std::vector<RolloutChunk>& chunks, ConstMatrix hidden);
  [[nodiscard]] std::optional<FinishReason> apply(const Draw& draw);
  static void deliver(Finished finished);
  void activate_pending();
  void keep_served();
  void forget_withdrawn();

  Device& device_;
  WeightShelf& shelf_;
  std::function<std::string(std::int32_t)> token_text_;
  bool share_prefixes_;
  RolloutQueue queue_;
  TokenDrawer drawer_;
  const Clock* clock_;  // null: there are no time limits
  LaidOutWeights weights_;
  std::string weights_name_;  // by content
  PolicyVersion version_;
  std::int64_t preempted_between_ = 0;  // sequences preempted since the last iteration
  std::optional<Pending> pending_;
  AdapterTable adapters_;
  GeneratedRows* generated_ = nullptr;  // null: nothing is kept
  std::uint64_t num_withdrawn_ = 0;     // of `adapters_`, when it was last looked at
};

}  // namespace tidemill::engines
