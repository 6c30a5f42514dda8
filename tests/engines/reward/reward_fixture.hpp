// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of reward engines: a sink that records results, requests, and a driver.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engines/reward/factory.hpp"

namespace tidemill::engines {

/// Records every result. A second result for a sample fails the test, unless `clear` was called in
/// between.
class RecordingSink final : public RewardSink {
public:
  void on_reward(RewardResult result) override {
    const std::uint64_t id = result.id.value;
    EXPECT_TRUE(results_.emplace(id, std::move(result)).second) << "two results for sample " << id;
    order_.push_back(id);
  }

  [[nodiscard]] std::size_t count() const { return results_.size(); }
  [[nodiscard]] double reward(std::uint64_t id) const {
    EXPECT_EQ(results_.at(id).error, "");
    return results_.at(id).reward;
  }
  [[nodiscard]] const std::vector<double>& parts(std::uint64_t id) const {
    return results_.at(id).parts;
  }
  [[nodiscard]] const std::string& error(std::uint64_t id) const { return results_.at(id).error; }
  [[nodiscard]] const std::vector<std::uint64_t>& order() const { return order_; }
  void clear() {
    results_.clear();
    order_.clear();
  }

private:
  std::map<std::uint64_t, RewardResult> results_;
  std::vector<std::uint64_t> order_;
};

/// Returns a request whose reference answer is "42" and whose row has keys of its own.
inline RewardRequest make_request(std::uint64_t id, std::string response) {
  return {.id = {id},
          .prompt = "6 * 7",
          .response = std::move(response),
          .reference_answer = "42",
          .fields = R"({"level": 2, "tags": ["a", "b"], "prompt": "the row's own"})"};
}

/// Steps the engine until `done()`. The deadline is a safety net far above the time that a passing
/// test takes.
template <class Done>
::testing::AssertionResult step_until(RewardEngine& engine, Done&& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!done()) {
    const Status stepped = engine.step(std::chrono::milliseconds(20));
    if (!stepped.ok()) {
      return ::testing::AssertionFailure() << stepped.to_string();
    }
    if (std::chrono::steady_clock::now() > deadline) {
      return ::testing::AssertionFailure() << "not done within 40 s";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tidemill::engines
