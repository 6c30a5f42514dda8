// SPDX-License-Identifier: Apache-2.0
// The witness must see what it looks for.
#include "tests/sim/version_witness.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VersionWitnessTest : public ::testing::Test, public engines::RolloutSink {
protected:
  void on_rollout(engines::RolloutResult result) override { results_.push_back(std::move(result)); }

  // Lets the watched engine answer one sample.
  engines::RolloutResult generate(std::uint64_t id, std::uint64_t min_step = 0) {
    engines::RolloutRequest request;
    request.id = {id};
    request.prompt_ids.assign(kPromptTokens, 0);
    request.max_new_tokens = kMaxNewTokens;
    request.min_step = min_step;
    EXPECT_TRUE(engine_->submit(std::move(request), *this).ok());
    while (engine_->has_work() && results_.empty()) {
      EXPECT_TRUE(engine_->step({}).ok());
    }
    engines::RolloutResult result = results_.back();
    results_.clear();
    return result;
  }
  void check(const engines::RolloutResult& result) {
    witness_.check_sample(result.id, result.versions, result.response_ids,
                          result.behavior_logprobs);
  }
  // Weights of `step` that are not the initial ones.
  engines::Snapshot weights(std::uint64_t step) {
    engines::Snapshot snapshot = engines::replay_initial_snapshot(100 + step);
    snapshot.version.step = step;
    return snapshot;
  }

  std::vector<std::string> violations_;
  PublishedDigests digests_;
  engines::Snapshot initial_ = engines::replay_initial_snapshot(0);
  VersionWitness witness_{
      {}, digests_, [this](const std::string& what) { violations_.push_back(what); }};
  std::unique_ptr<engines::RolloutEngine> engine_ =
      witness_.watch(engines::make_replay_rollout_engine({}, initial_), initial_);
  std::vector<engines::RolloutResult> results_;
};

TEST_F(VersionWitnessTest, HonestTokensPassAndAreCounted) {
  const auto first = generate(1);
  ASSERT_TRUE(engine_->load(weights(1), engines::WeightArrival::kFinish).ok());
  const auto second = generate(2, 1);
  EXPECT_EQ(second.versions.front().version.step, 1U);
  EXPECT_TRUE(violations_.empty()) << violations_.front();
  EXPECT_EQ(witness_.tokens_checked(), first.response_ids.size() + second.response_ids.size());
}

TEST_F(VersionWitnessTest, TokensOfOtherWeightsAreFound) {
  auto lying = generate(1);
  ASSERT_TRUE(engine_->load(weights(1), engines::WeightArrival::kFinish).ok());
  lying.versions.front().version.step = 1;
  check(lying);
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("not of the weights that its version names")));
}

TEST_F(VersionWitnessTest, TokensDrawnByOtherNumbersAreFound) {
  const auto honest = generate(1);
  witness_.check_draws(honest.id, honest.versions, honest.response_ids);
  EXPECT_TRUE(violations_.empty()) << violations_.front();
  witness_.check_draws({2}, honest.versions, honest.response_ids);
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("not drawn by the numbers of its sample")));
}

TEST_F(VersionWitnessTest, AVersionThatNobodyPublishedIsFound) {
  auto lying = generate(1);
  lying.versions.front().version.step = 7;
  check(lying);
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("which no engine was given")));
}

TEST_F(VersionWitnessTest, SpansThatDoNotCoverTheTokensAreFound) {
  auto lying = generate(1);
  lying.versions.front().num_tokens += 1;
  check(lying);
  lying.versions.clear();
  check(lying);
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("do not cover"), HasSubstr("do not cover")));
}

TEST_F(VersionWitnessTest, TwoWeightsOfOneNameAreFound) {
  ASSERT_TRUE(engine_->load(weights(1), engines::WeightArrival::kFinish).ok());
  engines::Snapshot other = weights(2);
  other.version.step = 1;
  static_cast<void>(engine_->load(other, engines::WeightArrival::kFinish));
  EXPECT_THAT(violations_, ElementsAre(HasSubstr("two sets of weights")));
}

}  // namespace
}  // namespace tidemill::test
