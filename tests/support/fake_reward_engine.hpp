// SPDX-License-Identifier: Apache-2.0
// A reward engine whose results a test sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engines/reward_engine.hpp"

namespace tidemill::test {

class FakeRewardEngine final : public engines::RewardEngine {
public:
  Status submit(engines::RewardRequest request, engines::RewardSink& sink) override {
    if (!refusal.ok()) {
      return refusal;
    }
    queue_.emplace_back(request.id, &sink);
    requests.push_back(std::move(request));
    return {};
  }
  [[nodiscard]] bool has_work() const override { return !queue_.empty(); }
  Status step(Duration /*patience*/) override {
    if (!failure.ok()) {
      queue_.clear();
      return failure;
    }
    if (thinking) {
      return {};
    }
    auto queue = std::exchange(queue_, {});
    if (one_at_a_time && queue.size() > 1) {
      queue_.assign(queue.begin() + 1, queue.end());
      queue.resize(1);
    }
    if (reversed) {
      std::reverse(queue.begin(), queue.end());
    }
    for (const auto& [id, sink] : queue) {
      engines::RewardResult result;
      result.id = id;
      result.reward = reward_of.contains(id.value) ? reward_of[id.value] : reward;
      result.parts = parts_of.contains(id.value) ? parts_of[id.value] : parts;
      result.error = error_of.contains(id.value) ? error_of[id.value] : "";
      sink->on_reward(std::move(result));
    }
    return {};
  }

  double reward = 1.0;
  std::map<std::uint64_t, double> reward_of;              // by sample; others get `reward`
  std::map<std::uint64_t, std::string> error_of;          // by sample
  std::vector<double> parts;                              // of every reward
  std::map<std::uint64_t, std::vector<double>> parts_of;  // by sample; others get `parts`
  bool reversed = false;       // delivers the results in the reverse order of the samples
  Status refusal;              // of every sample
  Status failure;              // of every step
  bool thinking = false;       // produces no results yet
  bool one_at_a_time = false;  // a step produces only the first result
  std::vector<engines::RewardRequest> requests;

private:
  std::vector<std::pair<SampleId, engines::RewardSink*>> queue_;
};

}  // namespace tidemill::test
