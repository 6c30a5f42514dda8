// SPDX-License-Identifier: Apache-2.0
// A reward engine that computes the weighted sum of the rewards of other engines.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engines/reward/factory.hpp"

namespace tidemill::engines {

/// Submits every request to every part. The result is delivered when all parts have delivered
/// theirs.
class WeightedRewardEngine final : public RewardEngine {
public:
  explicit WeightedRewardEngine(std::vector<RewardPart> parts) : parts_(std::move(parts)) {}

  [[nodiscard]] Status submit(RewardRequest request, RewardSink& sink) override;
  [[nodiscard]] bool has_work() const override { return !pending_.empty(); }
  [[nodiscard]] Status step(Duration patience) override;
  [[nodiscard]] RewardStats stats() const override;

private:
  struct Pending;

  /// Receives the result of one part for one request.
  class PartSink final : public RewardSink {
  public:
    PartSink(WeightedRewardEngine& owner, std::uint64_t key, std::size_t part)
        : owner_(owner), key_(key), part_(part) {}
    void on_reward(RewardResult result) override;

  private:
    WeightedRewardEngine& owner_;
    std::uint64_t key_;
    std::size_t part_;
  };

  struct Pending {
    SampleId id;
    RewardSink* sink = nullptr;
    std::size_t missing = 0;
    std::vector<double> rewards;  // by part
    std::vector<std::string> errors;
    std::vector<std::unique_ptr<PartSink>> sinks;
  };

  void deliver(std::uint64_t key);

  std::vector<RewardPart> parts_;
  // Holds the sinks of the parts. Only a part's `step` calls them, so it is safe that `pending_` is
  // destroyed before `parts_`.
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_key_ = 0;
  Status given_up_;  // the status of the first part that gave up; never cleared
};

}  // namespace tidemill::engines
