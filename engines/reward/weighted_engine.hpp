// SPDX-License-Identifier: Apache-2.0
// A reward engine that sums the rewards of others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engines/reward/factory.hpp"

namespace tidemill::engines {

/// Asks every part about every request; the result is there when the last part has answered.
class WeightedRewardEngine final : public RewardEngine {
public:
  explicit WeightedRewardEngine(std::vector<RewardPart> parts) : parts_(std::move(parts)) {}

  [[nodiscard]] Status submit(RewardRequest request, RewardSink& sink) override;
  [[nodiscard]] bool has_work() const override { return !pending_.empty(); }
  [[nodiscard]] Status step(Duration patience) override;
  [[nodiscard]] RewardStats stats() const override;

private:
  struct Pending;

  /// Tells the answer of one part about one request from all others.
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
  // Behind `parts_`: their sinks lie in here and are only called by a part's `step`.
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_key_ = 0;
  Status given_up_;  // of the first part that gave up; stays
};

}  // namespace tidemill::engines
